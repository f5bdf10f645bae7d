"""The benchmarks that agents can be run on: listed, and described with their leaderboard and their runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from osmosis_ai.services.runs.finite import jsonable

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.wire.benchmarks import (
        Benchmark,
        BenchmarkDetail,
        BenchmarkRun,
        DescribedBenchmark,
        ListedBenchmark,
    )
    from osmosis_ai.services.listing import Listing

_SHARED = (
    *("id", "name", "description", "source_type", "source_ref", "source_url", "task_count", "category_count"),
    *("task_sets", "sync_status", "synced_task_count", "sync_error", "platform_url"),
)
_LISTED = (
    *("run_count", "running_count", "last_run_at", "last_run_status", "last_run_name", "creator_name"),
)
_DESCRIBED = (
    *("runner_family", "supports_harness", "requires_harness", "default_harness", "requires_judge_model"),
    *("requires_judge_api_key", "judge_model_default", "pass_threshold", "categories", "tasks"),
    *("unavailable_tasks",),
)


@dataclass(frozen=True)
class BenchmarkDescription:
    """A benchmark in full, with the workspace's runs on it."""

    detail: BenchmarkDetail
    runs: Listing[BenchmarkRun]

    @property
    def benchmark(self) -> DescribedBenchmark:
        """What the platform says of it."""
        return self.detail.benchmark

    def data(self) -> dict[str, Any]:
        """Return it as scripts see it."""
        from osmosis_ai.services.benchmarks.runs import run_item

        return {
            "benchmark": _item(self.benchmark, (*_SHARED, *_DESCRIBED)),
            "leaderboard": jsonable(self.detail.leaderboard),
            "runs": [run_item(run) for run in self.runs.items],
            "runs_total_count": self.runs.total_count,
            "runs_has_more": self.runs.has_more,
            "runs_next_offset": self.runs.next_offset,
        }


def list_benchmarks(client: PlatformClient, *, limit: int, everything: bool) -> Listing[ListedBenchmark]:
    """Return the catalogue; arguments as in ``fetch_listing``."""
    from osmosis_ai.services.listing import fetch_listing

    return fetch_listing(
        lambda size, offset: client.benchmarks.list(limit=size, offset=offset),
        lambda page: page.benchmarks,
        limit=limit,
        everything=everything,
    )


def describe_benchmark(
    client: PlatformClient, key: str, *, limit: int, everything: bool
) -> BenchmarkDescription:
    """Return a benchmark and its runs; ``limit`` and ``everything`` are for the runs, as in ``fetch_listing``.

    Raises:
        PlatformError: no such benchmark, or as every call.
    """
    from osmosis_ai.services.benchmarks.runs import list_runs

    detail = client.benchmarks.get(key)
    runs = list_runs(client, benchmark=detail.benchmark.id, limit=limit, everything=everything)
    return BenchmarkDescription(detail, runs)


def benchmark_item(benchmark: ListedBenchmark) -> dict[str, Any]:
    """Return a benchmark of the catalogue as scripts see it."""
    return _item(benchmark, (*_SHARED, *_LISTED))


def _item(benchmark: Benchmark, keys: tuple[str, ...]) -> dict[str, Any]:
    known = jsonable(benchmark.model_dump(mode="json"))
    return dict(_with_key({key: known[key] for key in keys}))


def _with_key(item: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keys of an item, and after its name the key by which commands take it."""
    for name, value in item.items():
        yield name, value
        if name == "name":
            yield "key", item["source_ref"]
