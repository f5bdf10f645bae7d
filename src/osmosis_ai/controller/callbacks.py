"""Rollouts over the rollout protocol: drivers that start them, and the HTTP server that takes their callbacks."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import hmac
import json
import logging
import socket
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, TypeVar
from urllib.parse import quote

import orjson
from aiohttp import web
from pydantic import ValidationError

from osmosis_ai.errors import OsmosisError
from osmosis_ai.llm.transport import open_session
from osmosis_ai.retry_after import retry_after_s
from osmosis_ai.rollout.types import (
    GraderCompleteRequest,
    GraderStatus,
    RolloutCompleteRequest,
    RolloutStatus,
)
from osmosis_ai.rollout.types.protocol import is_single_path_segment
from osmosis_ai.supervision import open_server_session, server_url

if TYPE_CHECKING:
    import aiohttp
    from pydantic import BaseModel
    from typing_extensions import Self

    from osmosis_ai.rollout.types import (
        GraderCompleteRequest,
        RolloutCompleteRequest,
        RolloutSample,
        RolloutStatus,
    )


DEFAULT_DEADLINE_S = 3600.0
CALLBACK_GRACE_S = 60.0


@dataclass(frozen=True)
class AttemptTimeouts:
    """Seconds that the agent and the grader of an attempt may take; None is unbounded."""

    agent_s: float | None
    grader_s: float | None

    @property
    def callback_s(self) -> float:
        """Seconds that an admitted attempt may take before nobody waits for its callback any more."""
        if self.agent_s is None or self.grader_s is None:
            return DEFAULT_DEADLINE_S
        total = self.agent_s + self.grader_s
        return total + CALLBACK_GRACE_S if total > 0 else DEFAULT_DEADLINE_S

    @property
    def completion_s(self) -> float:
        """Seconds that an attempt may take that nobody grades: an agent's served elsewhere, queueing there included."""
        return self.agent_s + CALLBACK_GRACE_S if self.agent_s else DEFAULT_DEADLINE_S


@dataclass(frozen=True)
class RolloutRunRequest:
    """One rollout to run.

    Attributes:
        messages: the prompt in the shape of OpenAI chat messages; may be empty when ``metadata`` is set.
        label: ground truth for the grader.
        metadata: the row's own object, handed to workflow and grader untouched.
        rollout_id: a fresh id, one path segment; ids are never reused.
        agent_timeout_sec: seconds the workflow may take, queueing in the server included.
        grader_timeout_sec: seconds the grader may take.
        extra_fields: echoed into the stored trajectory.
    """

    messages: Sequence[Mapping[str, Any]]
    label: str | None = None
    metadata: Mapping[str, Any] | None = None
    rollout_id: str = ""
    agent_timeout_sec: float | None = None
    grader_timeout_sec: float | None = None
    extra_fields: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class RolloutOutcome:
    """How a rollout ended: its status, the graded sample if there is one, and what went wrong."""

    status: RolloutStatus
    sample: RolloutSample | None = None
    error: str | None = None
    rollout_id: str | None = None


class RolloutDriver(ABC):
    """Runs rollouts one call at a time; safe to call concurrently for different ids."""

    @abstractmethod
    async def run(self, request: RolloutRunRequest) -> RolloutOutcome:
        """Run one rollout to its terminal result."""


logger = logging.getLogger(__name__)

# A server repeats a callback for about a minute. Beyond the first bound an id is forgotten; beyond the second an
# old acknowledgement (one that carries token ids is large) shrinks to `{"ok": true}`.
REMEMBERED_ROLLOUTS = 16_384
REMEMBERED_ACKNOWLEDGMENT_BYTES = 8 * 1024 * 1024
_PLAIN = b'{"ok":true}'

TerminalSource = Literal["grader", "timeout", "cancelled"]
Acknowledgment = Mapping[str, Any]


def accepted() -> dict[str, Any]:
    """Return the plain acknowledgement of a callback."""
    return {"ok": True}


@dataclass(frozen=True)
class TerminalCallbackResult:
    """The one terminal of a rollout, and the callbacks known when it was accepted."""

    rollout_id: str
    source: TerminalSource
    completion: RolloutCompleteRequest | None = None
    grader: GraderCompleteRequest | None = None
    acknowledgment: Acknowledgment = field(default_factory=accepted)


TerminalCommit = Callable[[TerminalCallbackResult], Awaitable["Acknowledgment | None"]]


class UnknownRolloutIdError(KeyError):
    """No rollout of this id was registered, or it ended too long ago to be remembered."""


class DuplicateRegistrationError(ValueError):
    """The id is in use or was used before; every attempt needs a fresh one."""


def duplicate_callback_payload(first: BaseModel, second: BaseModel) -> bool:
    """Tell whether two callback bodies say the same."""
    return payload_digest(first) == payload_digest(second)


@dataclass(slots=True)
class _Session:
    """A registered rollout until it is discarded."""

    arrival: asyncio.Future[TerminalCallbackResult]
    completion: RolloutCompleteRequest | None = None
    attempt: TerminalCallbackResult | None = None
    commit: asyncio.Task[TerminalCallbackResult] | None = None
    result: TerminalCallbackResult | None = None
    discarded: bool = False


class CallbackStore:
    """Rendezvous of callbacks and waiters, by rollout id."""

    def __init__(
        self,
        *,
        on_terminal_commit: TerminalCommit,
        acknowledge_completion: Callable[[str], Acknowledgment] | None = None,
    ) -> None:
        self._on_terminal_commit = on_terminal_commit
        self._acknowledge_completion = acknowledge_completion
        self._sessions: dict[str, _Session] = {}
        self._finished = FinishedRollouts()

    async def register(self, rollout_id: str) -> None:
        """Expect callbacks for a rollout; call it before dispatching it."""
        if rollout_id in self._sessions or rollout_id in self._finished:
            raise DuplicateRegistrationError(f"rollout id {rollout_id!r} was registered before")
        self._sessions[rollout_id] = _Session(asyncio.get_running_loop().create_future())

    async def handle_completion(self, rollout_id: str, request: RolloutCompleteRequest) -> Acknowledgment:
        """Remember how the workflow ended; this alone never ends a rollout."""
        session = self._sessions.get(rollout_id)
        if session is None:
            finished = self._finished_rollout(rollout_id)
            _check_repeat(rollout_id, "completion", finished.completion_digest, request)
            return finished.acknowledgment()
        if session.completion is None:
            session.completion = request
        else:
            _check_repeat(rollout_id, "completion", payload_digest(session.completion), request)
        if session.result is not None:
            return session.result.acknowledgment
        return self._acknowledge_completion(rollout_id) if self._acknowledge_completion else accepted()

    async def handle_grader(self, rollout_id: str, request: GraderCompleteRequest) -> Acknowledgment:
        """Commit the grader's result, or join the commit under way, and return the acknowledgement."""
        session = self._sessions.get(rollout_id)
        if session is None:
            finished = self._finished_rollout(rollout_id)
            _check_repeat(rollout_id, "grader", finished.grader_digest, request)
            return finished.acknowledgment()
        standing = session.result or session.attempt
        if standing is not None and standing.grader is not None:
            _check_repeat(rollout_id, "grader", payload_digest(standing.grader), request)
        result = await self._reach_terminal(rollout_id, session, "grader", grader=request)
        return result.acknowledgment

    async def finalize_timeout(
        self, rollout_id: str, acknowledgment: Acknowledgment | None = None
    ) -> TerminalCallbackResult:
        """Try to end the rollout as timed out; return the terminal that won."""
        session = self._session(rollout_id)
        return await self._reach_terminal(rollout_id, session, "timeout", acknowledgment=acknowledgment)

    async def acknowledge_without_commit(
        self,
        rollout_id: str,
        source: TerminalSource = "cancelled",
        acknowledgment: Acknowledgment | None = None,
    ) -> TerminalCallbackResult:
        """End the rollout without the commit hook, unless a commit under way wins; return the winner."""
        session = self._session(rollout_id)
        while session.commit is not None:
            await asyncio.wait({session.commit})
        if session.result is not None:
            return session.result
        ended = TerminalCallbackResult(
            rollout_id,
            source,
            completion=session.completion,
            acknowledgment=dict(acknowledgment) if acknowledgment is not None else accepted(),
        )
        self._accept(session, ended)
        return ended

    async def wait_terminal(self, rollout_id: str) -> TerminalCallbackResult:
        """Wait for the rollout's terminal; a commit that fails and is tried again is waited for."""
        session = self._sessions.get(rollout_id)
        if session is None:
            finished = self._finished_rollout(rollout_id)
            return TerminalCallbackResult(
                rollout_id, finished.source, acknowledgment=finished.acknowledgment()
            )
        if session.discarded and session.commit is not None:
            return await asyncio.shield(session.commit)
        return await asyncio.shield(session.arrival)

    async def discard(self, rollout_id: str) -> None:
        """Forget a rollout's payloads; its waiter is cancelled, a commit under way is not."""
        session = self._sessions.get(rollout_id)
        if session is None:
            return
        session.discarded = True
        session.arrival.cancel()
        if session.commit is None:
            del self._sessions[rollout_id]

    def _session(self, rollout_id: str) -> _Session:
        try:
            return self._sessions[rollout_id]
        except KeyError:
            raise UnknownRolloutIdError(rollout_id) from None

    def _finished_rollout(self, rollout_id: str) -> FinishedRollout:
        finished = self._finished.get(rollout_id)
        if finished is None:
            raise UnknownRolloutIdError(rollout_id)
        return finished

    async def _reach_terminal(
        self,
        rollout_id: str,
        session: _Session,
        source: TerminalSource,
        *,
        grader: GraderCompleteRequest | None = None,
        acknowledgment: Acknowledgment | None = None,
    ) -> TerminalCallbackResult:
        """Return the accepted terminal: the one there is, the one being committed, or a new one."""
        if session.result is not None:
            return session.result
        if session.commit is None:
            session.attempt = TerminalCallbackResult(
                rollout_id,
                source,
                completion=session.completion,
                grader=grader,
                acknowledgment=dict(acknowledgment) if acknowledgment is not None else accepted(),
            )
            session.commit = asyncio.create_task(
                self._commit(session, session.attempt), name=f"commit-{rollout_id}"
            )
            session.commit.add_done_callback(_mark_exception_seen)
        return await asyncio.shield(session.commit)

    async def _commit(self, session: _Session, attempt: TerminalCallbackResult) -> TerminalCallbackResult:
        try:
            replacement = await self._on_terminal_commit(attempt)
            if replacement is not None:
                attempt = replace(attempt, acknowledgment=replacement)
            self._accept(session, attempt)
        finally:
            session.attempt = session.commit = None
            if session.discarded:
                self._sessions.pop(attempt.rollout_id, None)
        return attempt

    def _accept(self, session: _Session, result: TerminalCallbackResult) -> None:
        finished = FinishedRollout.of(
            result.acknowledgment, result.source, completion=session.completion, grader=result.grader
        )
        self._finished.add(result.rollout_id, finished)
        session.result = result
        if not session.arrival.done():
            session.arrival.set_result(result)


def _check_repeat(rollout_id: str, channel: str, first: bytes | None, request: BaseModel) -> None:
    """Say so when a repeated callback contradicts the first; late first callbacks are normal."""
    if first is not None and first != payload_digest(request):
        logger.error(
            "conflicting duplicate %s callback for rollout %s; the first stands", channel, rollout_id
        )


def _mark_exception_seen(task: asyncio.Task[TerminalCallbackResult]) -> None:
    # Every observer may have been cancelled; asyncio would then report an exception nobody retrieved.
    if not task.cancelled():
        task.exception()


def payload_digest(payload: BaseModel) -> bytes:
    """Return a short fingerprint of a callback's body."""
    try:
        text = payload.model_dump_json()
    except ValueError:
        # Lone surrogates in a model's text have no UTF-8 form.
        text = json.dumps(payload.model_dump(mode="python"), default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


@dataclass(slots=True)
class FinishedRollout:
    """The source and encoded acknowledgement of a finished rollout, and digests of its callbacks."""

    encoded_acknowledgment: bytes
    source: TerminalSource
    completion_digest: bytes | None
    grader_digest: bytes | None

    @classmethod
    def of(
        cls,
        acknowledgment: Mapping[str, Any],
        source: TerminalSource,
        *,
        completion: BaseModel | None,
        grader: BaseModel | None,
    ) -> FinishedRollout:
        """Condense a terminal."""
        # A copy of the exact size: orjson's own result keeps the kilobytes of its write buffer.
        encoded = bytes(memoryview(orjson.dumps(acknowledgment, option=orjson.OPT_SERIALIZE_NUMPY)))
        return cls(
            _PLAIN if encoded == _PLAIN else encoded,
            source,
            payload_digest(completion) if completion is not None else None,
            payload_digest(grader) if grader is not None else None,
        )

    def acknowledgment(self) -> dict[str, Any]:
        """Return the acknowledgement as it was given."""
        decoded: dict[str, Any] = orjson.loads(self.encoded_acknowledgment)
        return decoded


class FinishedRollouts:
    """The most recently finished rollouts by id."""

    def __init__(
        self,
        *,
        max_rollouts: int = REMEMBERED_ROLLOUTS,
        max_bytes: int = REMEMBERED_ACKNOWLEDGMENT_BYTES,
    ) -> None:
        self._max_rollouts = max_rollouts
        self._max_bytes = max_bytes
        self._rollouts: OrderedDict[str, FinishedRollout] = OrderedDict()
        # The ids whose acknowledgement is more than the plain one, oldest first.
        self._large: OrderedDict[str, int] = OrderedDict()
        self._large_bytes = 0

    def __contains__(self, rollout_id: str) -> bool:
        return rollout_id in self._rollouts

    def __len__(self) -> int:
        return len(self._rollouts)

    @property
    def acknowledgment_bytes(self) -> int:
        """Bytes held for acknowledgements other than the plain one."""
        return self._large_bytes

    def get(self, rollout_id: str) -> FinishedRollout | None:
        """Return what is remembered of a rollout, or None."""
        return self._rollouts.get(rollout_id)

    def add(self, rollout_id: str, rollout: FinishedRollout) -> None:
        """Remember a finished rollout and forget the oldest beyond the bounds."""
        self._rollouts[rollout_id] = rollout
        if rollout.encoded_acknowledgment is not _PLAIN:
            size = len(rollout.encoded_acknowledgment)
            self._large[rollout_id] = size
            self._large_bytes += size
        while self._large_bytes > self._max_bytes:
            oldest, size = self._large.popitem(last=False)
            self._large_bytes -= size
            self._rollouts[oldest].encoded_acknowledgment = _PLAIN
        while len(self._rollouts) > self._max_rollouts:
            oldest, _ = self._rollouts.popitem(last=False)
            self._large_bytes -= self._large.pop(oldest, 0)


ADMISSION_TIMEOUT_S = 60.0
CANCEL_TIMEOUT_S = 5.0
RETRY_AFTER_DEFAULT_S = 1.0
RETRY_AFTER_BOUNDS_S = (0.05, 60.0)
_JSON_HEADERS = {"Content-Type": "application/json"}


class RolloutProtocolError(OsmosisError):
    """The rollout server answered something the protocol does not know."""

    default_code = "PLATFORM_ERROR"

    def __init__(self, message: str, *, status_code: int) -> None:
        super().__init__(message, details={"status_code": status_code})
        self.status_code = status_code


class CallbackRolloutDriver(RolloutDriver):
    """Runs rollouts whose ends arrive in a :class:`CallbackStore`, whoever reports them and how."""

    def __init__(
        self,
        callback_store: CallbackStore,
        *,
        http_client: aiohttp.ClientSession | None,
        callback_timeout_s: float | None,
    ) -> None:
        self._store = callback_store
        self._session = http_client
        self._owns_session = http_client is None
        self._callback_timeout_s = callback_timeout_s

    async def run(self, request: RolloutRunRequest) -> RolloutOutcome:
        """Run one rollout to its terminal result."""
        rollout_id = request.rollout_id
        if not rollout_id:
            raise ValueError("a rollout needs an id")
        await self._store.register(rollout_id)
        try:
            await self._admit(request)
            return outcome_of(await self._await_terminal(rollout_id))
        except asyncio.CancelledError:
            await self._abandon(rollout_id)
            raise
        finally:
            self._forget(rollout_id)
            await self._store.discard(rollout_id)

    async def aclose(self) -> None:
        """Close the session, unless it was handed in."""
        if self._owns_session and self._session is not None:
            await self._session.close()
            self._session = None

    @abstractmethod
    async def _admit(self, request: RolloutRunRequest) -> None:
        """Have the rollout's server accept a rollout."""

    def _forget(self, rollout_id: str) -> None:
        """Let go of what was kept for a rollout that has ended."""

    async def _request_cancel(self, rollout_id: str) -> None:
        """Tell the server that nobody waits for a rollout any more."""

    async def _await_terminal(self, rollout_id: str) -> TerminalCallbackResult:
        try:
            return await asyncio.wait_for(self._store.wait_terminal(rollout_id), self._callback_timeout_s)
        except asyncio.TimeoutError:
            pass
        winner = await self._store.finalize_timeout(
            rollout_id, acknowledgment={"ok": True, "error_type": "callback_timeout"}
        )
        if winner.source == "timeout":
            await self._request_cancel(rollout_id)
        return winner

    async def _abandon(self, rollout_id: str) -> None:
        """Close the rollout for its callbacks and tell its server, as far as it listens."""
        winner = await self._store.acknowledge_without_commit(rollout_id, source="cancelled")
        if winner.source == "cancelled":
            await self._request_cancel(rollout_id)

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = self._open_session()
        return self._session

    def _open_session(self) -> aiohttp.ClientSession:
        return open_session(timeout_s=ADMISSION_TIMEOUT_S)


class HttpRolloutDriver(CallbackRolloutDriver):
    """Runs rollouts on one rollout server whose callbacks arrive in a :class:`CallbackStore`."""

    def __init__(
        self,
        *,
        rollout_base_url: str,
        callback_store: CallbackStore,
        completion_url_for: Callable[[str], str],
        grader_url_for: Callable[[str], str],
        chat_completions_url_for: Callable[[str], str],
        chat_api_key: str | None,
        controller_api_key: str,
        http_client: aiohttp.ClientSession | None = None,
        callback_timeout_sec: float | None = None,
    ) -> None:
        if not controller_api_key.strip():
            raise ValueError("controller_api_key must not be blank")
        super().__init__(callback_store, http_client=http_client, callback_timeout_s=callback_timeout_sec)
        self._base_url = rollout_base_url
        self._completion_url_for = completion_url_for
        self._grader_url_for = grader_url_for
        self._chat_completions_url_for = chat_completions_url_for
        self._chat_api_key = chat_api_key or None
        self._controller_api_key = controller_api_key

    def _open_session(self) -> aiohttp.ClientSession:
        return open_server_session(self._base_url, timeout_s=ADMISSION_TIMEOUT_S)

    async def _admit(self, request: RolloutRunRequest) -> None:
        body = encode_request(self._init_body(request))
        url = server_url(self._base_url, "/rollout")
        while True:
            async with self._client().post(
                url, data=body, headers=_JSON_HEADERS, timeout=total_timeout(ADMISSION_TIMEOUT_S)
            ) as reply:
                if reply.status == 202:
                    await reply.read()
                    return
                if reply.status != 429:
                    refuse_admission(reply.status, await reply.text(errors="replace"))
                wait_s = admission_pause_s(reply.headers)
            await asyncio.sleep(wait_s)

    def _init_body(self, request: RolloutRunRequest) -> dict[str, Any]:
        rollout_id = request.rollout_id
        return {
            "initial_messages": list(request.messages),
            "label": request.label,
            "metadata": request.metadata,
            "rollout_id": rollout_id,
            "chat_completions_url": self._chat_completions_url_for(rollout_id),
            "controller_api_key": self._controller_api_key,
            "llm_api_key": self._chat_api_key,
            "completion_callback_url": self._completion_url_for(rollout_id),
            "grader_callback_url": self._grader_url_for(rollout_id),
            "agent_timeout_sec": request.agent_timeout_sec,
            "grader_timeout_sec": request.grader_timeout_sec,
            "extra_fields": request.extra_fields,
        }

    async def _request_cancel(self, rollout_id: str) -> None:
        import aiohttp

        try:
            async with self._client().post(
                server_url(self._base_url, "/rollout/cancel"),
                data=orjson.dumps({"ids": [rollout_id]}),
                headers=_JSON_HEADERS,
                timeout=total_timeout(CANCEL_TIMEOUT_S),
            ) as reply:
                await reply.read()
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            logger.debug("could not cancel rollout %s on its server: %s", rollout_id, error)


def outcome_of(result: TerminalCallbackResult) -> RolloutOutcome:
    """Read a terminal as an outcome; the workflow's own message speaks where the grader has none."""
    from osmosis_ai.rollout.types import GraderStatus, RolloutStatus

    rollout_id = result.rollout_id
    if result.source == "timeout":
        return RolloutOutcome(RolloutStatus.FAILURE, error="callback_timeout", rollout_id=rollout_id)
    if result.source == "cancelled":
        return RolloutOutcome(RolloutStatus.CANCELLED, error="cancelled", rollout_id=rollout_id)
    grader = result.grader
    if grader is None:
        error = "missing terminal grader callback"
        return RolloutOutcome(RolloutStatus.FAILURE, error=error, rollout_id=rollout_id)
    succeeded = grader.status == GraderStatus.SUCCESS
    message = grader.err_message
    if message is None and not succeeded and result.completion is not None:
        message = result.completion.err_message
    status = RolloutStatus.SUCCESS if succeeded else RolloutStatus.FAILURE
    return RolloutOutcome(status, sample=grader.sample, error=message, rollout_id=rollout_id)


def admission_pause_s(headers: Mapping[str, str]) -> float:
    """Return how long a full server wants to be left alone, in seconds, within sane bounds."""
    shortest, longest = RETRY_AFTER_BOUNDS_S
    wait_s = retry_after_s(headers)
    return RETRY_AFTER_DEFAULT_S if wait_s is None else min(max(wait_s, shortest), longest)


def encode_request(body: dict[str, Any]) -> bytes:
    """Write the body of an admission."""
    try:
        return orjson.dumps(body)
    except TypeError:
        # Integers beyond 64 bits and lone surrogates, which datasets do contain.
        return json.dumps(body).encode()


def refuse_admission(status: int, body: str, route: str = "POST /rollout") -> NoReturn:
    """Raise what a reply to an admission means that neither accepts it nor puts it off."""
    reason = " ".join(body.split())[:500]
    raise RolloutProtocolError(
        f"the rollout server answered {status} to `{route}`, where 202 or 429 is expected"
        + (f": {reason}" if reason else "."),
        status_code=status,
    )


def total_timeout(seconds: float) -> aiohttp.ClientTimeout:
    """Return a limit on a request's whole time."""
    import aiohttp

    return aiohttp.ClientTimeout(total=seconds)


LOOPBACK = "127.0.0.1"
MAX_BODY_BYTES = 64 * 1024 * 1024
# Only processes of this run connect, so the side that closes an idle connection is never this one:
# a client that reuses a connection at that very moment would lose its callback.
KEEP_ALIVE_S = 3600.0
SHUTDOWN_GRACE_S = 2.0
BACKLOG = 2048

_WRONG_TOKEN = "missing or wrong bearer token"
_COMPLETION_TERMINALS = frozenset({RolloutStatus.SUCCESS, RolloutStatus.FAILURE, RolloutStatus.CANCELLED})
_GRADER_TERMINALS = frozenset({GraderStatus.SUCCESS, GraderStatus.FAILURE})

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HasRoutes(Protocol):
    """Serves on routes of its own, as the bridge does (:class:`osmosis_ai.controller.model_proxy.RolloutBridge`)."""

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes to mount beside the callbacks."""


def create_callback_app(store: CallbackStore, *, auth_token: str) -> web.Application:
    """Return the application that takes callbacks into ``store``."""
    token = _checked_token(auth_token, "auth_token")
    guard = functools.partial(_authenticated, auth_token=token, refuse=_refuse_callback)
    app = web.Application(client_max_size=MAX_BODY_BYTES)

    async def completion(request: web.Request) -> web.Response:
        return await _take_completion(store, request)

    async def grader(request: web.Request) -> web.Response:
        return await _take_grader(store, request)

    app.router.add_post("/v1/rollouts/{rollout_id}/completion", guard(completion))
    app.router.add_post("/v1/rollouts/{rollout_id}/grader", guard(grader))
    return app


@dataclass(frozen=True)
class CallbackAddress:
    """Where agents on other machines find this process."""

    host: str = LOOPBACK
    listen: str = ""
    ports: tuple[int, int] = (0, 0)

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> CallbackAddress:
        """Return what the operator of this machine has set."""
        given = env.get("OSMOSIS_BRIDGE_PORTS", "").strip()
        first, dash, last = given.partition("-")
        numbers = (first, last if dash else first)
        if given and not all(each.isascii() and each.isdigit() and 0 < int(each) < 65536 for each in numbers):
            raise OsmosisError(f"OSMOSIS_BRIDGE_PORTS must be ports such as 9100-9199, and is '{given}'.")
        host = env.get("OSMOSIS_BRIDGE_HOST", "").strip() or LOOPBACK
        ports = (int(numbers[0]), int(numbers[1])) if given else (0, 0)
        return cls(host, env.get("OSMOSIS_BRIDGE_LISTEN", "").strip(), ports)

    def socket(self) -> socket.socket:
        """Listen on the first port that is free."""
        listen = self.listen or self.host
        family = socket.AF_INET6 if ":" in listen else socket.AF_INET
        reason = "no port is given"
        for port in range(self.ports[0], self.ports[1] + 1):
            try:
                return socket.create_server((listen, port), family=family, backlog=BACKLOG)
            except UnicodeError:
                reason = "it is no host name"
            except OSError as error:
                reason = error.strerror or str(error)
        if self == CallbackAddress():
            raise OsmosisError(f"no port of this machine can be listened on for the rollouts ({reason}).")
        raise OsmosisError(
            f"the bridge for served agents cannot listen on {listen} ({reason}).",
            hint="set OSMOSIS_BRIDGE_LISTEN to an address of this machine (0.0.0.0 for all), "
            "and OSMOSIS_BRIDGE_PORTS to ports that are free",
        )


class CallbackListener:
    """Serves a callback store, and a bridge if there is one; an async context manager."""

    def __init__(
        self,
        store: CallbackStore,
        *,
        auth_token: str,
        bridge: HasRoutes | None = None,
        bridge_token: str | None = None,
        agents: HasRoutes | None = None,
        address: CallbackAddress | None = None,
    ) -> None:
        self._store = store
        self._agents, self._address = agents, address or CallbackAddress()
        self._auth_token = _checked_token(auth_token, "auth_token")
        self._bridge = bridge
        self._bridge_token = _checked_token(bridge_token or "", "bridge_token") if bridge is not None else ""
        self._runner: web.AppRunner | None = None
        self._port: int | None = None

    async def start(self) -> None:
        """Listen: on a free loopback port, or where the agents find it."""
        if self._runner is not None:
            raise RuntimeError("the callback listener is running")
        runner = web.AppRunner(
            self._application(),
            access_log=None,
            handle_signals=False,
            keepalive_timeout=KEEP_ALIVE_S,
            shutdown_timeout=SHUTDOWN_GRACE_S,
        )
        listening = self._address.socket()
        try:
            await runner.setup()
            await web.SockSite(runner, listening, backlog=BACKLOG).start()
        except BaseException:
            listening.close()
            await runner.cleanup()
            raise
        self._runner = runner
        self._port = listening.getsockname()[1]

    @property
    def port(self) -> int:
        """Its port."""
        if self._port is None:
            raise RuntimeError("the callback listener is not running")
        return self._port

    async def listen_on(self, listening: socket.socket) -> Callable[[], Awaitable[None]]:
        """Answer on one more socket, such as one on a sandbox's loopback; returns what ends that."""
        assert self._runner is not None
        site = web.SockSite(self._runner, listening, backlog=BACKLOG)
        await site.start()

        async def leave() -> None:
            with contextlib.suppress(RuntimeError):  # the listener was stopped, and the site with it
                await site.stop()

        return leave

    async def stop(self) -> None:
        """Stop listening; requests under way get a moment to end. Does nothing when stopped."""
        runner, self._runner, self._port = self._runner, None, None
        if runner is not None:
            await runner.cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    @property
    def base_url(self) -> str:
        """Where it is found, ``http://127.0.0.1:<port>`` unless an address was given."""
        port, host = self.port, self._address.host
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def completion_url(self, rollout_id: str) -> str:
        """Return the URL of a rollout's completion callback."""
        return f"{self._rollout_url(rollout_id)}/completion"

    def grader_url(self, rollout_id: str) -> str:
        """Return the URL of a rollout's grader callback."""
        return f"{self._rollout_url(rollout_id)}/grader"

    def chat_completions_url(self, rollout_id: str) -> str:
        """Return a rollout's OpenAI base URL, to which clients append ``/chat/completions``."""
        return self._rollout_url(rollout_id)

    def _rollout_url(self, rollout_id: str) -> str:
        return f"{self.base_url}/v1/rollouts/{quote(rollout_id, safe='')}"

    def _application(self) -> web.Application:
        if self._agents is not None:
            served = web.Application(client_max_size=MAX_BODY_BYTES)
            served.router.add_routes(self._agents.routes())
            return served
        app = create_callback_app(self._store, auth_token=self._auth_token)
        if self._bridge is not None:
            guard = functools.partial(
                _authenticated, auth_token=self._bridge_token, refuse=_refuse_model_call
            )
            for route in self._bridge.routes():
                app.router.add_route(route.method, route.path, guard(route.handler), **route.kwargs)
        return app


async def _take_completion(store: CallbackStore, request: web.Request) -> web.Response:
    rollout_id = _rollout_id(request)
    body = _parse(RolloutCompleteRequest, await _json_body(request), rollout_id)
    if body.status not in _COMPLETION_TERMINALS:
        raise _problem(web.HTTPUnprocessableEntity, f"status `{body.status.value}` does not end a rollout")
    try:
        return _reply(await store.handle_completion(rollout_id, body))
    except UnknownRolloutIdError:
        raise _problem(web.HTTPNotFound, "unknown rollout id") from None


async def _take_grader(store: CallbackStore, request: web.Request) -> web.Response:
    rollout_id = _rollout_id(request)
    content = await _json_body(request)
    sample = content.get("sample")
    if isinstance(sample, dict):
        # Never on the wire; left out, the model would copy every message for it.
        sample["trajectory_messages"] = None
    body = _parse(GraderCompleteRequest, content, rollout_id)
    if body.status not in _GRADER_TERMINALS:
        raise _problem(web.HTTPUnprocessableEntity, f"status `{body.status.value}` does not end a grading")
    try:
        return _reply(await store.handle_grader(rollout_id, body))
    except UnknownRolloutIdError:
        raise _problem(web.HTTPNotFound, "unknown rollout id") from None
    except Exception:
        # Edge of the process: whatever the hook raised, the server hears "not durable" and retries.
        logger.exception("the result of rollout %s could not be committed", rollout_id)
        raise _problem(web.HTTPInternalServerError, "the result could not be committed") from None


def _checked_token(token: str, name: str) -> str:
    if not token.strip():
        raise ValueError(f"{name} must not be blank")
    return token


def _authenticated(handler: Handler, *, auth_token: str, refuse: Callable[[], web.Response]) -> Handler:
    """Let only requests with the bearer token through."""
    expected = auth_token.encode()

    async def guarded(request: web.Request) -> web.StreamResponse:
        scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
        presented = credentials.strip().encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(presented, expected) or scheme.lower() != "bearer":
            return refuse()
        return await handler(request)

    return guarded


def _refuse_callback() -> web.Response:
    return web.Response(
        status=401,
        headers={"WWW-Authenticate": "Bearer"},
        body=_encode({"detail": _WRONG_TOKEN}),
        content_type="application/json",
    )


def _refuse_model_call() -> web.Response:
    from osmosis_ai.controller.model_proxy import refusal

    return refusal(401, _WRONG_TOKEN, "invalid_api_key")


def _rollout_id(request: web.Request) -> str:
    rollout_id = request.match_info["rollout_id"]
    if not is_single_path_segment(rollout_id):
        raise _problem(web.HTTPUnprocessableEntity, "the rollout id in the path is not a single path segment")
    return rollout_id


async def _json_body(request: web.Request) -> dict[str, Any]:
    raw = await request.read()
    try:
        content = orjson.loads(raw)
    except orjson.JSONDecodeError:
        # Python writers emit what orjson refuses, lone surrogates above all; a model produced them.
        try:
            content = json.loads(raw)
        except ValueError:
            raise _problem(web.HTTPUnprocessableEntity, "the body is not JSON") from None
    if not isinstance(content, dict):
        raise _problem(web.HTTPUnprocessableEntity, "the body is not a JSON object")
    return content


_BodyT = TypeVar("_BodyT", RolloutCompleteRequest, GraderCompleteRequest)


def _parse(model: type[_BodyT], content: dict[str, Any], rollout_id: str) -> _BodyT:
    try:
        body = model.model_validate(content)
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False, include_context=False)
        raise _problem(web.HTTPUnprocessableEntity, detail) from None
    # The path says whose callback it is; a body that leaves the id out means the same one.
    body.rollout_id = body.rollout_id or rollout_id
    if body.rollout_id != rollout_id:
        raise _problem(
            web.HTTPUnprocessableEntity, "the rollout id in the body differs from the one in the path"
        )
    return body


def _reply(content: Mapping[str, Any]) -> web.Response:
    return web.Response(body=_encode(content), content_type="application/json")


def _encode(content: object) -> bytes:
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def _problem(kind: type[web.HTTPException], detail: object) -> web.HTTPException:
    return kind(text=_encode({"detail": detail}).decode(), content_type="application/json")
