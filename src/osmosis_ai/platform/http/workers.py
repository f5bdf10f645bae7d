"""The worker protocol over HTTP: four exchanges, each let in by a worker token or a ticket, and written by its lease's token."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.routing import Route

from osmosis_ai._version import __version__
from osmosis_ai.api.wire.base import WireModel
from osmosis_ai.api.wire.workers import (
    JOURNAL_OFFSET,
    LARGEST_EXCHANGE_BYTES,
    LEASE_LOST,
    PROTOCOL,
    PROTOCOL_HEADER,
    UPLOAD_GONE,
    UPLOAD_LIMIT,
    EndRequest,
    ReleaseRequest,
    SyncReply,
    SyncRequest,
    WorkerOffer,
)
from osmosis_ai.platform.bearers import bearer_hash
from osmosis_ai.platform.http.authentication import Services, bearer_token
from osmosis_ai.platform.http.errors import JSON_BODY, ApiError, as_sentence
from osmosis_ai.platform.http.packed_bodies import unpacked_body
from osmosis_ai.platform.http.routing import api_router
from osmosis_ai.platform.http.worker_limits import COME_AGAIN_S
from osmosis_ai.platform.http.worker_waits import worker_waits
from osmosis_ai.platform.runs.desk.journal_intake import JournalDivergedError
from osmosis_ai.platform.runs.desk.run_desk import RunDesk
from osmosis_ai.platform.runs.desk.watching import Idler
from osmosis_ai.platform.runs.lifecycle import (
    JournalOffsetError,
    LeaseLostError,
    UploadGoneError,
    UploadLimitError,
)
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.worker_access import WorkerRefused

router = api_router("/api/workers")

JOURNAL_DIVERGED = "JOURNAL_DIVERGED"
M = TypeVar("M", bound=WireModel)
OfRun = TypeVar("OfRun", SyncRequest, EndRequest, ReleaseRequest)
Done = TypeVar("Done")
_TOO_LARGE = (
    f"an exchange takes {LARGEST_EXCHANGE_BYTES >> 20} MiB, unpacked; the rest waits for the next one."
)


async def _spoken(version: str) -> None:
    """Refuse a worker that speaks another version of the protocol (a dependency)."""
    if version != f"v{PROTOCOL}":
        raise ApiError(
            426,
            "WORKER_PROTOCOL",
            f"this platform speaks version {PROTOCOL} of the worker protocol; install osmosis-ai {__version__} on the worker's "
            "machine.",
        )


Spoken = Annotated[None, Depends(_spoken)]


@router.post("/{version}/claim")
async def claim(request: Request, services: Services, _spoken: Spoken) -> Response:
    """Give a worker a run with all that it needs; 204 where there is none, after up to `wait_s` seconds, or where it leaves."""
    bearer = bearer_token(request)
    limits = worker_waits(request.app).limits
    if (again_s := limits.claim_too_soon_s(bearer_hash(bearer))) > 0:
        raise _too_many("this worker token claims too often", again_s)
    offer = await _read(request, WorkerOffer)
    if offer.leaves:
        await _do(services.worker_access.note_left, bearer, offer)
        return _nothing()
    deadline = time.monotonic() + offer.wait_s
    while True:
        # Asked again after each wait: a token may be revoked meanwhile.
        scope = await _do(services.worker_access.authorize_claim, bearer, offer)
        assignment = await _do(services.desk.claim, offer, scope)
        left_s = deadline - time.monotonic()
        if assignment is not None:
            return _reply(assignment)
        waits = worker_waits(request.app)
        if left_s <= 0 or waits.is_closed:
            return _nothing()
        if not await waits.for_run(Idler(offer, scope), left_s, bearer_hash(bearer)):
            raise _too_many("too many claims wait for a run", COME_AGAIN_S)
        if await request.is_disconnected():
            # What came meanwhile is for a worker that is there: given to this one, it would lie idle for a lease.
            return _nothing()


def _nothing() -> Response:
    return Response(status_code=204, headers={PROTOCOL_HEADER: str(PROTOCOL)})


async def sync(request: Request) -> Response:
    """Keep a worker's lease and take what is new; with `may_wait`, reply when there is something to say, or in a third of a term."""
    await _spoken(request.path_params["version"])
    services: PlatformServices = request.app.state.services
    run_id = request.path_params["run_id"]
    said = await _of_run(request, run_id, services, SyncRequest)
    asked_at = time.monotonic()
    reply = await _do(_begun, services.desk, asked_at, run_id, said)
    if said.may_wait and _has_nothing_to_say(reply):
        token = said.lease.get_secret_value()
        bearer = bearer_token(request)
        ended = await worker_waits(request.app).for_news(run_id, token, reply.term_s / 3, bearer_hash(bearer))
        if ended == "look":
            # Asked again: it may have been revoked meanwhile.
            await _do(services.worker_access.authorize_run, bearer, run_id)
            # Nothing is taken twice: this is the heartbeat that ends the wait.
            reply = await _do(services.desk.sync, run_id, SyncRequest(lease=said.lease))
        elif ended == "full":
            reply = reply.model_copy(update={"next_s": min(COME_AGAIN_S, reply.term_s / 3)})
    return _reply(reply)


SYNC = Route("/api/workers/{version}/runs/{run_id}/sync", sync, methods=["POST"])
"""Goes before all other routes, and by no router: what these do for a request would cost as much as the exchange itself."""


def _begun(desk: RunDesk, asked_at: float, run_id: str, said: SyncRequest) -> SyncReply:
    desk.pace.note_wait(time.monotonic() - asked_at)
    return desk.sync(run_id, said)


@router.post("/{version}/runs/{run_id}/end")
async def end(request: Request, run_id: str, services: Services, _spoken: Spoken) -> Response:
    """Give a run its outcome."""
    said = await _of_run(request, run_id, services, EndRequest)
    return _reply(await _do(services.desk.end, run_id, said))


@router.post("/{version}/runs/{run_id}/release")
async def release(request: Request, run_id: str, services: Services, _spoken: Spoken) -> Response:
    """Let a run go as it is, for the worker after this one."""
    said = await _of_run(request, run_id, services, ReleaseRequest)
    return _reply(await _do(services.desk.release, run_id, said))


async def _of_run(request: Request, run_id: str, services: PlatformServices, model: type[OfRun]) -> OfRun:
    bearer = bearer_token(request)
    if not services.worker_access.is_admitted(bearer, run_id):
        await _do(services.worker_access.authorize_run, bearer, run_id)
    said = await _read(request, model)
    worker_waits(request.app).interrupt(run_id, said.lease.get_secret_value())
    return said


def _too_many(what: str, again_s: float) -> ApiError:
    seconds = math.ceil(again_s)
    return ApiError(
        429,
        "TOO_MANY_CLAIMS",
        f"{what}: come again in {seconds} seconds.",
        headers={"Retry-After": str(seconds)},
    )


def _has_nothing_to_say(reply: SyncReply) -> bool:
    return not (reply.stop or reply.uploads or reply.checkpoints or reply.agent or reply.renewed)


async def _do(work: Callable[..., Done], *arguments: Any) -> Done:
    """Return what blocking ``work`` does, or the refusal that it means."""
    try:
        return await run_in_threadpool(work, *arguments)
    except WorkerRefused as error:
        raise ApiError(error.status, error.reason, as_sentence(error)) from None
    except LeaseLostError as error:
        raise ApiError(409, LEASE_LOST, error.message) from None
    except UploadGoneError as error:
        raise ApiError(409, UPLOAD_GONE, error.message, details=error.details) from None
    except UploadLimitError as error:
        raise ApiError(409, UPLOAD_LIMIT, as_sentence(error), details=error.details) from None
    except JournalOffsetError as error:
        raise ApiError(409, JOURNAL_OFFSET, error.message, details=error.details) from None
    except JournalDivergedError as error:
        raise ApiError(409, JOURNAL_DIVERGED, error.message, details=error.details) from None


async def _read(request: Request, model: type[M]) -> M:
    body = await unpacked_body(request, most_bytes=LARGEST_EXCHANGE_BYTES, refusal=_TOO_LARGE)
    try:
        content = orjson.loads(body)
    except ValueError:
        raise ApiError(400, "INVALID_JSON", "the body of the request is not valid JSON.") from None
    # Report errors from here on without the lease's token.
    request.scope.setdefault(JSON_BODY, []).append(content)
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_input=False)) from None


def _reply(model: WireModel) -> Response:
    return Response(model.model_dump_json(by_alias=True, exclude_unset=True), media_type="application/json")
