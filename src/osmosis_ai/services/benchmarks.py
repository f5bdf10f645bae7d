"""Benchmarks of the hosted platform: the catalog and the runs of agents on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osmosis_ai.api.capabilities import Capability
from osmosis_ai.api.client import PlatformClient, segment
from osmosis_ai.api.models.benchmarks import (
    BenchmarkDetail,
    BenchmarkList,
    BenchmarkRun,
    BenchmarkRunDetail,
    BenchmarkRunList,
    SubmittedBenchmarkRun,
)
from osmosis_ai.config.benchmark import BenchmarkConfig
from osmosis_ai.redaction import exposure_warnings
from osmosis_ai.services.capabilities import require_offered
from osmosis_ai.services.context import PlatformContext
from osmosis_ai.services.listing import fetch_listing
from osmosis_ai.services.runs.lifecycle import jsonable
from osmosis_ai.services.runs.secrets import (
    SecretSource,
    explaining_failures,
    plan_run_secrets,
    supplied_values,
    unused_values,
)
from osmosis_ai.workspace.config_files import load_benchmark_config

_BENCHMARKS = "/api/cli/benchmarks"
_RUNS = "/api/cli/benchmark-runs"
ENDED = ("finished", "failed", "stopped")


@dataclass(frozen=True)
class PreparedBenchmarkRun:
    """A benchmark run that is ready to be submitted; ``body`` may contain values of secrets."""

    config: BenchmarkConfig
    body: Mapping[str, Any] = field(repr=False)
    secrets: Mapping[str, SecretSource]
    warnings: tuple[str, ...]

    @property
    def advice(self) -> str | None:
        """Return why results are not comparable with published ones."""
        if self.config.experiment.benchmark != "hle" or self.config.tasks.task_set == "parity":
            return None
        return 'published results on hle use its parity tasks: set task_set = "parity" in [tasks].'


def list_benchmarks(client: PlatformClient, *, limit: int, everything: bool) -> BenchmarkList:
    return fetch_listing(client.pages(_BENCHMARKS, BenchmarkList), limit=limit, everything=everything)


def describe_benchmark(client: PlatformClient, key: str, *, limit: int, everything: bool) -> dict[str, Any]:
    """Return a benchmark by key, name or id, with the workspace's runs on it, as the JSON output shows it."""
    detail = client.get(f"{_BENCHMARKS}/{segment(key)}", model=BenchmarkDetail)
    runs = list_runs(client, benchmark=detail.benchmark.id, limit=limit, everything=everything)
    return {
        **jsonable(detail.model_dump(mode="json")),
        "runs": [listed_run(run) for run in runs.items],
        "runs_total_count": runs.total_count,
        "runs_has_more": runs.has_more,
        "runs_next_offset": runs.next_offset,
    }


def list_runs(
    client: PlatformClient, *, limit: int, everything: bool, benchmark: str | None = None
) -> BenchmarkRunList:
    """Return the workspace's runs, optionally of one benchmark (its id)."""
    pages = client.pages(_RUNS, BenchmarkRunList, benchmark=benchmark)
    return fetch_listing(pages, limit=limit, everything=everything)


def get_run(client: PlatformClient, name_or_id: str) -> BenchmarkRunDetail:
    return client.get(f"{_RUNS}/{segment(name_or_id)}", model=BenchmarkRunDetail)


def describe_run(client: PlatformClient, name_or_id: str) -> dict[str, Any]:
    detail = get_run(client, name_or_id)
    return {**jsonable(detail.model_dump(mode="json")), "benchmark_run": _run_item(detail.benchmark_run)}


def listed_run(run: BenchmarkRun) -> dict[str, Any]:
    if run.expected_results is None:
        return _run_item(run)
    done = run.ingested_results or 0
    progress = {"completed": done, "total": max(run.expected_results, done), "unit": "results"}
    return {**_run_item(run), "progress": progress}


def prepare_run(
    context: PlatformContext, path: Path, secret_values: Mapping[str, str]
) -> PreparedBenchmarkRun:
    """Check everything that a submit needs; ``secret_values`` are for names of `[secrets].required`."""
    config = load_benchmark_config(path, context.workspace)
    names = config.secrets.required
    supplied = supplied_values(names, secret_values)
    context.client.hide(supplied.values())
    require_offered(context.client, Capability.BENCHMARKS)
    secrets, doubt = plan_run_secrets(context.client, config.referenced_secrets, supplied, suppliable=names)
    doubts = (doubt, unused_values(names, secret_values), *exposure_warnings(supplied))
    warnings = tuple(filter(None, doubts))
    return PreparedBenchmarkRun(config, config.payload(supplied), secrets, warnings)


def submit_run(client: PlatformClient, body: Mapping[str, Any]) -> SubmittedBenchmarkRun:
    with explaining_failures("osmosis benchmark runs list"):
        return client.post(_RUNS, body, model=SubmittedBenchmarkRun)


def _run_item(run: BenchmarkRun) -> dict[str, Any]:
    left_out = {"error", "waits"} if run.platform_url else {"error", "waits", "platform_url"}
    item: dict[str, Any] = jsonable(run.model_dump(mode="json", exclude=left_out))
    return item
