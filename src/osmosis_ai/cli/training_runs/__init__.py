"""`osmosis train`: train agents, follow their runs and see what came of them."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_ai.cli import options
from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.logs import CursorOption, FollowOption, LevelOption, LinesOption
from osmosis_ai.cli.output import formats, results
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.formats import sparkline
from osmosis_ai.cli.output.reports import TRAINING_HOLDS, report_file, tell_written
from osmosis_ai.cli.output.results import DetailResult, ListResult, OperationResult, StreamResult
from osmosis_ai.cli.runs import showing
from osmosis_ai.cli.runs.submit import CheckOption, SecretsFileOption, WatchOption, resubmit_run, submit_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from osmosis_ai.cli.runs.view import RunView
    from osmosis_ai.services.training_estimate import EstimatedTraining
    from osmosis_ai.services.training_runs import DescribedTraining, LocalTraining, TrainingComparison


app = typer.Typer()


def _view() -> RunView[DescribedTraining]:
    from osmosis_ai.cli.training_runs.view import VIEW

    return VIEW


@app.command()
def submit(
    config: options.TrainingConfigArgument,
    watch: WatchOption = False,
    check: CheckOption = False,
    secrets_file: SecretsFileOption = None,
    yes: options.YesOption = False,
) -> OperationResult:
    """Submit a training run to the platform.

    The code is what the platform fetches from the repository; the config is read from this machine. Secrets
    travel as names, unless a --secrets-file supplies values.

    Examples:
        osmosis train submit configs/training/multiply.toml --watch
    """
    return submit_run(_view(), config, check=check, watch=watch, secrets_file=secrets_file, yes=yes)


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


@app.command()
def estimate(
    config: options.TrainingConfigArgument,
    gpu: Annotated[str | None, typer.Option(help="A GPU by name: T4, L4, A100, H100, H200 …")] = None,
    gpu_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The memory of any other GPU: 80GB.")
    ] = None,
) -> DetailResult:
    """Estimate the GPU memory that a training run needs.

    Without a GPU named, this machine's is meant. The model's sizes are read from its configuration, built in,
    in a local folder or in the cache of the Hugging Face hub; nothing is downloaded.

    Examples:
        osmosis train estimate configs/training/multiply.toml
    """
    from osmosis_ai.services.training_estimate import estimate_training

    output = current()
    with output.status("Sizing the model"):
        found = estimate_training(config, gpu=gpu, gpu_memory=gpu_memory)
    for warning in found.warnings:
        output.warn(warning)
    return DetailResult(
        data=found.data(),
        title="Memory estimate",
        rows=_estimate_rows(found),
        blocks=[_parts(found)],
        hints=_hints(found),
    )


def _estimate_rows(found: EstimatedTraining) -> list[results.Row]:
    memory, experiment = found.memory, found.config.experiment
    processes = found.settings.learner_processes
    rows: list[results.Row] = [
        ("Config", found.config.path.name),
        ("Model", experiment.model_path),
        ("Device", found.device.name),
        *([("Processes", f"{processes}, each on a device of its own")] if processes > 1 else []),
        ("Needed on each" if processes > 1 else "Needed", formats.size(memory.total)),
    ]
    if memory.gpu_bytes is not None:
        rows.append(("There is", formats.size(memory.gpu_bytes)))
        fits = results.Styled("yes", "good") if found.fits else results.Styled("no", "bad")
        rows.append(("Fits", fits))
    if memory.sessions_that_fit is not None:
        rows.append(("Room for sessions", formats.count(memory.sessions_that_fit)))
    smallest = [name for name, fits in found.fits_on.items() if fits]
    rows.append(("Fits on", ", ".join(smallest) if smallest else "none of the GPUs known by name"))
    return rows


def _parts(found: EstimatedTraining) -> results.Table:
    cells = [
        (_PARTS[name], formats.size(size), formats.percent(size / found.memory.total, digits=0))
        for name, size in found.memory.parts().items()
        if size
    ]
    return results.Table(
        (results.Column("Part"), results.Column("Memory", right=True), results.Column("Share", right=True)),
        cells,
        title="At the peak of a step",
        note="within 20% of measured peaks, without what an allocator loses to fragmentation",
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
            help="File or directory for the metrics of a run of the platform (default: .osmosis/metrics).",
        ),
    ] = None,
    report: options.ReportOption = None,
    no_text: options.NoTextOption = False,
    force: options.OverwriteReportOption = False,
) -> DetailResult:
    """Show the progress, configuration and metrics of a run.

    RUN may also be a training directory of this machine, which needs no platform.

    Examples:
        osmosis train info keen-owl-2
        osmosis train info keen-owl-2 -o metrics.json
        osmosis train info keen-owl-2 --report keen-owl-2.html
    """
    from osmosis_ai.services.training_runs import training_directory

    file = report_file(report, overwrite=force, no_text=no_text, holds={"training": TRAINING_HOLDS})

    def also(found: LocalTraining | DescribedTraining) -> dict[str, Any]:
        if file is not None:
            from osmosis_ai.services.training_runs import report_training

            report_training(found, file)
        return tell_written(file)

    directory = training_directory(run)
    if directory is not None:
        return _local_info(directory, output, also)
    return _view().info(run, output, also=also)


def _local_info(
    directory: Path, output: str | None, also: Callable[[LocalTraining], dict[str, Any]]
) -> DetailResult:
    from osmosis_ai.cli.output.results import Section, Text, Timestamp
    from osmosis_ai.cli.training_runs.view import is_wide_terminal, metrics_table, reward_chart
    from osmosis_ai.errors import OsmosisError
    from osmosis_ai.services.training_runs import describe_training

    if output is not None:
        raise OsmosisError(
            f"{formats.shown_path(directory)} is a directory of this machine: its metrics are in its metrics.jsonl.",
            hint="leave out --output",
        )
    found = describe_training(directory)
    entry, metrics = found.detail.summary, found.metrics
    saved = [
        (adapter.name, adapter.step, formats.compact(adapter.reward)) for adapter in found.curves.checkpoints
    ]
    started = entry.started_at
    rows: list[results.Row] = [
        ("Name", entry.name),
        ("Status", results.Status(entry.status)),
        *(("Problem", results.Styled(problem, "bad")) for problem in found.detail.problems),
        ("Started", Timestamp(started.isoformat()) if started is not None else None),
        ("Reward", formats.compact(entry.reward)),
        *(found.validation.facts() if found.validation is not None else ()),
    ]
    blocks: list[results.Block] = [*reward_chart(metrics)]
    if metrics.metrics:
        trends = is_wide_terminal(current())
        blocks.append(metrics_table(metrics, metrics.overview.metric_summaries, trends=trends))
    if saved:
        blocks.append(
            results.Table(("Checkpoint", "Step", "Reward"), saved, title="Checkpoints", in_plain=True)
        )
    if found.detail.config_written is not None:
        blocks.append(Text(found.detail.config_written, title="Config"))
    return DetailResult(
        data={**found.data(), **also(found)},
        title="Training Run of This Machine",
        rows=rows,
        sections=[Section("Facts", list(found.detail.facts))],
        blocks=blocks,
        hints=[f"View: osmosis view {quote(formats.shown_path(directory))}"],
    )


@app.command()
def show(
    run: options.RunArgument,
    row: showing.RowOption = None,
    attempt: showing.AttemptOption = None,
    step: Annotated[
        int | None, typer.Option(min=0, help="Only if the validation after this step is still kept.")
    ] = None,
    failed: showing.FailedOption = False,
    passed: showing.PassedOption = False,
    unscored: showing.UnscoredOption = False,
    finish: showing.FinishOption = None,
    search: showing.SearchOption = "",
    limit: showing.ShownOption = 5,
) -> DetailResult:
    """Print conversations of the newest validation.

    Unscored attempts come first, then the lowest scores.

    RUN may also be a training directory of this machine, which needs no platform. Rows are numbered as they are held out.

    Examples:
        osmosis train show keen-owl-2 --failed
        osmosis train show trained/keen-owl-2 --row 12 --attempt 0
    """
    from osmosis_ai.cli.output.conversations import shown_validation
    from osmosis_ai.services.training_runs import show_validation

    wanted = showing.wanted_samples(
        row, attempt, search, limit, failed=failed, passed=passed, unscored=unscored, finish=finish
    )
    with showing.reading_conversations() as client:
        return shown_validation(show_validation(run, wanted, step=step, client=client), wanted)


@app.command()
def watch(run: options.RunArgument) -> OperationResult:
    """Follow a training run until it ends.

    Ctrl-C stops watching, not the run.

    Examples:
        osmosis train watch keen-owl-2
    """
    from osmosis_ai.services.training_runs import require_run_of_platform

    shown = quote(run)
    require_run_of_platform(
        run, "osmosis train watch", lambda _: f"osmosis train logs {shown} --follow, osmosis view {shown}"
    )
    return _view().watch(run)


@app.command()
def logs(
    run: options.RunArgument,
    limit: LinesOption = 50,
    cursor: CursorOption = None,
    follow: FollowOption = False,
    level: LevelOption = None,
) -> ListResult | StreamResult:
    """Show the log of a training run, newest line last.

    RUN may also be a training directory of this machine, which needs no platform. With --follow --json each line is a JSON
    object of its own.

    Examples:
        osmosis train logs keen-owl-2 --level warning --follow
        osmosis train logs trained/keen-owl-2
    """
    from osmosis_ai.cli.runs.view import local_logs
    from osmosis_ai.services.training_runs import training_directory
    from osmosis_ai.training.runs.run_directory import TrainingDirectory

    directory = training_directory(run)
    if directory is not None:
        return local_logs(
            directory,
            f"osmosis train logs {quote(formats.shown_path(directory))}",
            limit=limit,
            cursor=cursor,
            follow=follow,
            level=level,
            is_running=TrainingDirectory(directory).is_running,
        )
    return _view().logs(run, limit=limit, cursor=cursor, follow=follow, level=level)


@app.command()
def compare(
    a: Annotated[str, typer.Argument(help="Name or id of a run.")],
    b: Annotated[str, typer.Argument(help="The run to compare it with.")],
) -> DetailResult:
    """Compare the settings and metrics of two training runs.

    Examples:
        osmosis train compare keen-owl-2 bold-elm-3
    """
    from osmosis_ai.services.training_runs import compare_runs, require_run_of_platform

    for run in (a, b):
        require_run_of_platform(
            run,
            "osmosis train compare",
            lambda directory: (
                f"osmosis view {quote(formats.shown_path(directory.parent))} compares those that it holds, in a browser"
            ),
        )
    with platform_context() as context:
        with current().status("Fetching both runs"):
            found = compare_runs(context.client, a, b)
        return DetailResult(
            data={**found.data(), **context.resource()},
            title="Training runs",
            rows=[("Verdict", found.sentence), *_compared_rows("A", found.a), *_compared_rows("B", found.b)],
            blocks=list(_blocks(found)),
        )


def _compared_rows(letter: str, run: DescribedTraining) -> Iterator[results.Row]:
    yield letter, run.name
    yield f"{letter} status", results.Status(run.run.status)
    if run.metrics_error:
        yield f"{letter} metrics", f"Not available: {run.metrics_error}"


def _blocks(found: TrainingComparison) -> Iterator[results.Block]:
    from osmosis_ai.cli.training_runs.view import is_wide_terminal

    columns = (results.Column("Setting", keep=True), "A", "B")
    differing = [
        (each.key, *(formats.MISSING if value is None else str(value) for value in (each.a, each.b)))
        for each in found.differences.settings
    ]
    yield results.Table(
        columns,
        differing or [("all settings", "same", "same")],
        title="Configured differently",
        in_plain=True,
    )
    yield from _charts(found)
    if found.differences.metrics:
        yield _metrics(found, trends=is_wide_terminal(current()))


def _charts(found: TrainingComparison) -> Iterator[results.Chart]:
    from osmosis_ai.cli.training_runs.view import REWARD, VALIDATION
    from osmosis_ai.services.training_runs import points

    for key, title in ((REWARD, "Training reward"), (VALIDATION, "Validation reward")):
        curves = (
            results.Curve(f"A {found.a.name}", points(found.a.metrics, key), "accent"),
            results.Curve(f"B {found.b.name}", points(found.b.metrics, key), "warn"),
        )
        if all(len(curve.points) > 1 for curve in curves):
            yield results.Chart(curves, title=title, x_label="step", in_plain=True)


def _metrics(found: TrainingComparison, *, trends: bool) -> results.Table:
    from osmosis_ai.cli.training_runs.view import TREND_WIDTH

    headings = ("A, last", "B, last", "B - A", "95% interval")
    columns = [results.Column("Metric"), *(results.Column(name, right=True, keep=True) for name in headings)]
    if trends:
        columns += [results.Column("A"), results.Column("B")]
    rows = []
    for metric, row in zip(found.differences.metrics, found.differences.metric_rows(), strict=True):
        shown = (found.a, found.b) if trends else ()
        rows.append([*row, *(sparkline(run.values(metric.key), width=TREND_WIDTH // 2) for run in shown)])
    return results.Table(columns, rows, title="Metrics", note=found.differences.note, in_plain=True)


@app.command()
def checkpoints(run: options.RunArgument) -> ListResult:
    """List the checkpoints of a training run, earliest first.

    Each checkpoint is a model that you can deploy.

    Examples:
        osmosis train checkpoints keen-owl-2
    """
    from osmosis_ai.cli.training_runs.view import checkpoint_columns, deploy_hint
    from osmosis_ai.services.runs.lifecycle import list_checkpoints
    from osmosis_ai.services.training_runs import checkpoint_item, require_run_of_platform

    require_run_of_platform(
        run, "osmosis train checkpoints", lambda _: f"osmosis train info {quote(run)} lists its checkpoints"
    )
    with platform_context() as context, current().status("Fetching checkpoints"):
        saved = list_checkpoints(context.client, run)
        return ListResult(
            items=[checkpoint_item(checkpoint) for checkpoint in saved.checkpoints],
            columns=checkpoint_columns(),
            extra={"training_run_name": saved.training_run_name, **context.resource()},
            hints=deploy_hint(saved.checkpoints),
        )


@app.command()
def stop(run: options.RunArgument, yes: options.YesOption = False) -> OperationResult:
    """Stop a pending or running training run.

    Its checkpoints are kept.

    Examples:
        osmosis train stop keen-owl-2
    """
    return _view().stop(run, yes=yes)


@app.command()
def resume(run: options.RunArgument) -> OperationResult:
    """Resume a failed or stopped run from its last checkpoint.

    It stays the same run: adapter, optimizer, data order and step are those of the checkpoint, and so are its
    config and commit.

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
            next_steps=[f"Follow with: osmosis train watch {name}"],
            next_steps_structured=[{"action": "train.watch", "name": name}],
        )


@app.command()
def resubmit(
    run: options.RunArgument,
    watch: WatchOption = False,
    secrets_file: SecretsFileOption = None,
    yes: options.YesOption = False,
) -> OperationResult:
    """Submit the config of a training run again.

    Changes since the first submission are shown before you confirm.

    Commit, dataset, secrets and the platform's version are compared. Secrets that were given with the run alone are
    to be given again.

    Examples:
        osmosis train resubmit keen-owl-2
        osmosis train resubmit keen-owl-2 --secrets-file secrets.env --watch --yes
    """
    return resubmit_run(_view(), run, watch=watch, secrets_file=secrets_file, yes=yes)


@app.command()
def delete(run: options.RunArgument, yes: options.YesOption = False) -> OperationResult:
    """Delete a training run and its files from the platform.

    The run must have ended. Its metrics, log and saved adapters are deleted.

    Examples:
        osmosis train delete copper-finch
    """
    return _view().delete(run, yes=yes)
