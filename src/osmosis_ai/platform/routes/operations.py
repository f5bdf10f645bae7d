"""Health, readiness and metrics, for monitoring; and features that only the hosted platform offers."""

from __future__ import annotations

import hmac
from typing import Annotated, Any

from fastapi import Header, Response
from sqlalchemy import text
from starlette.responses import JSONResponse

from osmosis_ai._version import __version__
from osmosis_ai.api.models.benchmarks import BenchmarkList, BenchmarkRunList
from osmosis_ai.api.models.dev_servers import DevServerList
from osmosis_ai.platform.http.authentication import Services, require_scope, unauthorized
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.http.routing import Paging, api_router
from osmosis_ai.platform.operations import CONTENT_TYPE

router = api_router()


@router.get("/health")
async def health(services: Services) -> dict[str, str]:
    """Return 200 if the database can be read."""
    # On SQLite without one of the few threads that requests have: a store that does not answer may hold them all.
    # PostgreSQL is asked from one of them.
    await services.db.read(lambda session: session.execute(text("SELECT 1")))
    return {"status": "ok", "version": __version__}


@router.get("/ready", response_class=JSONResponse)
def ready(services: Services) -> Response:
    """Return 200 if database, schema and file store are usable, otherwise 503 with the reasons."""
    problems = services.readiness.problems()
    is_ready = not any(problems.values())
    return JSONResponse(
        {
            "status": "ready" if is_ready else "not ready",
            "checks": {name: problem or "ok" for name, problem in problems.items()},
        },
        status_code=200 if is_ready else 503,
        headers={"Cache-Control": "no-store"},
    )


@router.get("/metrics", response_class=Response)
def metrics(services: Services, authorization: Annotated[str, Header()] = "") -> Response:
    """Return Prometheus metrics; requires `OSMOSIS_METRICS_TOKEN`."""
    wanted = services.config.metrics_token
    if not wanted:
        message = "metrics are disabled: the operator enables them with OSMOSIS_METRICS_TOKEN."
        raise ApiError(404, "METRICS_OFF", message)
    given = authorization.partition(" ")[2].strip()
    if not hmac.compare_digest(given.encode(), wanted.encode()):
        message = "metrics require OSMOSIS_METRICS_TOKEN as a bearer token."
        raise unauthorized("METRICS_TOKEN_REQUIRED", message)
    return Response(services.metrics.text(), media_type=CONTENT_TYPE)


# -- benchmarks and development servers ------------------------------------------------------------------

_hosted = api_router("/api/cli", checks=[require_scope])


@_hosted.get("/benchmarks")
def list_benchmarks(page: Paging) -> BenchmarkList:
    """List the benchmarks. The list is always empty."""
    return BenchmarkList(benchmarks=[], **page.keys(0, 0))


@_hosted.get("/benchmark-runs")
def list_benchmark_runs(page: Paging) -> BenchmarkRunList:
    """List the benchmark runs. The list is always empty."""
    return BenchmarkRunList(benchmark_runs=[], **page.keys(0, 0))


@_hosted.get("/dev-rollout-server")
def list_dev_servers(page: Paging) -> DevServerList:
    """List the development servers. The list is always empty."""
    return DevServerList(dev_rollout_servers=[], **page.keys(0, 0))


@_hosted.post("/benchmark-runs")
def submit_benchmark_run() -> dict[str, Any]:
    """Reply that benchmarks are not supported."""
    instead = "Evaluate the agent on your own dataset: `osmosis eval submit CONFIG`."
    raise ApiError(403, "NOT_OFFERED", f"a self-hosted platform does not offer benchmarks. {instead}")


@_hosted.post("/dev-rollout-server")
def start_dev_server() -> dict[str, Any]:
    """Reply that development servers are not supported."""
    instead = "Run the agent on your machine: `osmosis eval run CONFIG`."
    raise ApiError(
        403, "NOT_OFFERED", f"a self-hosted platform does not offer development servers. {instead}"
    )


def _refuse_every(what: str, *requests: str) -> None:
    """Add routes that find no ``what`` under any name."""

    def refuse(name: str) -> dict[str, Any]:
        """Reply that the feature is not supported."""
        message = f"there is no {what} '{name}': self-hosted platforms do not support {what}s."
        raise ApiError(404, "NOT_FOUND", message)

    for request in requests:
        method, path = request.split()
        _hosted.add_api_route(path, refuse, methods=[method])


_RUN, _SERVER = "/benchmark-runs/{name}", "/dev-rollout-server/{name}"
_refuse_every("benchmark", "GET /benchmarks/{name}")
_refuse_every("benchmark run", *(f"GET {_RUN}{below}" for below in ("", "/logs", "/outputs/manifest")))
_refuse_every("benchmark run", *(f"POST {_RUN}{below}" for below in ("/stop", "/outputs/download-urls")))
_refuse_every("development server", *(f"GET {_SERVER}{below}" for below in ("/logs", "/logs/stream")))
_refuse_every("development server", f"DELETE {_SERVER}")
router.include_router(_hosted)
