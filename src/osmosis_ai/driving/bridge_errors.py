"""Failures in the shape OpenAI's clients understand, with a status that makes them do the right thing.

A permanent failure passes with the provider's own status. What was retried in vain is a 429, 502 or
504 that says ``x-should-retry: false``: OpenAI's clients would otherwise try twice more.
"""

from __future__ import annotations

from aiohttp import web

from osmosis_ai.llm.errors import Category, ModelCallError
from osmosis_ai.llm.wire_json import dumps

_OWN_STATUS: dict[Category, int] = {
    "rate_limit": 429,
    "timeout": 504,
    "connection": 502,
    "server": 502,
    "invalid_reply": 502,
}
_DEFAULT_STATUS: dict[Category, int] = {
    "auth": 401,
    "not_found": 404,
    "bad_request": 400,
    "context_length": 400,
}
_TYPES: dict[Category, str] = {
    "rate_limit": "rate_limit_error",
    "auth": "authentication_error",
    "not_found": "not_found_error",
    "bad_request": "invalid_request_error",
    "context_length": "invalid_request_error",
}


class RolloutClosedError(Exception):
    """The rollout ended while the call was under way."""


class RefusedCallError(Exception):
    """A call that is not made, and the reply to it."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def refusal(status: int, message: str, code: str, *, kind: str = "invalid_request_error") -> web.Response:
    """Return an error of the bridge's own."""
    return _response(status, {"message": message, "type": kind, "param": None, "code": code})


def error_response(error: Exception) -> web.Response:
    """Return the response for a call that failed."""
    if isinstance(error, ModelCallError):
        category = error.category
        status = _OWN_STATUS.get(category) or error.status or _DEFAULT_STATUS[category]
    else:
        status = 404 if isinstance(error, RolloutClosedError) else 500
    return _response(status, _error_object(error))


def error_event(error: Exception) -> bytes:
    """Return the event that ends a stream whose call failed."""
    return b"event: error\ndata: " + dumps({"error": _error_object(error)}) + b"\n\n"


def _error_object(error: Exception) -> dict[str, object]:
    if isinstance(error, RolloutClosedError):
        code, message, kind, param = (
            "rollout_not_found",
            "the rollout has ended",
            "invalid_request_error",
            None,
        )
    elif isinstance(error, ModelCallError):
        said = error.body or {}
        usual = "context_length_exceeded" if error.category == "context_length" else error.category
        code, param = said.get("code") or usual, said.get("param")
        message, kind = error.message, _TYPES.get(error.category, "api_error")
    else:
        code, message, kind, param = "internal", "the model call could not be served", "api_error", None
    return {"message": message, "type": kind, "param": param, "code": code}


def _response(status: int, error: dict[str, object]) -> web.Response:
    return web.Response(
        status=status,
        body=dumps({"error": error}),
        content_type="application/json",
        headers={"x-should-retry": "false"},
    )
