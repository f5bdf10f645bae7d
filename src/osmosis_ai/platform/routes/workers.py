"""The worker protocol over HTTP: four calls, and the download of a shard's journal.

A claim is authorized by a worker token or ticket, and everything else by the token of a lease. The routes go before all
others and through no router, whose cost would be that of a call itself.
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import orjson
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.routing import Route

from osmosis_ai._version import __version__
from osmosis_ai.api.models.base import WireModel
from osmosis_ai.api.models.workers import (
    JOURNAL_DIVERGED,
    JOURNAL_OFFSET,
    LARGEST_EXCHANGE_BYTES,
    LEASE_LOST,
    PROTOCOL,
    UPLOAD_GONE,
    UPLOAD_LIMIT,
    ClaimReply,
    ClaimRequest,
    FinishRequest,
    ReleaseRequest,
    SyncRequest,
)
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.platform.http.authentication import bearer_token
from osmosis_ai.platform.http.errors import JSON_BODY, ApiError, as_sentence
from osmosis_ai.platform.queue.queue import RunQueue
from osmosis_ai.platform.runs.journals import JournalDivergedError, read_journal
from osmosis_ai.platform.runs.lifecycle import (
    JournalOffsetError,
    LeaseLostError,
    UploadGoneError,
    UploadLimitError,
)
from osmosis_ai.platform.services import PlatformServices

M = TypeVar("M", bound=WireModel)
Done = TypeVar("Done")
_Call = Callable[[Request, PlatformServices], Awaitable[Response]]
_TOO_LARGE = f"a request may have at most {LARGEST_EXCHANGE_BYTES >> 20} MiB uncompressed; send the rest with the next request."
_CLOSE = {"Connection": "close"}
_CODES: dict[type[OsmosisError], str] = {
    LeaseLostError: LEASE_LOST,
    UploadGoneError: UPLOAD_GONE,
    UploadLimitError: UPLOAD_LIMIT,
    JournalOffsetError: JOURNAL_OFFSET,
    JournalDivergedError: JOURNAL_DIVERGED,
}


async def _claim(request: Request, services: PlatformServices) -> Response:
    """Assign a shard to a worker, with everything it needs; an empty reply if there is none."""
    bearer, claim = bearer_token(request), await _read(request, ClaimRequest)
    if claim.leaves:
        await _do(services.worker_access.note_left, bearer, claim)
        return _reply(ClaimReply())
    scope = await _do(services.worker_access.authorize, bearer, claim)
    assignment = await _do(services.queue.claim, claim, scope)
    next_poll_s = services.queue.claim_pace.next_s(scope.worker_id or claim.machine or bearer)
    if assignment is None:
        return _reply(ClaimReply(next_poll_s=next_poll_s))
    return _reply(ClaimReply(assignment=assignment, next_poll_s=next_poll_s))


def _of_shard(work: Callable[[RunQueue, str, str, M], WireModel], model: type[M]) -> _Call:
    """Return a call of the worker that has a shard's lease."""

    async def call(request: Request, services: PlatformServices) -> Response:
        shard_id, token = request.path_params["shard_id"], bearer_token(request)
        return _reply(await _do(work, services.queue, shard_id, token, await _read(request, model)))

    return call


async def _journal(request: Request, services: PlatformServices) -> Response:
    """Return the accepted bytes of a shard's journal."""
    shard_id = request.path_params["shard_id"]
    await _do(services.queue.require_owner, shard_id, bearer_token(request))
    chunks = read_journal(services.db, shard_id)
    return StreamingResponse(chunks, media_type="application/octet-stream")


def _route(path: str, call: _Call, method: str) -> Route:
    async def endpoint(request: Request) -> Response:
        if request.path_params["version"] != f"v{PROTOCOL}":
            message = f"this platform uses version {PROTOCOL} of the worker protocol: install osmosis-ai {__version__}"
            raise ApiError(426, "WORKER_PROTOCOL", f"{message} on the worker's machine.")
        return await call(request, request.app.state.services)

    return Route(f"/api/workers/{{version}}{path}", endpoint, methods=[method])


CALLS = (
    _route("/shards/{shard_id}/sync", _of_shard(RunQueue.sync, SyncRequest), "POST"),
    _route("/claim", _claim, "POST"),
    _route("/shards/{shard_id}/finish", _of_shard(RunQueue.finish, FinishRequest), "POST"),
    _route("/shards/{shard_id}/release", _of_shard(RunQueue.release, ReleaseRequest), "POST"),
    _route("/shards/{shard_id}/journal", _journal, "GET"),
)


async def _do(work: Callable[..., Done], *arguments: Any) -> Done:
    """Run a blocking call in a thread, and turn its errors into replies."""
    try:
        return await run_in_threadpool(work, *arguments)
    except ConflictError as error:
        if type(error) not in _CODES:
            raise
        raise ApiError(409, _CODES[type(error)], as_sentence(error), details=error.details) from None


async def _body(request: Request) -> bytes:
    """Return a request's body, unpacked as it arrives, so that it never becomes too large."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("gzip", "identity"):
        raise ApiError(415, "ENCODING_UNKNOWN", "the Content-Encoding of a request must be gzip or identity.")
    unpacking = zlib.decompressobj(16 + zlib.MAX_WBITS) if encoding == "gzip" else None
    body = bytearray()
    async for chunk in request.stream():
        left = LARGEST_EXCHANGE_BYTES + 1 - len(body)
        try:
            body += unpacking.decompress(chunk, left) if unpacking is not None else chunk
        except zlib.error:
            message = "the body of the request is not valid gzip data."
            raise ApiError(400, "INVALID_BODY", message, headers=_CLOSE) from None
        if len(body) > LARGEST_EXCHANGE_BYTES:
            raise ApiError(413, "BODY_TOO_LARGE", _TOO_LARGE, headers=_CLOSE)
    if unpacking is not None and not unpacking.eof:
        raise ApiError(400, "INVALID_BODY", "the body of the request is truncated.")
    return bytes(body)


async def _read(request: Request, model: type[M]) -> M:
    body = await _body(request)
    try:
        content = orjson.loads(body)
    except ValueError:
        raise ApiError(400, "INVALID_JSON", "the body of the request is not valid JSON.") from None
    request.scope.setdefault(JSON_BODY, []).append(content)
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_input=False)) from None


def _reply(model: WireModel) -> Response:
    return Response(model.model_dump_json(by_alias=True, exclude_unset=True), media_type="application/json")
