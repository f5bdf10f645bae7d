"""HTTP endpoints of a served agent. Keys are checked before a request's body is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from starlette.requests import ClientDisconnect

from ..api_key import validate_api_key
from ..schemas import InitResponse, RolloutRequest
from .admission import RefusedRequest, RolloutAdmission
from .state import AppState

_BODY = {"content": {"application/json": {"schema": RolloutRequest.model_json_schema()}}, "required": True}
_ANSWERS: dict[int | str, dict[str, Any]] = {
    202: {"model": InitResponse, "description": "The rollout runs, or ran: its tools."},
    401: {"description": "The key is missing or wrong."},
    413: {"description": "The request is too large."},
    422: {"description": "The request is not valid."},
    429: {"description": "There is no room; `Retry-After` says when to come again."},
    500: {"description": "The agent's tools cannot be had."},
}


def add_routes(app: FastAPI, state: AppState, admission: RolloutAdmission, api_key: str | None) -> None:
    """Add the endpoints of a served agent to ``app``.

    Args:
        app: The application.
        state: Reported by the health endpoints.
        admission: Handles requests for rollouts.
        api_key: Key that callers must send; None disables authentication.
    """

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return _health(state)

    @app.get("/platform/health")
    async def platform_health(request: Request) -> Response:
        if api_key is None:
            return _reply(404, {"detail": "Not Found"})
        if not _may_enter(request.headers, api_key):
            return _no_entry()
        return _reply(200, _health(state))

    @app.post("/v1/rollout/init", status_code=202, responses=_ANSWERS, openapi_extra={"requestBody": _BODY})
    async def init(request: Request) -> Response:
        if api_key is not None and not _may_enter(request.headers, api_key):
            return _no_entry()
        try:
            answer = await admission.init(request.headers, request.stream())
        except RefusedRequest as refusal:
            return _reply(refusal.status, {"detail": refusal.detail}, refusal.headers)
        except ClientDisconnect:
            return _reply(400, {"detail": "the request did not arrive whole"})
        return Response(answer, 202, media_type="application/json")


def _health(state: AppState) -> dict[str, Any]:
    return {
        "status": "healthy",
        "agent_loop": state.agent_loop_name,
        "active_rollouts": state.active_count,
        "completed_rollouts": state.completed_count,
    }


def _may_enter(headers: Mapping[str, str], api_key: str) -> bool:
    """Return whether the right key was sent, as `Bearer <key>` or bare."""
    sent = headers.get("authorization", "")
    scheme, _, rest = sent.partition(" ")
    return validate_api_key(rest.strip() if scheme.lower() == "bearer" else sent.strip(), api_key)


def _no_entry() -> Response:
    return _reply(401, {"detail": "Invalid or missing API key"}, {"WWW-Authenticate": "Bearer"})


def _reply(status: int, content: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(content), status, headers, "application/json")
