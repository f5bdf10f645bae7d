"""Errors of requests: one flat JSON object with ``error`` for users and ``code`` for programs."""

from __future__ import annotations

import logging
import re
import secrets
import traceback
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from osmosis_ai.api.http_errors import ReplyRedactor
from osmosis_ai.api.models.workers import STORE_AWAY
from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import is_disk_full
from osmosis_ai.installation import installed_state
from osmosis_ai.platform.blobs.store import BlobStoreBusy, BlobStoreError
from osmosis_ai.platform.db.engine import DatabaseBusyError, DatabaseUnreachableError, StorageFullError
from osmosis_ai.platform.refusals import ApiError as ApiError

logger = logging.getLogger("osmosis_ai.platform.http")

_STATUS_OF_CODE = {
    "VALIDATION": 400,
    "NOT_FOUND": 404,
    "CONFLICT": 409,
    "RATE_LIMITED": 429,
    "WORKSPACE_REQUIRED": 400,
}
_RETRY_LATER = {"Retry-After": "5"}
_SECRET_KEYS = frozenset({"value", "password", "provided", "token", "device_code", "lease"})
_INSTALLED = installed_state()
_CHANGED = "Osmosis was reinstalled after this platform started: restart the platform"
JSON_BODY = "osmosis.json"
"""The key of a request's scope with a list of its parsed JSON body."""


def response_of(error: ApiError) -> JSONResponse:
    body: dict[str, Any] = {**error.extra, "error": error.message, "code": error.reason}
    if error.field:
        body["field"] = error.field
    if error.issues:
        body["issues"] = error.issues
    return JSONResponse(body, status_code=error.status, headers=error.headers)


def install_error_handlers(app: FastAPI) -> None:
    """Make ``app`` reply to every exception with a flat error."""
    for kind in (ApiError, OsmosisError, RequestValidationError, HTTPException, OSError):
        app.add_exception_handler(kind, _on_error)


class ErrorEdge:
    """Turns exceptions of inner layers into replies."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False
        # Inner layers copy the scope, but share this list.
        scope[JSON_BODY] = []

        async def send_and_note(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, send_and_note)
        except ClientDisconnect:
            return
        except Exception as error:
            reply = response_of(as_api_error(error, Request(scope)))
            if started:
                # A partial reply cannot be repaired; the server closes the connection.
                return
            await reply(scope, receive, send)


async def _on_error(request: Request, error: Exception) -> JSONResponse:
    return response_of(as_api_error(error, request))


def as_api_error(error: Exception, request: Request) -> ApiError:
    """Return the reply to an exception; what clients must not see goes to the log."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestValidationError):
        return _invalid_request(error)
    if isinstance(error, HTTPException):
        return _http_error(error, request)
    if isinstance(error, DatabaseUnreachableError):
        # Only the operator may see the database's address and user.
        logger.error("%s", error.message)
        message = "the platform's database is unavailable; its log has the reason. Try again later."
        return ApiError(503, "DATABASE_BUSY", message, headers=_RETRY_LATER)
    if isinstance(error, DatabaseBusyError):
        return ApiError(503, "DATABASE_BUSY", as_sentence(error), headers=_RETRY_LATER)
    if isinstance(error, StorageFullError) or (isinstance(error, OSError) and is_disk_full(error)):
        logger.error("%s", as_sentence(error) if isinstance(error, OsmosisError) else error)
        return ApiError(507, "STORAGE_FULL", "the platform's disk is full or failing: nothing was saved.")
    if isinstance(error, BlobStoreError):
        logger.error("%s", as_sentence(error))
        message = "the platform's file store is unavailable; its log has the reason. Try again later."
        # Workers may wait for a store that is unavailable for now.
        away: dict[str, Any] = {STORE_AWAY: True} if isinstance(error, BlobStoreBusy) else {}
        return ApiError(503, "BLOBS_UNAVAILABLE", message, headers=_RETRY_LATER, **away)
    if isinstance(error, OsmosisError) and error.code in _STATUS_OF_CODE:
        field = error.details.get("field")
        return ApiError(_STATUS_OF_CODE[error.code], error.code, as_sentence(error), field, **_details(error))
    return _unexpected(error, request)


def as_sentence(error: OsmosisError) -> str:
    """Return an error with its hint, in one sentence."""
    if not error.hint:
        return error.message
    end = "" if error.hint.endswith("?") else "."
    return f"{error.message.rstrip('.')}; {error.hint}{end}"


def _details(error: OsmosisError) -> dict[str, Any]:
    reserved = ("error", "code", "field", "issues", "headers", "status", "message")
    return {key: value for key, value in error.details.items() if key not in reserved}


def _http_error(error: HTTPException, request: Request) -> ApiError:
    if isinstance(error.__cause__, ApiError):
        # FastAPI wraps errors that occur while it reads a body.
        return error.__cause__
    path, phrase = request.url.path, HTTPStatus(error.status_code).phrase
    known = {
        400: ("INVALID_BODY", "the body of the request cannot be read."),
        404: ("ROUTE_NOT_FOUND", f"no route matches {request.method} {path}."),
        405: ("METHOD_NOT_ALLOWED", f"{path} does not support {request.method}."),
    }
    other = re.sub(r"[^A-Z]+", "_", phrase.upper()), f"the request was refused: {phrase.lower()}."
    code, message = known.get(error.status_code, other)
    return ApiError(error.status_code, code, message, headers=error.headers)


def _invalid_request(error: RequestValidationError) -> ApiError:
    problems = error.errors()
    if any(problem["type"] == "json_invalid" for problem in problems):
        message = "the body of the request is not valid JSON (NaN and Infinity are not allowed)."
        return ApiError(400, "INVALID_JSON", message)
    # The input is not repeated, since it may be a secret.
    issues = [
        {"key": _key(problem["loc"]), "message": str(problem["msg"]).removeprefix("Value error, ")}
        for problem in problems
    ]
    key, problem = issues[0].values()
    message = f"the request is not valid: {f'{key}: ' if key else ''}{problem}."
    return ApiError(400, "VALIDATION_FAILED", message, field=key or None, issues=issues)


def _key(location: Sequence[Any]) -> str:
    places = ("body", "query", "path", "header", "cookie")
    return ".".join(str(part) for part in (location[1:] if location and location[0] in places else location))


def _unexpected(error: Exception, request: Request) -> ApiError:
    reference = secrets.token_hex(6)
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    redactor = ReplyRedactor(_secrets_of(request))
    logger.error("%s %s failed (%s)\n%s", request.method, request.url.path, reference, redactor.text(text))
    # Functions import modules late, which may belong to a newer release by then.
    what = "the platform had an internal error" if installed_state() == _INSTALLED else _CHANGED
    message = f"{what}; see the reference {reference} in its log."
    return ApiError(500, "INTERNAL_ERROR", message, reference=reference)


def _secrets_of(request: Request) -> list[str]:
    found = [request.headers.get("authorization", "").partition(" ")[2].strip()]
    waiting: list[tuple[Any, bool]] = [(request.scope.get(JSON_BODY), False)]
    while waiting:
        value, is_secret = waiting.pop()
        if isinstance(value, dict):
            waiting += [(item, is_secret or str(key).lower() in _SECRET_KEYS) for key, item in value.items()]
        elif isinstance(value, list):
            waiting += [(item, is_secret) for item in value]
        elif is_secret and isinstance(value, str):
            found.append(value)
    return found
