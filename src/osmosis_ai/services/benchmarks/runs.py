"""Runs of agents on benchmarks: listed, described, their log read, stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from osmosis_ai.services.runs.finite import jsonable

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.wire.base import LogEntry
    from osmosis_ai.api.wire.benchmarks import BenchmarkRun, BenchmarkRunDetail
    from osmosis_ai.services.listing import Listing

ENDED = frozenset({"finished", "failed", "stopped"})
"""The statuses of a run that will not change any more."""

_KEYS = (
    *("id", "name", "status", "benchmark_id", "benchmark_name", "agent_count", "best_pass_at_1"),
    *("ingested_results", "expected_results", "creator_name", "creator_email"),
    *("created_at", "started_at", "completed_at"),
)


@dataclass(frozen=True)
class StoppedRun:
    """What came of a stop; ``ended`` is the status of a run that had ended before."""

    run: BenchmarkRun
    ended: str | None

    def resource(self) -> dict[str, Any]:
        """Return the run as scripts see it after the stop."""
        return {"id": self.run.id, "name": run_name(self.run), "status": self.ended or "stopped"}


def list_runs(
    client: PlatformClient, *, limit: int, everything: bool, benchmark: str | None = None
) -> Listing[BenchmarkRun]:
    """Return the workspace's runs, of all benchmarks or of the one with this id; the rest as in ``fetch_listing``."""
    from osmosis_ai.services.listing import fetch_listing

    return fetch_listing(
        lambda size, offset: client.benchmark_runs.list(limit=size, offset=offset, benchmark=benchmark),
        lambda page: page.benchmark_runs,
        limit=limit,
        everything=everything,
    )


def run_data(detail: BenchmarkRunDetail) -> dict[str, Any]:
    """Return a run in full as scripts see it."""
    return {
        "benchmark_run": _own_fields(detail.benchmark_run),
        "configuration": jsonable(detail.configuration),
        "agents": jsonable(detail.agents),
        "progress": detail.progress.model_dump() if detail.progress is not None else None,
        "totals": jsonable(detail.totals),
        "agent_metrics": jsonable(detail.agent_metrics),
    }


def run_item(run: BenchmarkRun) -> dict[str, Any]:
    """Return a listed run as scripts see it."""
    progress = run_progress(run.ingested_results, run.expected_results)
    item = _own_fields(run)
    return item if progress is None else {**item, "progress": {**progress, "unit": "results"}}


def run_progress(ingested: int | None, expected: int | None) -> dict[str, int] | None:
    """Return how many results there are of how many, never more than all; None while the platform does not say."""
    if expected is None:
        return None
    return {"completed": ingested or 0, "total": max(expected, ingested or 0)}


def run_name(run: BenchmarkRun) -> str | None:
    """Return what a run is called."""
    return run.name or run.benchmark_run_name


def follow_run_log(
    client: PlatformClient, name: str, *, first: int, pause: Callable[[], None]
) -> Iterator[LogEntry]:
    """Yield the last ``first`` lines of a run's log, then every new one until the run has ended.

    Args:
        client: the platform.
        name: the run's name or id.
        first: how many lines to begin with.
        pause: waits between two looks.
    """
    from osmosis_ai.services.log_following import LogFollower, follow_log

    runs = client.benchmark_runs
    run_id = runs.get(name).benchmark_run.id
    follower = LogFollower(lambda size, cursor: runs.logs(run_id, limit=size, cursor=cursor), first=first)
    return follow_log(follower, ended=lambda: runs.get(run_id).benchmark_run.status in ENDED, pause=pause)


def stop_run(client: PlatformClient, run: BenchmarkRun) -> StoppedRun:
    """Ask for a run to stop; one that has ended stays as it is.

    Args:
        client: the platform.
        run: as the platform describes it, so that what is stopped is what the user was asked about.

    Raises:
        PlatformError: as every call.
    """
    if run.status in ENDED:
        return StoppedRun(run, run.status)
    client.benchmark_runs.stop(run.id)
    return StoppedRun(run, None)


def _own_fields(run: BenchmarkRun) -> dict[str, Any]:
    reference = run.benchmark
    known = {
        **jsonable(run.model_dump(mode="json")),
        "name": run_name(run),
        "benchmark_id": run.benchmark_id or (reference.id if reference else None),
        "benchmark_name": run.benchmark_name or (reference.name if reference else None),
    }
    fields = {key: known[key] for key in _KEYS}
    return {**fields, "platform_url": run.platform_url} if run.platform_url else fields
