"""`osmosis eval run`: an evaluation on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_ai.cli.options import (
    EvalConfigArgument,
    NoPreviewsOption,
    ServersOption,
    SliceOption,
    parse_duration,
)
from osmosis_ai.cli.output.context import Declined, current
from osmosis_ai.cli.output.results import OperationResult
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.evaluation.budget import Budget
    from osmosis_ai.services.eval_runs.run import EvalRunResult

WHERE, PACE, LIMITS = "Rows and results", "Pace and seeds", "Budget"
ISOLATION = "Isolation"


class NetworkChoice(str, Enum):
    """What a rollout reaches."""

    host = "host"
    none = "none"


def run(
    config: EvalConfigArgument,
    rows: Annotated[
        str | None, typer.Option(help='Rows of the file, from 0: "3,7,10-20".', rich_help_panel=WHERE)
    ] = None,
    dataset_file: Annotated[
        Path | None,
        typer.Option(help="Rows from this file instead of data/<dataset>.*.", rich_help_panel=WHERE),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the run; an existing one is continued.", rich_help_panel=WHERE)
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Directory of runs (default: .osmosis/evals).", rich_help_panel=WHERE
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over; an existing run is renamed.", rich_help_panel=WHERE)
    ] = False,
    retry_failed: Annotated[
        bool,
        typer.Option("--retry-failed", help="Also redo failed and skipped attempts.", rich_help_panel=WHERE),
    ] = False,
    salvage: Annotated[
        bool,
        typer.Option(
            "--salvage",
            help="Keep what is intact of a damaged journal, redo the rest.",
            rich_help_panel=WHERE,
        ),
    ] = False,
    max_in_flight: Annotated[
        int | None, typer.Option(min=1, help="Rollouts at once, at most.", rich_help_panel=PACE)
    ] = None,
    servers: ServersOption = None,
    seed: Annotated[int, typer.Option(help="Seed of the run.", rich_help_panel=PACE)] = 0,
    max_cost: Annotated[
        float | None,
        typer.Option(help="Stop dispatching after this many US dollars.", rich_help_panel=LIMITS),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Stop dispatching after this many tokens.", rich_help_panel=LIMITS)
    ] = None,
    max_time: Annotated[
        str | None,
        typer.Option(help="Stop dispatching after this long: 90, 90s, 10m, 2h.", rich_help_panel=LIMITS),
    ] = None,
    secrets_file: Annotated[
        str | None, typer.Option(help="NAME=value lines for [secrets].required; - reads stdin.")
    ] = None,
    rollout_port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="Port of the rollout's server (default: a socket in place of one)."
        ),
    ] = None,
    isolate: Annotated[
        bool,
        typer.Option("--isolate", help="Run the rollout in a sandbox (Linux).", rich_help_panel=ISOLATION),
    ] = False,
    network: Annotated[
        NetworkChoice,
        typer.Option(
            help="What the rollout reaches: what this machine does, or the model alone, in a sandbox.",
            rich_help_panel=ISOLATION,
        ),
    ] = NetworkChoice.host,
    upload: Annotated[
        bool, typer.Option("--upload", help="Upload the run to the platform once it is complete.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before spending.")] = False,
    slices: SliceOption = None,
    no_previews: NoPreviewsOption = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the run's log as it is written.")] = False,
) -> OperationResult:
    """Evaluate an agent on this machine; the same command continues an interrupted run.

    Ctrl-C once stops it gracefully, twice at once. Nothing finished is ever lost or repeated.

    Examples:
        osmosis eval run configs/eval/multiply.toml
        osmosis eval run configs/eval/multiply.toml --rows 0-4 --max-time 10m --yes
    """
    from osmosis_ai.supervision import keep_to_itself

    # First of all: its keys are not the agent's, which is another program of this user.
    keep_to_itself(os.environ)
    from osmosis_ai import event_loop
    from osmosis_ai.cli.eval_runs.live import LiveRun
    from osmosis_ai.cli.eval_runs.upload import and_uploaded, require_uploads_shown
    from osmosis_ai.services.eval_runs.run import EvalRunRequest, prepare_eval_run, run_eval
    from osmosis_ai.workspace.secrets_file import read_secrets_file

    request = EvalRunRequest(
        config=config,
        dataset_file=dataset_file,
        rows=rows,
        name=name,
        output=output,
        fresh=fresh,
        retry_failed=retry_failed,
        salvage=salvage,
        max_in_flight=max_in_flight,
        secret_values=read_secrets_file(secrets_file) if secrets_file else {},
        seed=seed,
        budget=_budget(max_cost, max_tokens, max_time),
        rollout_port=rollout_port,
        servers=servers,
        verbose=verbose,
        slices=tuple(slices or ()),
        previews=not no_previews,
        isolate=isolate,
        network=network.value,
    )
    prepared = prepare_eval_run(request, fetching=_fetching)
    if upload:
        require_uploads_shown()
    with LiveRun(current(), prepared, yes=yes) as live:
        result = event_loop.run(run_eval(prepared, live))
    if result is None:
        raise Declined("nothing was started")
    stop = result.summary.stop
    if stop is not None and stop.kind == "fault":
        current().warn(f"the run was halted: {stop.reason}", code="RUN_HALTED")
    return and_uploaded(_operation(result), result.summary) if upload else _operation(result)


def _budget(max_cost: float | None, max_tokens: int | None, max_time: str | None) -> Budget:
    from osmosis_ai.evaluation.budget import Budget

    max_time_s = parse_duration(max_time, "--max-time") if max_time else None
    try:
        return Budget(max_cost, max_tokens, max_time_s)
    except OsmosisError as error:
        raise typer.BadParameter(error.message) from None


@contextmanager
def _fetching(dataset: str, size: int | None) -> Iterator[Callable[[int], None]]:
    with current().progress(f"Fetching {dataset}", total=size, unit="bytes") as shown:
        yield shown.update


def _operation(result: EvalRunResult) -> OperationResult:
    from osmosis_ai.cli.eval_runs import tables

    summary = result.summary
    return OperationResult(
        operation="eval.run",
        status="success" if summary.complete else "partial",
        message=tables.message(summary),
        resource=_resource(result),
        blocks=tables.results(summary, result.slices),
        next_steps=tables.next_steps(result),
        next_steps_structured=tables.next_steps_structured(result),
    )


def _resource(result: EvalRunResult) -> dict[str, Any]:
    summary, prepared, metrics = result.summary, result.prepared, result.summary.metrics
    resource: dict[str, Any] = {
        "run_name": summary.run_name,
        "local_run_id": summary.local_run_id,
        "output_path": str(summary.run_dir),
        "dataset_source": prepared.dataset.source,
        "total_work_items": summary.total_work_items,
        "dispatched": summary.dispatched,
        "succeeded": summary.succeeded,
        "failed": summary.failed,
        "skipped": summary.skipped,
        "pending": summary.pending,
        "resumed": summary.resumed,
        "cancelled": summary.cancelled,
        "duration_ms": summary.duration_ms,
        "headline": summary.headline.to_json(),
        "metrics": {**metrics.summary, "estimates": metrics.estimates.model_dump(mode="json")},
        "failed_rows": [failure.to_json() for failure in summary.failures],
        "git": {"identity": None, "remote_url": prepared.origin},
        "workspace_directory": str(prepared.workspace.root),
    }
    if prepared.slices:
        resource["slices"] = [each.data() for each in result.slices]
    if summary.stop is not None:
        resource["stopped"] = {"kind": summary.stop.kind, "reason": summary.stop.reason}
    return resource
