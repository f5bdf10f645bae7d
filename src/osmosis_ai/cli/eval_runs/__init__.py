"""`osmosis eval`: run, follow and inspect evaluations."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from osmosis_ai.cli import options
from osmosis_ai.cli.agent_loops import eval_classic
from osmosis_ai.cli.completion import complete_local_run, complete_run_anywhere
from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.eval_runs.decisions import compare, gate, plan
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import Declined, current
from osmosis_ai.cli.output.formats import shown_path
from osmosis_ai.cli.output.results import DetailResult, ListResult, OperationResult, Row, StreamResult, Table
from osmosis_ai.cli.root import CLASSIC_EVAL, CLASSIC_USAGE
from osmosis_ai.cli.rubrics import rubric
from osmosis_ai.errors import OsmosisError
from osmosis_ai.ui.numbers import amount

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.cli.runs import RunView
    from osmosis_ai.evaluation.hooks import RunSummary
    from osmosis_ai.services.eval_runs.info import DescribedEvaluation
    from osmosis_ai.services.eval_runs.local_runs import WatchedRun
    from osmosis_ai.services.eval_runs.run import PreparedEvalRun
    from osmosis_ai.services.eval_runs.upload import UploadableRun, UploadedRun


app = typer.Typer(epilog=f"\b\nEvaluate an agent loop without a config file:\n    {CLASSIC_USAGE}")


def _view() -> RunView[DescribedEvaluation]:
    from osmosis_ai.cli.eval_runs.view import VIEW

    return VIEW


def run(
    config: options.EvalConfigArgument,
    rows: Annotated[str | None, typer.Option(help='Rows to run, counted from 0: "3,7,10-20".')] = None,
    dataset_file: Annotated[
        Path | None, typer.Option(help="Dataset file (default: data/<dataset>.*).")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run; an existing run continues.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Directory of runs (default: .osmosis/evals).")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over; an existing run is archived.")] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Also retry failed and skipped attempts.")
    ] = False,
    salvage: Annotated[
        bool, typer.Option("--salvage", help="Drop the damaged lines of a journal and repeat their attempts.")
    ] = False,
    max_in_flight: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of concurrent attempts.")
    ] = None,
    servers: options.ServersOption = None,
    seed: Annotated[int, typer.Option(help="Random seed of the run.")] = 0,
    max_cost: Annotated[
        float | None, typer.Option(help="Budget in US dollars; no attempt starts beyond it.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Token budget; no attempt starts beyond it.")] = None,
    max_time: Annotated[str | None, typer.Option(help="Time budget, such as 90, 90s, 10m or 2h.")] = None,
    secrets_file: Annotated[
        str | None, typer.Option(help="File of NAME=value lines for [secrets].required; - reads stdin.")
    ] = None,
    rollout_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port of the rollout's server (default: a private socket)."),
    ] = None,
    isolate: Annotated[bool, typer.Option("--isolate", help="Run the rollout in a sandbox (Linux).")] = False,
    network: Annotated[
        Literal["host", "none"],
        typer.Option(
            help="Network of the rollout: host (this machine's) or none (only the model, in a sandbox)."
        ),
    ] = "host",
    upload: Annotated[
        bool, typer.Option("--upload", help="Upload the run to the platform once it is complete.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")] = False,
    slices: options.SliceOption = None,
    no_previews: options.NoPreviewsOption = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="Show the run's log as it is written, and all metrics at the end."),
    ] = False,
) -> OperationResult:
    """Evaluate an agent on this machine.

    The same command continues an interrupted run; finished attempts are kept. Ctrl-C stops gracefully, twice at once.

    Examples:
        osmosis eval run configs/eval/multiply.toml
        osmosis eval run configs/eval/multiply.toml --rows 0-4 --max-time 10m --yes
    """
    from osmosis_ai.cli.eval_runs.view import LiveRun
    from osmosis_ai.processes.privacy import disable_inspection

    # First, because the agent is another program of this user and must not read this process's keys.
    disable_inspection(os.environ)
    from osmosis_ai import event_loop
    from osmosis_ai.evaluation.spec import EvalRunOptions
    from osmosis_ai.services.eval_runs.run import EvalRunRequest, prepare_eval_run, run_eval
    from osmosis_ai.workspace.secrets_file import read_secrets_file

    current().verbose = verbose
    request = EvalRunRequest(
        config=config,
        dataset_file=dataset_file,
        rows=rows,
        output=output,
        secret_values=read_secrets_file(secrets_file) if secrets_file else {},
        slices=tuple(slices or ()),
        isolate=isolate,
        network=network,
        run=EvalRunOptions(
            name=name,
            fresh=fresh,
            retry_failed=retry_failed,
            salvage=salvage,
            max_in_flight=max_in_flight,
            rollout_port=rollout_port,
            servers=servers,
            verbose=verbose,
            seed=seed,
            budget=options.parse_budget(max_cost, max_tokens, max_time),
            previews=not no_previews,
        ),
    )
    prepared = prepare_eval_run(
        request, fetching=lambda dataset, size: current().transfer(f"Fetching {dataset}", size)
    )
    if upload:
        # Before anything is spent on the run.
        from osmosis_ai.api.capabilities import Capability
        from osmosis_ai.services.capabilities import require_offered

        with platform_context() as context, current().status("Asking the platform"):
            require_offered(context.client, Capability.EVAL_IMPORTS)
    with LiveRun(current(), prepared, yes=yes) as live:
        summary = event_loop.run(run_eval(prepared, live))
    if summary is None:
        raise Declined("nothing was started")
    stop = summary.stop
    if stop is not None and stop.kind == "fault":
        current().warn(f"the run was halted: {stop.reason}", code="RUN_HALTED")
    result = _run_result(prepared, summary)
    return _and_uploaded(result, summary) if upload else result


def _run_result(prepared: PreparedEvalRun, summary: RunSummary) -> OperationResult:
    from osmosis_ai.cli.eval_runs.view import finished_message, next_steps, result_blocks
    from osmosis_ai.services.eval_runs.samples import local_slices
    from osmosis_ai.services.workspace_check import git_facts
    from osmosis_ai.ui.run_numbers import score_json

    git = git_facts(prepared.workspace.root)
    metrics, slices = summary.metrics, local_slices(summary.run_dir, prepared.dataset.path, prepared.slices)
    counts = ("total_work_items", "dispatched", "succeeded", "failed", "skipped", "pending", "resumed")
    resource: dict[str, Any] = {
        "run_name": summary.run_dir.name,
        "local_run_id": summary.local_run_id,
        "output_path": str(summary.run_dir),
        "dataset_source": prepared.dataset.source,
        **{name: getattr(summary, name) for name in counts},
        "cancelled": summary.stop is not None,
        "duration_ms": summary.duration_ms,
        "headline": score_json(summary.headline),
        "metrics": {**metrics.summary, "estimates": metrics.estimates.model_dump(mode="json")},
        "failed_rows": summary.failed_rows,
        "git": {name: git[name] for name in ("identity", "remote_url")},
        "workspace_directory": str(prepared.workspace.root),
    }
    if prepared.slices:
        resource["slices"] = [each.data() for each in slices]
    if summary.stop is not None:
        resource["stopped"] = {"kind": summary.stop.kind, "reason": summary.stop.reason}
    steps, structured = next_steps(prepared, summary)
    hint = getattr(summary.stop and summary.stop.error, "hint", None)
    return OperationResult(
        operation="eval.run",
        status="success" if summary.complete else "partial",
        message=finished_message(summary),
        shown="" if summary.complete else None,
        resource=resource,
        blocks=result_blocks(summary, slices),
        next_steps=[*([f"hint: {hint}"] if hint else []), *formats.next_block(steps)],
        next_steps_structured=structured,
    )


def submit(
    config: options.EvalConfigArgument,
    watch: options.WatchOption = False,
    check: options.CheckOption = False,
    secrets_file: options.SecretsFileOption = None,
    yes: options.YesOption = False,
) -> OperationResult:
    """Submit an evaluation to the platform.

    The platform fetches the code from the repository; the config is read from this machine. Only the names of
    secrets are sent, unless a --secrets-file supplies values.

    Examples:
        osmosis eval submit configs/eval/multiply.toml --watch
        osmosis eval submit configs/eval/multiply.toml --check
    """
    return _view().submit(config, check=check, watch=watch, secrets_file=secrets_file, yes=yes)


def list_(limit: options.LimitOption = 50, everything: options.AllOption = False) -> ListResult:
    """List evaluation runs of the workspace and of this machine.

    Without a login or a Git origin, only the runs of this machine are listed. If the platform request fails, they are
    listed and the exit code is 1. --json has them under `local_runs`. --plain prints the platform's runs, then those
    of `(this machine)`, at most --limit lines in total.

    Examples:
        osmosis eval list
        osmosis eval list --limit 5 --json
    """
    from osmosis_ai.cli.eval_runs.view import with_local_runs
    from osmosis_ai.services.eval_runs.local_runs import list_local_runs

    local = list_local_runs(limit=limit, everything=everything)
    return with_local_runs(
        local,
        lambda: _view().list_runs(limit=limit, everything=everything),
        limit=None if everything else limit,
    )


def info(
    run: options.RunAnywhereArgument,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="Directory for a platform run's metrics.json (default: .osmosis/evals/RUN).",
        ),
    ] = None,
    slices: options.SliceOption = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show all metrics and the config file.")] = False,
) -> DetailResult:
    """Show the progress, configuration and results of a run.

    Examples:
        osmosis eval info @last
        osmosis eval info amber-otter-42 --slice difficulty
        osmosis eval info platform:amber-otter-42 -o results
    """
    from osmosis_ai.cli.eval_runs.view import local_info, local_run_first, sliced_info

    current().verbose = verbose
    return local_run_first(
        run,
        local=lambda directory: local_info(directory, output, slices or ()),
        remote=lambda name: sliced_info(name, output, slices or ()),
    )


def show(
    run: Annotated[
        str,
        typer.Argument(
            help="Local or platform run: a name, a unique prefix, a directory or @last.",
            autocompletion=complete_run_anywhere,
        ),
    ],
    row: options.RowOption = None,
    attempt: options.AttemptOption = None,
    passed: options.PassedOption = False,
    below: options.BelowOption = False,
    failed: options.FailedOption = False,
    flaky: Annotated[
        bool, typer.Option("--flaky", help="Only rows with mixed outcomes: some attempts pass.")
    ] = False,
    unscored: options.UnscoredOption = False,
    finish: options.FinishOption = None,
    search: options.SearchOption = "",
    limit: options.ShownOption = 5,
    side_by_side: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Also show the row's conversations in another run.",
            autocompletion=complete_run_anywhere,
        ),
    ] = None,
) -> DetailResult:
    """Print conversations of a run.

    `osmosis view` shows them in a browser.

    Examples:
        osmosis eval show amber-otter-42 --failed
        osmosis eval show @last --row 12 --side-by-side amber-otter-42
    """
    from osmosis_ai.cli.output.conversations import shown_run
    from osmosis_ai.cli.runs import reading_conversations, wanted_samples
    from osmosis_ai.services.eval_runs.show import show as show_named

    outcomes = {"passed": passed, "below": below, "failed": failed, "flaky": flaky, "unscored": unscored}
    selection = wanted_samples(row, attempt, search, limit, finish=finish, **outcomes)
    with reading_conversations() as client:
        return shown_run(show_named(run, selection, client=client, beside=side_by_side), selection)


def watch(
    run: Annotated[
        str,
        typer.Argument(
            help="Local run (name or directory) or platform run (name or ID).",
            autocompletion=complete_run_anywhere,
        ),
    ],
) -> OperationResult:
    """Follow a run until it ends.

    Ctrl-C stops watching, not the run.

    Examples:
        osmosis eval watch amber-otter-42
    """
    from osmosis_ai.cli.eval_runs.view import local_run_first

    local = partial(_watch_local, run)
    return local_run_first(run, local=local, remote=_view().watch, downloads=False)


def _watch_local(run: str, directory: Path) -> OperationResult:
    from osmosis_ai.cli import runs
    from osmosis_ai.cli.eval_runs.view import recorded_results
    from osmosis_ai.services.eval_runs.local_runs import RunWatcher
    from osmosis_ai.services.runs.lifecycle import watch_run
    from osmosis_ai.ui.run_numbers import score_json

    def standing(seen: WatchedRun) -> runs.RunStanding:
        progress, note = seen.progress, runs.evaluation_note(seen.progress)
        return runs.RunStanding(
            seen.run_name, seen.status, progress.completed, progress.total, "attempts", note
        )

    watcher = RunWatcher(directory)
    if not watcher.look().ended:
        looks = watch_run(watcher.look, pause=runs.pause, tell=current().note)
        runs.show_progress(looks, standing, again=f"Follow it: osmosis eval watch {quote(run)}")
    seen = watcher.look()
    progress, metrics = seen.progress, seen.metrics or {}
    finished, pending = seen.status == "finished", progress.total - progress.completed
    left = "" if finished else f" {pending} of {progress.total} attempts are pending."
    return OperationResult(
        operation="eval.watch",
        status="success" if finished else "partial",
        message=f"Evaluation run {'finished' if finished else 'stopped'}: {shown_path(seen.run_dir)}.{left}",
        resource={
            "run_name": seen.run_name,
            "local_run_id": seen.local_run_id,
            "output_path": str(seen.run_dir),
            "status": seen.status,
            "total_work_items": progress.total,
            "succeeded": progress.completed - progress.failed - progress.skipped,
            "failed": progress.failed,
            "skipped": progress.skipped,
            "pending": pending,
            "headline": score_json(seen.headline),
            "metrics": {**metrics.get("summary", {}), "estimates": metrics.get("estimates")},
        },
        blocks=recorded_results(seen),
        next_steps=[] if finished else ["Run the same 'osmosis eval run' command again to resume."],
    )


def logs(
    run: options.RunAnywhereArgument,
    limit: options.LinesOption = 50,
    cursor: options.CursorOption = None,
    follow: options.FollowOption = False,
    level: options.LevelOption = None,
) -> ListResult | StreamResult:
    """Show the log of a run, newest line last.

    With --follow --json, each line is a JSON object.

    Examples:
        osmosis eval logs amber-otter-42 --limit 200
        osmosis eval logs @last --level warning --follow
        osmosis eval logs platform:amber-otter-42 --follow
    """
    from osmosis_ai.cli.eval_runs.view import local_run_first
    from osmosis_ai.cli.runs import local_logs
    from osmosis_ai.services.downloaded_runs import require_types

    def local(directory: Path) -> ListResult | StreamResult:
        require_types(directory, "logs")
        older = f"osmosis eval logs {directory.name}"
        return local_logs(directory, older, limit=limit, cursor=cursor, follow=follow, level=level)

    return local_run_first(
        run,
        local=local,
        remote=lambda name: _view().logs(name, limit=limit, cursor=cursor, follow=follow, level=level),
    )


def stop(run: options.RunArgument, yes: options.YesOption = False) -> OperationResult:
    """Stop an evaluation on the platform.

    Finished attempts are kept.

    Examples:
        osmosis eval stop amber-otter-42
    """
    return _view().stop(run, yes=yes)


def download(
    run: options.RunArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Directory of the run (default: .osmosis/evals/RUN)."),
    ] = None,
    types: Annotated[
        str,
        typer.Option(
            "--type",
            help="Comma-separated: metrics, trajectories, artifacts, logs, or all; also journal, if the platform offers it.",
        ),
    ] = "metrics,trajectories",
    rows: Annotated[str | None, typer.Option(help='Only files of these dataset rows: "3,7,10-20".')] = None,
    overwrite: options.RefetchOption = False,
    yes: options.DownloadYesOption = False,
) -> OperationResult:
    """Download the files of a run.

    Existing files are not fetched again.

    Examples:
        osmosis eval download amber-otter-42
        osmosis eval download amber-otter-42 --type metrics --rows 0-9
    """
    from osmosis_ai.cli.runs import download_run
    from osmosis_ai.services.runs.download import EVAL_FILES, check_rows
    from osmosis_ai.services.runs.lifecycle import get_evaluation

    return download_run(
        run,
        EVAL_FILES,
        lambda client: get_evaluation(client, run).run,
        operation="eval.download",
        types=types,
        rows=check_rows(rows),
        output=output,
        overwrite=overwrite,
        yes=yes,
    )


def retry(
    run: options.RunArgument,
    watch: options.WatchOption = False,
    secrets_file: options.SecretsFileOption = None,
    max_cost: Annotated[
        float | None, typer.Option(help="Budget of the retry in US dollars; replaces the run's budget.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Budget of the retry in tokens; replaces the run's budget.")
    ] = None,
    yes: options.YesOption = False,
) -> OperationResult:
    """Retry the failed and skipped attempts of a run.

    The run is reopened under its own name and ID, with the same commit, rows and seeds. Scores are kept: only
    attempts without one run again. If you gave secrets with the submit, give them again.

    Examples:
        osmosis eval retry amber-otter-42 --watch
        osmosis eval retry amber-otter-42 --max-cost 5
    """
    from osmosis_ai.cli.runs import run_again_fields
    from osmosis_ai.services.eval_runs.info import plan_retry, submit_retry
    from osmosis_ai.workspace.secrets_file import read_secrets_file

    budget = options.parse_budget(max_cost, max_tokens, None)
    output = current()
    with platform_context(run) as context:
        values = read_secrets_file(secrets_file) if secrets_file else {}
        with output.status("Asking the platform"):
            planned = plan_retry(
                context.client, run, values, max_cost=budget.max_cost_usd, max_tokens=budget.max_tokens
            )
        check = planned.check
        rows: list[Row] = [
            ("Run", planned.name),
            ("Attempts", f"{planned.samples}: {planned.reasons}"),
            ("Commit", (check.commit_sha or "")[:12]),
            *planned.execution,
        ]
        if scopes := sorted(check.resolved_secret_scopes.items()):
            rows.append(("Secrets", ", ".join(f"{name} ({scope})" for name, scope in scopes)))
        output.show(Table(("", ""), rows, title="Retry"))
        output.confirm(
            f'Retry {planned.samples} attempts of evaluation run "{planned.name}"?',
            yes=yes,
            default=True,
            summary={label: str(value) for label, value in rows},
        )
        with output.status("Reopening the run"):
            reopened = submit_retry(context.client, planned)
        result = OperationResult(
            operation="eval.retry",
            message=f"Evaluation run reopened: {reopened.name}, {amount(check.samples, 'attempt')} will run again",
            resource={
                **run_again_fields(reopened),
                "samples": check.samples,
                "planned": check.planned,
                **context.resource(),
            },
            next_steps=formats.next_block(
                [
                    ("follow the run", f"osmosis eval watch {reopened.name}"),
                    ("show its results", f"osmosis eval info {reopened.name}"),
                ]
            ),
            next_steps_structured=[
                {"action": "eval_info", "name": reopened.name},
                {"action": "eval_watch", "name": reopened.name},
            ],
        )
        return _view().submitted(context.client, reopened, result, watch=watch)


def upload(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN_DIR",
            help="Name or directory of a finished local run.",
            autocompletion=complete_local_run,
        ),
    ],
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace an earlier upload of the run, which has changed since.")
    ] = False,
) -> OperationResult:
    """Upload a finished run of this machine to the platform.

    The upload includes conversations and artifacts. The platform marks the run as imported. Run the same command
    again to resume an interrupted upload.

    Examples:
        osmosis eval upload .osmosis/evals/baseline
        osmosis eval upload baseline --replace
    """
    from osmosis_ai.services.eval_runs.resolver import find_local_run

    directory = find_local_run(run)
    with platform_context() as context:
        uploaded = _upload(context.client, directory, overwrite=replace)
        steps: list[Mapping[str, Any]] = [{"action": "eval_info", "name": uploaded.name}]
        if url := uploaded.session.platform_url:
            steps.append({"action": "open_url", "url": url})
        return OperationResult(
            operation="eval.upload",
            message=_uploaded_message(uploaded),
            resource={**uploaded.resource(), **context.resource()},
            next_steps=_upload_steps(uploaded),
            next_steps_structured=steps,
        )


def _upload(client: PlatformClient, directory: Path, *, overwrite: bool = False) -> UploadedRun:
    from osmosis_ai.services.eval_runs.upload import upload_run

    with ExitStack() as stack:

        def shown(run: UploadableRun) -> Callable[[int], None]:
            progress = current().progress("Uploading", total=run.size_bytes, unit="bytes")
            return stack.enter_context(progress).update

        return upload_run(client, directory, progress=shown, replace=overwrite)


def _and_uploaded(operation: OperationResult, summary: RunSummary) -> OperationResult:
    """Upload a run and add the outcome to its result; a failed upload does not discard the result."""
    if not summary.complete:
        return replace(operation, message=f"{operation.message} Incomplete runs are not uploaded.")
    resource = dict(operation.resource or {})
    try:
        with platform_context() as context:
            uploaded = _upload(context.client, summary.run_dir)
    except OsmosisError as error:
        failed = {"error": {"code": error.code, "message": error.message}}
        again = f"osmosis eval upload {shlex.quote(shown_path(summary.run_dir))}"
        return replace(
            operation,
            status="partial",
            message=f"{operation.message}. The results are complete, but they were not uploaded: {error.message}",
            resource={**resource, "upload": failed},
            next_steps=[*operation.next_steps, f"Upload it again: {again}"],
        )
    fields = uploaded.resource()
    return replace(
        operation,
        message=f"{operation.message}. {_uploaded_message(uploaded)}",
        resource={**resource, "upload": fields, "platform_url": fields["platform_url"]},
        next_steps=[*operation.next_steps, *_upload_steps(uploaded)],
    )


def _uploaded_message(uploaded: UploadedRun) -> str:
    name = uploaded.run.manifest.run_name
    message = f"Uploaded local evaluation: {name}"
    return message if uploaded.name == name else f"{message} (as {uploaded.name}: the name was taken)"


def _upload_steps(uploaded: UploadedRun) -> list[str]:
    steps = [("show the uploaded run", f"osmosis eval info platform:{uploaded.name}")]
    if url := uploaded.session.platform_url:
        steps.append(("open in a browser", url))
    total = len(uploaded.run.files)
    sent = f"{formats.count(uploaded.sent)} of {formats.count(total)} files were sent"
    notes = [sent] if uploaded.sent < total else []
    if many := uploaded.run.unexplained:
        notes.append(f"Not uploaded: the errors of {amount(many, 'failed attempt')} without a conversation")
    return [*notes, *formats.next_block(steps)]


def resubmit(
    run: options.RunArgument,
    watch: options.WatchOption = False,
    secrets_file: options.SecretsFileOption = None,
    yes: options.YesOption = False,
) -> OperationResult:
    """Submit the config of an evaluation again.

    Changes since the first submission are shown before you confirm.

    Commit, dataset, secrets and the platform's version are compared. Supply the run's own secrets again.

    Examples:
        osmosis eval resubmit amber-otter-42
        osmosis eval resubmit amber-otter-42 --secrets-file secrets.env --watch --yes
    """
    return _view().resubmit(run, watch=watch, secrets_file=secrets_file, yes=yes)


def delete(run: options.RunArgument, yes: options.YesOption = False) -> OperationResult:
    """Delete an evaluation and its files from the platform.

    The evaluation must have ended.

    Examples:
        osmosis eval delete copper-finch
    """
    return _view().delete(run, yes=yes)


def export(
    run: Annotated[
        str,
        typer.Argument(
            help="Local run (name or directory) or platform run (name or ID).",
            autocompletion=complete_run_anywhere,
        ),
    ],
    export_format: Annotated[
        Literal["inspect", "jsonl", "parquet"],
        typer.Option(
            "--format",
            help="`inspect` for inspect_ai, or `jsonl` and `parquet` with one flat record per attempt.",
        ),
    ] = "jsonl",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Output file, or - for stdout (default: RUN.<format>)."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Skip the confirmation of a large download.")
    ] = False,
) -> OperationResult:
    """Export the attempts of a run for other tools.

    A platform run is downloaded first.

    Examples:
        osmosis eval export amber-otter-42 --format inspect
    """
    from osmosis_ai.services.eval_runs.export import export_run

    to_stdout = output == Path("-")
    if to_stdout and (export_format != "jsonl" or current().mode == "json"):
        raise typer.BadParameter("'-' needs '--format jsonl' without '--json'.", param_hint="'--output'")
    directory = _directory(run, yes=yes)
    done = export_run(directory, export_format, target=output, overwrite=overwrite)
    if done.progress != "finished":
        current().warn(f"the run is {done.progress}: only its results so far were exported")
    if to_stdout:
        raise typer.Exit
    return OperationResult(
        operation="eval.export",
        message=f"Exported {amount(done.samples, 'attempt')} of {done.run} to {shown_path(done.path)}",
        resource=asdict(done),
    )


def _directory(run: str, *, yes: bool) -> Path:
    """Return the directory of a local or downloaded run; a run of the platform is downloaded first."""
    from osmosis_ai.cli.eval_runs.view import local_run_first
    from osmosis_ai.cli.runs import fetch_files
    from osmosis_ai.services.eval_runs.export import needed_types
    from osmosis_ai.services.runs.lifecycle import get_evaluation

    def fetched(name: str) -> Path:
        with platform_context() as context:
            outcome = fetch_files(
                context, lambda client: (get_evaluation(client, name).run, needed_types(client)), yes=yes
            )
        if outcome.failures:
            raise OsmosisError(
                f"{amount(len(outcome.failures), 'file')} of '{name}' could not be downloaded: "
                f"{outcome.failures[0].path} {outcome.failures[0].error}.",
                hint=f"run `osmosis eval download {name}`, then export again",
            )
        return outcome.plan.directory

    return local_run_first(run, local=lambda directory: directory, remote=fetched)


app.command("run")(run)
app.command("rubric")(rubric)
app.command("submit")(submit)
app.command("list")(list_)
app.command("info")(info)
app.command("show")(show)
app.command("compare")(compare)
app.command("gate")(gate)
app.command("plan")(plan)
app.command("watch")(watch)
app.command("logs")(logs)
app.command("stop")(stop)
app.command("download")(download)
app.command("retry")(retry)
app.command("upload")(upload)
app.command("resubmit")(resubmit)
app.command("delete")(delete)
app.command("export")(export)
# The command explains extra arguments itself.
app.command(CLASSIC_EVAL, context_settings={"allow_extra_args": True})(eval_classic)
