"""Runs of the platform, of either kind: when they end, what they say, and stopping them."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.resources.eval_runs import EvalRuns
    from osmosis_ai.api.resources.training_runs import TrainingRuns
    from osmosis_ai.api.wire.base import LogEntry, LogPage
    from osmosis_ai.api.wire.runs import Run

RunKind = Literal["eval", "train"]
"""A kind of run, by the name of its command group."""

TERMINAL: Mapping[RunKind, frozenset[str]] = {
    "eval": frozenset({"finished", "failed", "stopped"}),
    "train": frozenset({"finished", "failed", "crashed", "stopped", "killed", "unknown"}),
}
"""The statuses of a run that will not change any more."""


def run_log(client: PlatformClient, kind: RunKind, name: str, *, limit: int, cursor: str | None) -> LogPage:
    """Return a page of a run's log, the oldest line first."""
    return _runs(client, kind).logs(name, limit=limit, cursor=cursor)


def follow_run_log(
    client: PlatformClient, kind: RunKind, name: str, *, first: int, pause: Callable[[], None]
) -> Iterator[LogEntry]:
    """Yield the last ``first`` lines of a run's log, then every new one until the run has ended.

    Args:
        client: the platform.
        kind: of the run.
        name: the run's name or id.
        first: how many lines to begin with.
        pause: waits between two looks.
    """
    from osmosis_ai.services.log_following import LogFollower, follow_log

    run_id = _run(client, kind, name).id
    runs = _runs(client, kind)
    follower = LogFollower(lambda size, cursor: runs.logs(run_id, limit=size, cursor=cursor), first=first)
    return follow_log(
        follower, ended=lambda: _run(client, kind, run_id).status in TERMINAL[kind], pause=pause
    )


def stop_run(client: PlatformClient, kind: RunKind, name: str) -> str | None:
    """Ask for a run to stop, and return the status it had before when it had ended.

    Raises:
        PlatformError: no such run, or as every call.
    """
    from osmosis_ai.api.http_errors import PlatformError

    try:
        status = _runs(client, kind).stop(name).status
    except PlatformError as error:
        ended = error.body.get("status")
        if error.status != 409 or ended not in TERMINAL[kind]:
            raise
        return str(ended)
    return status if status in TERMINAL[kind] - {"stopped"} else None


def elapsed_s(run: Run, *, under_way: bool) -> float | None:
    """Return how many seconds a run has taken by its clock, so far or in all.

    Returns:
        None before it has started, and when it has ended at no known time.
    """
    if run.started_at is None:
        return None
    end = run.completed_at or (datetime.now(timezone.utc) if under_way else None)
    return (end - run.started_at).total_seconds() if end is not None else None


def _runs(client: PlatformClient, kind: RunKind) -> EvalRuns | TrainingRuns:
    return client.eval_runs if kind == "eval" else client.training_runs


def _run(client: PlatformClient, kind: RunKind, name: str) -> Run:
    if kind == "eval":
        return client.eval_runs.get(name).eval_run
    return client.training_runs.get(name).training_run
