"""Benchmarks and development servers, which a self-hosted platform does not offer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from osmosis_ai.api.models.benchmarks import BenchmarkList, BenchmarkRunList
from osmosis_ai.api.models.dev_servers import DevServerList
from osmosis_ai.platform.http.authentication import require_scope
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.http.paging import Paging
from osmosis_ai.platform.http.routing import api_router

_BENCHMARKS = (
    "a self-hosted platform does not offer benchmarks. "
    "Evaluate the agent on your own dataset: `osmosis eval submit CONFIG`."
)
_DEV_SERVERS = (
    "a self-hosted platform does not offer development servers. "
    "Run the agent on your machine: `osmosis eval run CONFIG`."
)
_OF_A_RUN = (
    ("GET", ""),
    ("GET", "/logs"),
    ("POST", "/stop"),
    ("GET", "/outputs/manifest"),
    ("POST", "/outputs/download-urls"),
)
_OF_A_SERVER = (("DELETE", ""), ("GET", "/logs"), ("GET", "/logs/stream"))

router = api_router("/api/cli", checks=[require_scope])


@router.get("/benchmarks")
def list_benchmarks(page: Paging) -> BenchmarkList:
    """List the benchmarks. The list is always empty."""
    return BenchmarkList(benchmarks=[], **page.keys(0, 0))


@router.get("/benchmark-runs")
def list_benchmark_runs(page: Paging) -> BenchmarkRunList:
    """List the benchmark runs. The list is always empty."""
    return BenchmarkRunList(benchmark_runs=[], **page.keys(0, 0))


@router.get("/dev-rollout-server")
def list_dev_servers(page: Paging) -> DevServerList:
    """List the development servers. The list is always empty."""
    return DevServerList(dev_rollout_servers=[], **page.keys(0, 0))


@router.post("/benchmark-runs")
def submit_benchmark_run() -> dict[str, Any]:
    """Reply that benchmarks are not supported."""
    raise ApiError(403, "NOT_OFFERED", _BENCHMARKS)


@router.post("/dev-rollout-server")
def start_dev_server() -> dict[str, Any]:
    """Reply that development servers are not supported."""
    raise ApiError(403, "NOT_OFFERED", _DEV_SERVERS)


def _unknown(what: str) -> Callable[..., dict[str, Any]]:
    def refuse(name: str) -> dict[str, Any]:
        """Reply that the feature is not supported."""
        raise ApiError(
            404, "NOT_FOUND", f"there is no {what} '{name}': self-hosted platforms do not support {what}s."
        )

    return refuse


router.add_api_route("/benchmarks/{name}", _unknown("benchmark"), methods=["GET"])
for _method, _below in _OF_A_RUN:
    router.add_api_route(f"/benchmark-runs/{{name}}{_below}", _unknown("benchmark run"), methods=[_method])
for _method, _below in _OF_A_SERVER:
    router.add_api_route(
        f"/dev-rollout-server/{{name}}{_below}", _unknown("development server"), methods=[_method]
    )
