"""`osmosis eval watch`: follow a run from another terminal."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_ai.cli.name_completion import complete_run_anywhere
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult
from osmosis_ai.errors import NotFoundError, OsmosisError

if TYPE_CHECKING:
    from pathlib import Path

    from osmosis_ai.cli.runs.following import RunStanding
    from osmosis_ai.services.eval_runs.watch import WatchedRun


def watch(
    run: Annotated[
        str,
        typer.Argument(
            help="Name of a run of this machine, or its directory; or a run of the platform, by name or id.",
            show_default=False,
            autocompletion=complete_run_anywhere,
        ),
    ],
) -> OperationResult:
    """Follow a run until it ends. Ctrl-C stops watching, not the run.

    Examples:
        osmosis eval watch amber-otter-42
    """
    from osmosis_ai.services.eval_runs.resolver import find_local_run, name_elsewhere

    try:
        directory = find_local_run(run)
    except NotFoundError as missing:
        return _watch_platform(name_elsewhere(run, missing), missing)
    return _watch_local(run, directory)


def _watch_local(run: str, directory: Path) -> OperationResult:
    from osmosis_ai.cli.runs import following
    from osmosis_ai.services.eval_runs.watch import RunWatcher
    from osmosis_ai.services.runs.lifecycle import watch_run

    watcher = RunWatcher(directory)
    if not watcher.look().ended:
        looks = watch_run(watcher.look, pause=following.pause, tell=current().note)
        following.show(looks, _standing, again=f"osmosis eval watch {quote(run)}")
    return _local_operation(watcher.look())


def _standing(seen: WatchedRun) -> RunStanding:
    from osmosis_ai.cli.runs.following import RunStanding, evaluation_note

    progress, note = seen.progress, evaluation_note(seen.progress)
    return RunStanding(seen.run_name, seen.status, progress.completed, progress.total, "rollouts", note)


def _watch_platform(run: str, missing: NotFoundError) -> OperationResult:
    """Follow a run of the platform; without a platform the run is ``missing``, and with one perhaps too."""
    from osmosis_ai.cli.eval_runs.view import VIEW
    from osmosis_ai.services.eval_runs.watch import run_nowhere

    try:
        return VIEW.watch(run)
    except OsmosisError as error:
        raise run_nowhere(run, missing, error) from None


def _local_operation(seen: WatchedRun) -> OperationResult:
    from osmosis_ai.cli.eval_runs import tables
    from osmosis_ai.cli.output import formats

    finished = seen.status == "finished"
    progress = seen.progress
    left = (
        ""
        if finished
        else f" {progress.total - progress.completed} of {progress.total} work items are pending."
    )
    return OperationResult(
        operation="eval.watch",
        status="success" if finished else "partial",
        message=f"Evaluation run {'finished' if finished else 'stopped'}: {formats.shown_path(seen.run_dir)}.{left}",
        resource=_local_resource(seen),
        blocks=tables.recorded_results(seen),
        next_steps=[] if finished else ["Resume: run the command that started it again"],
    )


def _local_resource(seen: WatchedRun) -> dict[str, Any]:
    progress, metrics = seen.progress, seen.metrics or {}
    return {
        "run_name": seen.run_name,
        "local_run_id": seen.local_run_id,
        "output_path": str(seen.run_dir),
        "status": seen.status,
        "total_work_items": progress.total,
        "succeeded": progress.completed - progress.failed - progress.skipped,
        "failed": progress.failed,
        "skipped": progress.skipped,
        "pending": progress.total - progress.completed,
        "headline": seen.headline.to_json() if seen.headline is not None else None,
        "metrics": {**metrics.get("summary", {}), "estimates": metrics.get("estimates")},
    }
