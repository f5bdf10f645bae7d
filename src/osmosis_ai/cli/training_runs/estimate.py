"""`osmosis train estimate`: whether a training config fits on a GPU, before anything is rented or submitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from osmosis_ai.cli.options import TrainingConfigArgument
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import Column, DetailResult, Row, Styled, Table

if TYPE_CHECKING:
    from osmosis_ai.services.training_runs.estimate import EstimatedTraining

_PARTS = {
    "weights": "Weights of the base model",
    "gathered": "Layers that are whole for the moment",
    "adapter": "Adapter",
    "gradients": "Gradients of the adapter",
    "optimizer": "Optimizer (AdamW)",
    "activations": "Activations of a micro-batch",
    "logits": "Logits of a micro-batch",
    "serving_weights": "Policy server: weights",
    "kv_cache": "Policy server: keys and values",
    "reserve": "Driver and allocator",
}


def estimate(
    config: TrainingConfigArgument,
    gpu: Annotated[
        str | None,
        typer.Option(help="A GPU by name: T4, L4, A100, H100, H200 …", show_default=False),
    ] = None,
    gpu_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="The memory of any other GPU: 80GB.", show_default=False),
    ] = None,
) -> DetailResult:
    """Estimate the memory that a training run needs, and say on which GPUs it fits.

    Without a GPU named, this machine's is meant. The model's sizes are read from its configuration, built in,
    in a local folder or in the cache of the Hugging Face hub; nothing is downloaded.

    Examples:
        osmosis train estimate configs/training/multiply.toml
    """
    from osmosis_ai.services.training_runs.estimate import estimate_training

    output = current()
    with output.status("Sizing the model"):
        found = estimate_training(config, gpu=gpu, gpu_memory=gpu_memory)
    for warning in found.warnings:
        output.warn(warning)
    return DetailResult(
        data=found.data(),
        title="Memory estimate",
        rows=_rows(found),
        blocks=[_parts(found)],
        hints=_hints(found),
    )


def _rows(found: EstimatedTraining) -> list[Row]:
    memory, experiment = found.memory, found.config.experiment
    processes = found.settings.learner_processes
    rows: list[Row] = [
        ("Config", found.config.path.name),
        ("Model", experiment.model_path),
        ("Device", found.device.name),
        *([("Processes", f"{processes}, each on a device of its own")] if processes > 1 else []),
        ("Needed on each" if processes > 1 else "Needed", formats.size(memory.total)),
    ]
    if memory.gpu_bytes is not None:
        rows.append(("There is", formats.size(memory.gpu_bytes)))
        fits = Styled("yes", "good") if found.fits else Styled("no", "bad")
        rows.append(("Fits", fits))
    if memory.sessions_that_fit is not None:
        rows.append(("Room for sessions", formats.count(memory.sessions_that_fit)))
    smallest = [name for name, fits in found.fits_on.items() if fits]
    rows.append(("Fits on", ", ".join(smallest) if smallest else "none of the GPUs known by name"))
    return rows


def _parts(found: EstimatedTraining) -> Table:
    cells = [
        (_PARTS[name], formats.size(size), formats.percent(size / found.memory.total, digits=0))
        for name, size in found.memory.parts().items()
        if size
    ]
    return Table(
        (Column("Part"), Column("Memory", right=True), Column("Share", right=True)),
        cells,
        title="At the peak of a step",
        note="within 20 % of measured peaks, without what an allocator loses to fragmentation",
        in_plain=True,
    )


def _hints(found: EstimatedTraining) -> list[str]:
    """Return what to change for it to fit: what takes the most is what to make smaller."""
    if found.fits is not False:
        return []
    memory, settings = found.memory, found.settings
    longest = settings.max_prompt_length + settings.max_response_length
    split = "" if memory.gathered else "; or [advanced].shard_model over several GPUs, with vLLM to serve"
    advice = {
        f"The weights, once to train and once to serve: a smaller model or a larger GPU{split}.": memory.weights
        + memory.gathered
        + memory.serving_weights,
        f"Keys and values, counted for rollouts of the greatest length ({longest} tokens) at once: lower "
        f"[training].max_response_length or max_prompt_length. There is room for "
        f"{formats.count(memory.sessions_that_fit)} such rollouts.": memory.kv_cache,
        f"A micro-batch, which holds {memory.micro_batch_tokens} tokens: lower [advanced].micro_batch_tokens "
        f"({settings.micro_batch_tokens}), and the greatest length of a rollout ({longest}), below which it "
        "cannot fall.": memory.activations + memory.logits,
    }
    return [f"What takes the most: {max(advice, key=lambda line: advice[line])}"]
