"""`osmosis eval watch`: follow a run from another terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult

if TYPE_CHECKING:
    from osmosis_ai.services.eval_watch import WatchedRun

_REFRESH_S = 0.5


def watch(
    run: Annotated[str, typer.Argument(help="Name of a run, or its directory.", show_default=False)],
) -> OperationResult:
    """Follow a run of this machine until it ends. Ctrl-C stops watching, not the run."""
    from osmosis_ai.cli.eval.live import describe
    from osmosis_ai.services.eval_watch import RunWatcher, find_run

    watcher = RunWatcher(find_run(run))
    seen = watcher.look()
    if seen.status == "running":
        with current().progress(seen.run_name, total=seen.progress.total, unit="rollouts") as bar:
            for seen in watcher.follow(pause=lambda: time.sleep(_REFRESH_S)):
                bar.update(seen.progress.completed, note=describe(seen.progress))
    return _operation(seen)


def _operation(seen: WatchedRun) -> OperationResult:
    from osmosis_ai.cli.eval import tables

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
        message=f"Evaluation run {'finished' if finished else 'stopped'}: {tables.shown_path(seen.run_dir)}.{left}",
        resource=_resource(seen),
        blocks=tables.recorded_results(seen),
        next_steps=[] if finished else ["Resume: run the command that started it again"],
    )


def _resource(seen: WatchedRun) -> dict[str, Any]:
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
        "metrics": {**metrics.get("summary", {}), "estimates": metrics.get("estimates")},
    }
