"""`osmosis demo`: an agent evaluated through a platform on this machine, without an account, key or GPU."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.conversations import turns_of
from osmosis_ai.cli.output.results import ConversationBlock, OperationResult, Styled
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.services.demo import DemoEvaluation, DemoOutcome, Scratch


def demo(
    train: Annotated[
        bool, typer.Option("--train", help="Also train the model and evaluate it again.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**31 - 1, help="Seed of the training run (default: 0).")
    ] = None,
    local: Annotated[
        bool, typer.Option("--local", help="Evaluate with `osmosis eval run`, without a platform.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the platform running, and print how to reach it.")
    ] = False,
    keep_dir: Annotated[
        Path | None, typer.Option(help="New or empty directory to work in (default: a new temporary one).")
    ] = None,
    clean: Annotated[bool, typer.Option("--clean", help="Remove the directory if nothing failed.")] = False,
) -> OperationResult:
    """Run a complete evaluation on this machine.

    No account, key or GPU is needed. It takes less than two minutes.

    The demo runs the commands that it prints: it starts a platform, logs in, pushes a repository, uploads a dataset,
    stores a secret, submits an evaluation, and stops what it started. The model is small enough to ship in this
    package. With --train, the demo also trains it by reinforcement learning, deploys it, and evaluates it again on
    the same rows, which are not used for training. This takes about two minutes more. The exit status is 0 only if every sample is scored.

    Examples:
        osmosis demo
        osmosis demo --train --keep
    """
    from osmosis_ai.cli.graceful_stop import signals_raise
    from osmosis_ai.services.demo import prepare_scratch, run_demo

    for refused, message in (
        (keep and local, "--keep and --local are mutually exclusive."),
        (keep and clean, "--keep and --clean are mutually exclusive."),
        (train and local, "--train and --local are mutually exclusive: training needs a platform."),
        (seed is not None and not train, "--seed is the seed of a training run: it needs --train."),
    ):
        if refused:
            raise OsmosisError(message)
    if train:
        from osmosis_ai.training import require_train_extra

        require_train_extra()
    # SIGTERM and SIGHUP end the demo with what it started and what it wrote.
    with signals_raise((signal.SIGTERM, signal.SIGHUP), lambda number: SystemExit(128 + number)):
        scratch = prepare_scratch(keep_dir)
        try:
            outcome = run_demo(
                scratch,
                display=current().mode,
                tell=_tell,
                local=local,
                keep=keep,
                seed=(seed or 0) if train else None,
            )
        except KeyboardInterrupt:
            _tell(f"Partial results: {scratch.root}")
            raise
        except SystemExit:
            scratch.discard()
            raise
    complete = outcome.evaluation.complete and (outcome.base is None or outcome.base.complete)
    if clean and complete:
        shutil.rmtree(scratch.root)
    return _result(outcome, scratch, complete=complete, removed=clean and complete)


def _tell(line: str) -> None:
    """Print a line to stderr, in JSON mode, too: the demo takes minutes."""
    current().say(formats.literal(line))


def _result(outcome: DemoOutcome, scratch: Scratch, *, complete: bool, removed: bool) -> OperationResult:
    evaluation, sample, run = outcome.evaluation, outcome.evaluation.sample, outcome.evaluation.run
    counts = evaluation.metrics["estimates"]["counts"]
    message = f"The demo scored {counts['scored']} of {counts['planned']} attempts."
    extra: dict[str, Any] = {}
    if (training := outcome.training) is not None and outcome.base is not None:
        extra = {
            "base": _numbers(outcome.base),
            "trained": _numbers(evaluation),
            "difference": outcome.difference,
            "training_run": asdict(training),
        }
        before, after = (formats.percent(extra[which]["pass_rate"]) for which in ("base", "trained"))
        took = "" if training.duration_s is None else f" in {formats.duration(training.duration_s)}"
        message = (
            f"{len(training.rewards)} training steps{took} took the pass rate from {before} to {after} "
            "on rows that were not trained on."
        )
    blocks = []
    if sample:
        truth = "" if sample.label is None else f", correct answer {sample.label}"
        block = ConversationBlock(
            turns=list(turns_of(sample.conversation)),
            title=f"One of them: row {sample.row_index}, attempt {sample.run_index}",
            closing=Styled(f"reward {sample.reward:g}{truth}", "good" if sample.reward > 0 else "bad"),
            in_plain=True,
        )
        blocks.append(block)
    return OperationResult(
        operation="demo",
        status="success" if complete else "partial",
        message=message,
        resource={
            "directory": None if removed else str(scratch.root),
            "workspace_directory": None if removed else str(scratch.workspace),
            "platform_url": outcome.platform_url,
            "scored": counts["scored"],
            "total": counts["planned"],
            "metrics": evaluation.metrics,
            "run": run and {key: value for key, value in run.items() if key != "metrics"},
            "sample": sample
            and {
                "row_index": sample.row_index,
                "run_index": sample.run_index,
                "reward": sample.reward,
                "label": sample.label,
                "messages": [
                    {"role": turn.role, "text": turn.text} for turn in turns_of(sample.conversation)
                ],
            },
        },
        extra=extra,
        blocks=blocks,
        next_steps=[] if removed else list(_further(outcome, scratch)),
        next_steps_structured=[] if removed else [{"action": "look", "path": str(evaluation.results)}],
    )


def _numbers(evaluation: DemoEvaluation) -> dict[str, Any]:
    estimates = evaluation.metrics["estimates"]
    rate = estimates["pass_rate"]
    return {
        "model": evaluation.metrics["eval_run"]["model_name"],
        "run": evaluation.name,
        "pass_rate": rate["value"],
        "pass_rate_interval": [rate["low"], rate["high"]],
        "reward": estimates["reward"]["value"],
        "scored": estimates["counts"]["scored"],
        "total": estimates["counts"]["planned"],
        "output_path": str(evaluation.results),
    }


def _further(outcome: DemoOutcome, scratch: Scratch) -> Iterator[str]:
    """Yield where to look further, and what to type next."""
    from osmosis_ai.services.demo import CONFIG, ENV_FILE

    evaluation, url, program = outcome.evaluation, outcome.platform_url, _program()
    yield f"Look further:  cd {scratch.workspace}"
    yield "  the agent and its grader      rollouts/multiply/main.py"
    yield f"  the evaluation's config       {CONFIG}"
    yield f"  every number of this run      {evaluation.results.relative_to(scratch.workspace)}/metrics.json"
    if evaluation.sample:
        yield f"  the conversation above        {evaluation.sample.path.relative_to(scratch.workspace)}"
    yield f"  the same in a browser         {program} view"
    if url:
        yield f"The platform is running at {url}"
        yield f"  use it in this shell          . {scratch.root / ENV_FILE}"
        yield f"  its runs                      {program} eval list"
        yield f"  another run                   {program} eval submit {CONFIG} --watch"
        yield f"  stop it                       {program} platform stop"
    else:
        yield f"  again, on ten rows            {program} eval run {CONFIG} --rows 0-9 --yes"
        yield f"  with a platform that stays    {program} demo --keep"
    key = "`osmosis secret set`" if url else "export"
    yield f'  with a model of your choice   set model_path in the config, e.g. "openai/gpt-5-mini", and {key} its key'
    if url and (training := outcome.training) is not None:
        yield f"  how the training went         {program} train info {training.name}"
        yield f"  the adapter, to take away     {program} model download {training.checkpoint}"
        yield f'  evaluate it yourself          set model_path = "{training.model}" in a config of configs/eval/'


def _program() -> str:
    """Return what to type to run this very installation."""
    here, found = Path(sys.executable).with_name("osmosis"), shutil.which("osmosis")
    if not here.exists():
        return f"{sys.executable} -m osmosis_ai"
    return "osmosis" if found is not None and Path(found).samefile(here) else str(here)
