"""`osmosis train`: submit, follow, inspect and compare training runs."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_ai.cli import options
from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.formats import aligned, next_block
from osmosis_ai.cli.output.reports import TRAINING_HOLDS, report_file, tell_written
from osmosis_ai.cli.output.results import DetailResult, ListResult, OperationResult, StreamResult, Text
from osmosis_ai.errors import OsmosisError
from osmosis_ai.ui import numbers

if TYPE_CHECKING:
    from osmosis_ai.cli.runs import RunView
    from osmosis_ai.services.training_estimate import EstimatedTraining
    from osmosis_ai.services.training_runs import DescribedTraining, LocalTraining, TrainingComparison


app = typer.Typer()

VerboseOption = Annotated[bool, typer.Option("--verbose", help="Print all metrics and settings.")]


def _view() -> RunView[DescribedTraining]:
    from osmosis_ai.cli.training_runs.view import VIEW

    return VIEW


@app.command()
def submit(
    config: options.TrainingConfigArgument,
    watch: options.WatchOption = False,
    check: options.CheckOption = False,
    secrets_file: options.SecretsFileOption = None,
    yes: options.YesOption = False,
) -> OperationResult:
    """Submit a training run to the platform.

    The platform fetches the code from the repository. The config is read from this machine. Secrets are sent by name,
    unless --secrets-file supplies their values.

    Examples:
        osmosis train submit configs/training/multiply.toml --watch
    """
    return _view().submit(config, check=check, watch=watch, secrets_file=secrets_file, yes=yes)


_PARTS = {
    "weights": "Base model weights",
    "gathered": "Gathered layers",
    "adapter": "Adapter",
    "gradients": "Adapter gradients",
    "optimizer": "Optimizer (AdamW)",
    "activations": "Micro-batch activations",
    "logits": "Micro-batch logits",
    "serving_weights": "Sampling engine weights",
    "kv_cache": "Sampling engine KV cache",
    "reserve": "Driver and allocator",
}
_LARGEST_PARTS = 3


@app.command()
def estimate(
    config: options.TrainingConfigArgument,
    gpu: Annotated[str | None, typer.Option(help="GPU model, such as L4, A100, H100 or H200.")] = None,
    gpu_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="GPU memory, such as 80GB, if the model is not listed.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print the memory of every part.")] = False,
) -> DetailResult:
    """Estimate the GPU memory that a training run needs.

    The default GPU is this machine's. The command also reports whether the model can be trained with the config, and
    which layers get an adapter. Sizes come from a local folder, the Hugging Face cache or a built-in list of models.
    The command downloads nothing.

    Examples:
        osmosis train estimate configs/training/multiply.toml --gpu H100
    """
    from osmosis_ai.services.training_estimate import estimate_training

    output = current()
    found = estimate_training(config, gpu=gpu, gpu_memory=gpu_memory)
    for warning in found.warnings:
        output.warn(warning)
    return DetailResult(data=found.data(), blocks=[_estimate(found, verbose=verbose)])


def _estimate(found: EstimatedTraining, *, verbose: bool) -> Text:
    from osmosis_ai.services.training_estimate import format_machine

    memory, settings, device, model = found.memory, found.settings, found.device, found.model
    each = f" on each of {settings.learner_processes} GPUs" if settings.learner_processes > 1 else ""
    needs = f"needs {formats.size(memory.total)}{each}"
    if device == "CPU":
        answer = f"{found.config.path.name} {needs} of memory on the {device}."
    else:
        fits = "fits on" if memory.fits else "does not fit on"
        answer = f"{found.config.path.name} {fits} {device}: it {needs}, {device} has {formats.size(memory.gpu_bytes)}."
    suitable = [name for name, fits in found.fits_on.items() if fits]
    facts = [("Model", model.title)]
    if model.plan is not None:
        facts += model.plan.facts()
    facts += [
        ("This machine", format_machine(found.own_device, found.own_memory)),
        ("Fits on", ", ".join(suitable) or "none of the listed GPUs"),
    ]
    if memory.sessions_that_fit is not None:
        facts.append(("Parallel attempts", f"{memory.sessions_that_fit:,} at full length"))
    if settings.method == "rl" and not memory.serving_weights and model.layout is not None:
        servers = f"{settings.vllm_servers} servers, each of which " if settings.vllm_servers > 1 else ""
        size = formats.size(2 * model.layout.parameters)
        facts.append(("vLLM", f"{servers}needs {size} more for the weights"))
    parts = sorted(memory.parts().items(), key=lambda part: -part[1])
    rows = [
        (_PARTS[name], formats.size(size), formats.percent(size / memory.total, digits=0))
        for name, size in parts[: None if verbose else _LARGEST_PARTS]
        if size
    ]
    title = "Peak memory of a step" if verbose else "Largest parts of the peak"
    sections = [aligned(answer, facts), aligned(title, rows)]
    if model.problem is not None:
        sections.insert(0, [f"{found.config.path.name} cannot be trained. {model.problem}"])
    elif found.own_model.problem is not None:
        sections.append([f"This machine cannot train the model. {found.own_model.problem}"])
    if memory.fits is False:
        sections.append([f"To need less memory: {_advice(found)}"])
    if verbose:
        sections.append(["Estimates are within 20% of measured peaks, before allocator fragmentation."])
    return Text("\n\n".join("\n".join(lines) for lines in sections), in_plain=True)


def _advice(found: EstimatedTraining) -> str:
    """Return how to reduce the largest part."""
    memory, settings = found.memory, found.settings
    longest = settings.max_prompt_length + settings.max_response_length
    sharded = "" if memory.gathered else ", or set [advanced].shard_model with several GPUs and vLLM"
    sizes = {
        f"train a smaller model or use a larger GPU{sharded}.": memory.weights
        + memory.gathered
        + memory.serving_weights,
        f"lower [training].max_response_length or max_prompt_length (together {longest:,} tokens).": memory.kv_cache,
        f"lower [advanced].micro_batch_tokens ({settings.micro_batch_tokens:,}, at least the {longest:,} tokens of one "
        "attempt).": memory.activations + memory.logits,
    }
    return max(sizes, key=lambda advice: sizes[advice])


@app.command("list")
def list_(limit: options.LimitOption = 50, everything: options.AllOption = False) -> ListResult:
    """List the training runs of the workspace, newest first.

    Examples:
        osmosis train list
    """
    return _view().list_runs(limit=limit, everything=everything)


@app.command()
def info(
    run: options.RunArgument,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="File or directory for the metrics of a platform run (default: .osmosis/metrics).",
        ),
    ] = None,
    report: options.ReportOption = None,
    no_text: options.NoTextOption = False,
    force: options.OverwriteReportOption = False,
    verbose: VerboseOption = False,
) -> DetailResult:
    """Show a training run with its results and checkpoints.

    RUN may be a local training directory, which needs no platform.

    Examples:
        osmosis train info keen-owl-2
        osmosis train info keen-owl-2 -o metrics.json
        osmosis train info keen-owl-2 --report keen-owl-2.html
    """
    from osmosis_ai.services.training_runs import describe_training, report_training, training_directory

    current().verbose = verbose
    file = report_file(report, overwrite=force, no_text=no_text, holds={"training": TRAINING_HOLDS})

    def also(found: LocalTraining | DescribedTraining) -> Mapping[str, Any]:
        if file is not None:
            report_training(found, file)
        return tell_written(file)

    directory = training_directory(run)
    if directory is None:
        return _view().info(run, output, also=also)
    if output is not None:
        raise OsmosisError(
            f"{formats.shown_path(directory)} is a local directory, which has its metrics in metrics.jsonl.",
            hint="omit --output",
        )
    from osmosis_ai.cli.training_runs.view import local_info

    found = describe_training(directory)
    return local_info(found, also(found))


@app.command()
def show(
    run: options.RunArgument,
    row: options.RowOption = None,
    attempt: options.AttemptOption = None,
    step: Annotated[
        int | None, typer.Option(min=0, help="Fail unless the newest validation is the one after this step.")
    ] = None,
    passed: options.PassedOption = False,
    below: options.BelowOption = False,
    failed: options.FailedOption = False,
    unscored: options.UnscoredOption = False,
    finish: options.FinishOption = None,
    search: options.SearchOption = "",
    limit: options.ShownOption = 5,
) -> DetailResult:
    """Print conversations of a run's newest validation.

    Attempts without a score come first, then the lowest rewards. RUN may be a local training directory, which needs no
    platform. Row numbers refer to the held-out rows.

    Examples:
        osmosis train show keen-owl-2 --below
        osmosis train show trained/keen-owl-2 --row 12 --attempt 0
    """
    from osmosis_ai.cli.output.conversations import shown_validation
    from osmosis_ai.cli.runs import reading_conversations, wanted_samples
    from osmosis_ai.services.training_runs import show_validation

    outcomes = {"passed": passed, "below": below, "failed": failed, "unscored": unscored}
    wanted = wanted_samples(row, attempt, search, limit, finish=finish, **outcomes)
    with reading_conversations() as client:
        return shown_validation(show_validation(run, wanted, step=step, client=client), wanted)


@app.command()
def watch(run: options.RunArgument) -> OperationResult:
    """Follow a training run until it ends.

    Ctrl-C ends the command. The run continues.

    Examples:
        osmosis train watch keen-owl-2
    """
    from osmosis_ai.services.training_runs import require_platform_run

    require_platform_run(run, "osmosis train watch")
    return _view().watch(run)


@app.command()
def logs(
    run: options.RunArgument,
    limit: options.LinesOption = 50,
    cursor: options.CursorOption = None,
    follow: options.FollowOption = False,
    level: options.LevelOption = None,
) -> ListResult | StreamResult:
    """Show the log of a training run, newest line last.

    RUN may be a local training directory, which needs no platform. With --follow --json, each line is a JSON object.

    Examples:
        osmosis train logs keen-owl-2 --level warning --follow
        osmosis train logs trained/keen-owl-2
    """
    from osmosis_ai.cli.runs import local_logs
    from osmosis_ai.services.training_runs import training_directory
    from osmosis_ai.training.runs.run_directory import TrainingDirectory

    directory = training_directory(run)
    if directory is None:
        return _view().logs(run, limit=limit, cursor=cursor, follow=follow, level=level)
    return local_logs(
        directory,
        f"osmosis train logs {quote(formats.shown_path(directory))}",
        limit=limit,
        cursor=cursor,
        follow=follow,
        level=level,
        is_running=TrainingDirectory(directory).is_running,
    )


@app.command()
def compare(
    a: Annotated[str, typer.Argument(help="Name or ID of a run.")],
    b: Annotated[str, typer.Argument(help="Name or ID of the run to compare with A.")],
    verbose: Annotated[bool, typer.Option("--verbose", help="Print all metrics.")] = False,
) -> DetailResult:
    """Compare settings and rewards of two training runs.

    Examples:
        osmosis train compare keen-owl-2 bold-elm-3
    """
    from osmosis_ai.services.training_runs import compare_runs, require_platform_run

    for run in (a, b):
        require_platform_run(run, "osmosis train compare")
    with platform_context() as context:
        with current().status("Fetching both runs"):
            found = compare_runs(context.client, a, b)
        return DetailResult(
            data={**found.data(), **context.resource()}, blocks=[_comparison(found, verbose=verbose)]
        )


def _comparison(found: TrainingComparison, *, verbose: bool) -> Text:
    runs = [
        (
            letter,
            run.name,
            run.run.status,
            f"metrics not available: {run.metrics_error}" if run.metrics_error else "",
        )
        for letter, run in (("A", found.a), ("B", found.b))
    ]
    settings = [
        (
            each.key,
            *(formats.MISSING if value is None else numbers.setting(value) for value in (each.a, each.b)),
        )
        for each in found.differences.settings
    ]
    metrics = [
        row
        for metric, row in zip(found.differences.metrics, found.differences.metric_rows(), strict=True)
        if verbose or metric.key in _COMPARED
    ]
    sections = [
        aligned(fill(found.sentence, _WIDTH), runs),
        aligned("Settings that differ", [("", "A", "B"), *settings])
        if settings
        else ["The settings are the same."],
        aligned("Metrics", [("", "A", "B", "B - A", "95% CI"), *metrics]) if metrics else [],
        [found.differences.note] if verbose and found.differences.note else [],
    ]
    return Text("\n\n".join("\n".join(lines) for lines in sections if lines), in_plain=True)


_WIDTH = 100
_COMPARED = ("eval/validation/pass_rate", "eval/validation/reward", "rollout/raw_reward")


@app.command()
def checkpoints(run: options.RunArgument) -> ListResult:
    """List the checkpoints of a training run, oldest first.

    Each checkpoint is a LoRA model that can be deployed.

    Examples:
        osmosis train checkpoints keen-owl-2
    """
    from osmosis_ai.cli.training_runs.view import CHECKPOINT_COLUMNS
    from osmosis_ai.services.runs.lifecycle import list_checkpoints
    from osmosis_ai.services.training_runs import require_platform_run

    require_platform_run(run, "osmosis train checkpoints")
    with platform_context() as context, current().status("Fetching checkpoints"):
        saved = list_checkpoints(context.client, run)
        names = [each.checkpoint_name for each in saved.checkpoints if each.checkpoint_name]
        steps = [
            ("compare their validations", f"osmosis train info {quote(run)} --verbose"),
            ("deploy the last checkpoint", f"osmosis model deploy {quote(f'{run}@last')}"),
        ]
        return ListResult(
            items=[checkpoint.printed() for checkpoint in saved.checkpoints],
            columns=CHECKPOINT_COLUMNS,
            extra={"training_run_name": saved.training_run_name, **context.resource()},
            hints=next_block(steps) if names else (),
            none="The run has no checkpoints.",
        )


@app.command()
def stop(run: options.RunArgument, yes: options.YesOption = False) -> OperationResult:
    """Stop a training run and keep its checkpoints.

    Examples:
        osmosis train stop keen-owl-2
    """
    return _view().stop(run, yes=yes)


@app.command()
def resume(run: options.RunArgument) -> OperationResult:
    """Resume a failed or stopped run from its last checkpoint.

    The run keeps its name, config, commit, adapter, optimizer state and data order.

    Examples:
        osmosis train resume keen-owl-2
    """
    from osmosis_ai.services.training_runs import resume_run

    with platform_context() as context:
        with current().status("Resuming training run"):
            resumed = resume_run(context.client, run)
        name = resumed.name or resumed.id
        where = f" after step {resumed.step}" if resumed.step is not None else ""
        return OperationResult(
            operation="train.resume",
            message=f'Training run "{name}" resumes{where}.',
            resource={**resumed.model_dump(), **context.resource()},
            next_steps=next_block([("follow it", f"osmosis train watch {quote(name)}")]),
            next_steps_structured=[{"action": "train.watch", "name": name}],
        )


@app.command()
def resubmit(
    run: options.RunArgument,
    watch: options.WatchOption = False,
    secrets_file: options.SecretsFileOption = None,
    yes: options.YesOption = False,
) -> OperationResult:
    """Submit the config of a training run again.

    The command first shows changes of commit, dataset, secrets and platform version. Supply secrets again
    if they were supplied only for the earlier run.

    Examples:
        osmosis train resubmit keen-owl-2
        osmosis train resubmit keen-owl-2 --secrets-file secrets.env --watch --yes
    """
    return _view().resubmit(run, watch=watch, secrets_file=secrets_file, yes=yes)


@app.command()
def delete(run: options.RunArgument, yes: options.YesOption = False) -> OperationResult:
    """Delete an ended training run with its log and adapters.

    Examples:
        osmosis train delete copper-finch
    """
    return _view().delete(run, yes=yes)
