"""Health, readiness and metrics, for supervisors, proxies and monitoring."""

from __future__ import annotations

import hmac
from typing import Annotated

from fastapi import Header, Response
from sqlalchemy import text
from starlette.responses import JSONResponse

from osmosis_ai._version import __version__
from osmosis_ai.platform.http.authentication import Services
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.http.routing import api_router
from osmosis_ai.platform.metrics import CONTENT_TYPE

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
        raise ApiError(
            404, "METRICS_OFF", "metrics are disabled: the operator enables them with OSMOSIS_METRICS_TOKEN."
        )
    given = authorization.partition(" ")[2].strip()
    if not hmac.compare_digest(given.encode(), wanted.encode()):
        raise ApiError(
            401,
            "METRICS_TOKEN_REQUIRED",
            "metrics require OSMOSIS_METRICS_TOKEN as a bearer token.",
            headers={"WWW-Authenticate": "Bearer"},
        )
    return Response(services.metrics.text(), media_type=CONTENT_TYPE)
