"""Rollouts over the rollout protocol: the drivers that start them and the HTTP server that takes their callbacks."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import socket
from abc import abstractmethod
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar
from urllib.parse import quote

import aiohttp
import orjson
from aiohttp import web
from pydantic import BaseModel, ValidationError

from osmosis_ai.errors import OsmosisError
from osmosis_ai.llm.wire_json import loads
from osmosis_ai.retry_after import retry_after_s
from osmosis_ai.rollout.driver import RolloutDriver, RolloutOutcome, RolloutRunRequest
from osmosis_ai.rollout.types import GraderCompleteRequest, RolloutCompleteRequest, RolloutStatus
from osmosis_ai.rollout.types.protocol import is_single_path_segment
from osmosis_ai.supervision import open_server_session, server_url

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)

DEFAULT_DEADLINE_S = 3600.0
CALLBACK_GRACE_S = 60.0


@dataclass(frozen=True)
class AttemptTimeouts:
    """Seconds that the agent and the grader of an attempt may take; None is unbounded."""

    agent_s: float | None
    grader_s: float | None

    @property
    def callback_s(self) -> float:
        """Seconds from admission to the callback deadline of an attempt."""
        is_bounded = self.agent_s is not None and self.grader_s is not None
        total = (self.agent_s or 0) + (self.grader_s or 0)
        return total + CALLBACK_GRACE_S if is_bounded and total > 0 else DEFAULT_DEADLINE_S

    @property
    def completion_s(self) -> float:
        """Seconds that an attempt on a remote agent may take, including the time in its queue."""
        return self.agent_s + CALLBACK_GRACE_S if self.agent_s else DEFAULT_DEADLINE_S


T = TypeVar("T")
TerminalSource = Literal["grader", "timeout", "cancelled"]
Acknowledgment = Mapping[str, Any]


@dataclass(frozen=True)
class TerminalCallbackResult:
    """The one terminal of a rollout, and the callbacks known when it was accepted."""

    rollout_id: str
    source: TerminalSource
    completion: RolloutCompleteRequest | None = None
    grader: GraderCompleteRequest | None = None
    acknowledgment: Acknowledgment = field(default_factory=lambda: {"ok": True})


TerminalCommit = Callable[[TerminalCallbackResult], Awaitable["Acknowledgment | None"]]


class UnknownRolloutIdError(KeyError):
    """The rollout id was never registered, or its rollout ended too long ago."""


class DuplicateRegistrationError(ValueError):
    """The rollout id was registered before; every attempt needs a fresh one."""


def duplicate_callback_payload(first: BaseModel, second: BaseModel) -> bool:
    """Return whether two callback bodies are equal."""
    return _fingerprint(first) == _fingerprint(second)


def _fingerprint(payload: BaseModel | None) -> int | None:
    """Return a hash of a callback's body, valid in this process; SipHash is several times faster than BLAKE2."""
    if payload is None:
        return None
    try:
        return hash(payload.model_dump_json())
    except ValueError:
        # Lone surrogates in a model's text have no UTF-8 form.
        return hash(json.dumps(payload.model_dump(mode="python"), default=str))


def _encode(content: object) -> bytes:
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


# A server repeats a callback for about a minute. Beyond the first bound an id is forgotten; beyond the second an
# old acknowledgement (one that carries token ids is large) shrinks to `{"ok": true}`.
REMEMBERED_ROLLOUTS = 16_384
REMEMBERED_ACKNOWLEDGMENT_BYTES = 8 * 1024 * 1024
_PLAIN = b'{"ok":true}'


@dataclass(slots=True)
class _Session:
    """A registered rollout until it is discarded."""

    arrival: asyncio.Future[TerminalCallbackResult]
    completion: RolloutCompleteRequest | None = None
    attempt: TerminalCallbackResult | None = None
    commit: asyncio.Task[TerminalCallbackResult] | None = None
    result: TerminalCallbackResult | None = None
    discarded: bool = False


@dataclass(slots=True)
class _FinishedRollout:
    """The acknowledgement of a finished rollout, and fingerprints of its callbacks."""

    source: TerminalSource
    encoded_acknowledgment: bytes
    completion: int | None
    grader: int | None

    def acknowledgment(self) -> dict[str, Any]:
        decoded: dict[str, Any] = orjson.loads(self.encoded_acknowledgment)
        return decoded


class _ByRolloutId(OrderedDict[str, T]):
    def __missing__(self, rollout_id: str) -> T:
        raise UnknownRolloutIdError(rollout_id)


class CallbackStore:
    """Matches callbacks with waiters, by rollout id."""

    def __init__(
        self,
        *,
        on_terminal_commit: TerminalCommit,
        acknowledge_completion: Callable[[str], Acknowledgment] = lambda _: {"ok": True},
    ) -> None:
        self._on_terminal_commit = on_terminal_commit
        self._acknowledge_completion = acknowledge_completion
        self._sessions: _ByRolloutId[_Session] = _ByRolloutId()
        self._finished: _ByRolloutId[_FinishedRollout] = _ByRolloutId()
        self._large: deque[_FinishedRollout] = deque()
        self._large_bytes = 0

    async def register(self, rollout_id: str) -> None:
        """Expect callbacks for a rollout; call it before dispatching it."""
        if rollout_id in self._sessions or rollout_id in self._finished:
            raise DuplicateRegistrationError(f"rollout id {rollout_id!r} was registered before")
        self._sessions[rollout_id] = _Session(asyncio.get_running_loop().create_future())

    async def handle_completion(self, rollout_id: str, request: RolloutCompleteRequest) -> Acknowledgment:
        """Remember how the workflow ended; this alone never ends a rollout."""
        session = self._sessions.get(rollout_id)
        if session is None:
            finished = self._finished[rollout_id]
            _check_repeat(rollout_id, "completion", finished.completion, request)
            return finished.acknowledgment()
        if session.completion is None:
            session.completion = request
        else:
            _check_repeat(rollout_id, "completion", _fingerprint(session.completion), request)
        if session.result is not None:
            return session.result.acknowledgment
        return self._acknowledge_completion(rollout_id)

    async def handle_grader(self, rollout_id: str, request: GraderCompleteRequest) -> Acknowledgment:
        """Commit the grader's result, or join the running commit, and return the acknowledgement."""
        session = self._sessions.get(rollout_id)
        if session is None:
            finished = self._finished[rollout_id]
            _check_repeat(rollout_id, "grader", finished.grader, request)
            return finished.acknowledgment()
        first = session.result or session.attempt
        if first is not None and first.grader is not None:
            _check_repeat(rollout_id, "grader", _fingerprint(first.grader), request)
        attempt = TerminalCallbackResult(rollout_id, "grader", session.completion, request)
        return (await self._reach_terminal(session, attempt)).acknowledgment

    async def finalize_timeout(
        self, rollout_id: str, acknowledgment: Acknowledgment | None = None
    ) -> TerminalCallbackResult:
        """Try to end the rollout as timed out; return the terminal that won."""
        session = self._sessions[rollout_id]
        reply = {"ok": True} if acknowledgment is None else dict(acknowledgment)
        attempt = TerminalCallbackResult(rollout_id, "timeout", session.completion, acknowledgment=reply)
        return await self._reach_terminal(session, attempt)

    async def acknowledge_without_commit(
        self,
        rollout_id: str,
        source: TerminalSource = "cancelled",
        acknowledgment: Acknowledgment | None = None,
    ) -> TerminalCallbackResult:
        """End the rollout without the commit hook, unless a running commit wins; return the winner."""
        session = self._sessions[rollout_id]
        while session.commit is not None:
            await asyncio.wait({session.commit})
        if session.result is None:
            reply = {"ok": True} if acknowledgment is None else dict(acknowledgment)
            return self._accept(
                session, TerminalCallbackResult(rollout_id, source, session.completion, acknowledgment=reply)
            )
        return session.result

    async def wait_terminal(self, rollout_id: str, timeout_s: float | None = None) -> TerminalCallbackResult:
        """Wait for the rollout's terminal, across commits that fail and are repeated; raises asyncio.TimeoutError."""
        session = self._sessions.get(rollout_id)
        if session is None:
            finished = self._finished[rollout_id]
            return TerminalCallbackResult(
                rollout_id, finished.source, acknowledgment=finished.acknowledgment()
            )
        if session.discarded and session.commit is not None:
            return await asyncio.shield(session.commit)
        # Neither a cancelled waiter nor its timeout cancels the future, which others may wait for.
        done, _ = await asyncio.wait({session.arrival}, timeout=timeout_s)
        if not done:
            raise asyncio.TimeoutError
        return session.arrival.result()

    def fail(self, rollout_id: str, error: Exception) -> None:
        """Raise ``error`` in the rollout's waiter, unless there is a terminal."""
        session = self._sessions.get(rollout_id)
        if session is not None and not session.arrival.done():
            session.arrival.set_exception(error)
            session.arrival.exception()  # Without a waiter, asyncio would report it as never retrieved.

    async def discard(self, rollout_id: str) -> None:
        """Forget a rollout's payloads; its waiter is cancelled, a running commit is not."""
        session = self._sessions.get(rollout_id)
        if session is None:
            return
        session.discarded = True
        session.arrival.cancel()
        if session.commit is None:
            del self._sessions[rollout_id]

    async def _reach_terminal(
        self, session: _Session, attempt: TerminalCallbackResult
    ) -> TerminalCallbackResult:
        """Return the accepted terminal: the existing one, the one being committed, or else ``attempt``."""
        if session.result is not None:
            return session.result
        if session.commit is None:
            session.attempt = attempt
            session.commit = asyncio.create_task(self._commit(session, attempt))
            # Every observer may have been cancelled; asyncio would then report an exception that was never retrieved.
            session.commit.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(session.commit)

    async def _commit(self, session: _Session, attempt: TerminalCallbackResult) -> TerminalCallbackResult:
        try:
            replacement = await self._on_terminal_commit(attempt)
            if replacement is not None:
                attempt = replace(attempt, acknowledgment=replacement)
            return self._accept(session, attempt)
        finally:
            session.attempt = session.commit = None
            if session.discarded:
                del self._sessions[attempt.rollout_id]

    def _accept(self, session: _Session, result: TerminalCallbackResult) -> TerminalCallbackResult:
        # A copy of the exact size: orjson's own result keeps the kilobytes of its write buffer.
        encoded = bytes(memoryview(_encode(result.acknowledgment)))
        finished = _FinishedRollout(
            result.source,
            _PLAIN if encoded == _PLAIN else encoded,
            _fingerprint(session.completion),
            _fingerprint(result.grader),
        )
        self._finished[result.rollout_id] = finished
        if len(self._finished) > REMEMBERED_ROLLOUTS:
            self._finished.popitem(last=False)
        if finished.encoded_acknowledgment is not _PLAIN:
            self._large.append(finished)
            self._large_bytes += len(encoded)
        while self._large_bytes > REMEMBERED_ACKNOWLEDGMENT_BYTES:
            oldest = self._large.popleft()
            self._large_bytes -= len(oldest.encoded_acknowledgment)
            oldest.encoded_acknowledgment = _PLAIN
        session.result = result
        if not session.arrival.done():
            session.arrival.set_result(result)
        return result


def _check_repeat(rollout_id: str, channel: str, first: int | None, request: BaseModel) -> None:
    """Log an error if a repeated callback contradicts the first; late first callbacks are normal."""
    if first is not None and first != _fingerprint(request):
        logger.error(
            "conflicting duplicate %s callback for rollout %s; the first one counts", channel, rollout_id
        )


ADMISSION_TIMEOUT_S = 60.0
CANCEL_TIMEOUT_S = 5.0
RETRY_AFTER_DEFAULT_S = 1.0
RETRY_AFTER_BOUNDS_S = (0.05, 60.0)
_JSON_HEADERS = {"Content-Type": "application/json"}


class RolloutProtocolError(OsmosisError):
    """The rollout server sent a reply that the protocol does not know."""

    default_code = "PLATFORM_ERROR"

    def __init__(self, message: str, *, status_code: int) -> None:
        super().__init__(message, details={"status_code": status_code})
        self.status_code = status_code


class CallbackRolloutDriver(RolloutDriver):
    """Runs rollouts whose results arrive in a :class:`CallbackStore`."""

    def __init__(
        self,
        callback_store: CallbackStore,
        *,
        http_client: aiohttp.ClientSession | None = None,
        callback_timeout_s: float | None,
    ) -> None:
        self._store = callback_store
        self._session = http_client
        self._owns_session = http_client is None
        self._callback_timeout_s = callback_timeout_s

    async def run(self, request: RolloutRunRequest) -> RolloutOutcome:
        rollout_id = request.rollout_id
        if not rollout_id:
            raise ValueError("rollout_id must not be empty")
        await self._store.register(rollout_id)
        try:
            await self._admit(request)
            try:
                terminal = await self._store.wait_terminal(rollout_id, self._callback_timeout_s)
            except asyncio.TimeoutError:
                terminal = await self._store.finalize_timeout(
                    rollout_id, acknowledgment={"ok": True, "error_type": "callback_timeout"}
                )
                if terminal.source == "timeout":
                    await self._request_cancel(rollout_id)
            return _outcome(terminal)
        except asyncio.CancelledError:
            winner = await self._store.acknowledge_without_commit(rollout_id, source="cancelled")
            if winner.source == "cancelled":
                await self._request_cancel(rollout_id)
            raise
        finally:
            self._forget(rollout_id)
            await self._store.discard(rollout_id)

    async def aclose(self) -> None:
        """Close the session, unless the caller owns it."""
        if self._owns_session and self._session is not None:
            await self._session.close()
            self._session = None

    @abstractmethod
    def _open_session(self) -> aiohttp.ClientSession:
        """Open the session for requests to the rollout's server."""

    @abstractmethod
    async def _admit(self, request: RolloutRunRequest) -> None:
        """Have the rollout's server accept a rollout."""

    def _forget(self, rollout_id: str) -> None:
        """Release the state of a rollout that has ended."""

    async def _request_cancel(self, rollout_id: str) -> None:
        """Ask the server to cancel a rollout."""

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = self._open_session()
        return self._session


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
        rollout_id = request.rollout_id
        body = {
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
        encoded, timeout = encode_request(body), aiohttp.ClientTimeout(total=ADMISSION_TIMEOUT_S)
        url = server_url(self._base_url, "/rollout")
        while True:
            async with self._client().post(
                url, data=encoded, headers=_JSON_HEADERS, timeout=timeout
            ) as reply:
                if reply.status == 202:
                    await reply.read()
                    return
                if reply.status != 429:
                    raise refused_admission(reply.status, await reply.read(), "POST /rollout")
                wait_s = admission_pause_s(reply.headers)
            await asyncio.sleep(wait_s)

    async def _request_cancel(self, rollout_id: str) -> None:
        try:
            async with self._client().post(
                server_url(self._base_url, "/rollout/cancel"),
                data=orjson.dumps({"ids": [rollout_id]}),
                headers=_JSON_HEADERS,
                timeout=aiohttp.ClientTimeout(total=CANCEL_TIMEOUT_S),
            ) as reply:
                await reply.read()
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            logger.debug("could not cancel rollout %s on its server: %s", rollout_id, error)


def _outcome(result: TerminalCallbackResult) -> RolloutOutcome:
    """Return a terminal as an outcome; the workflow's message explains it if the grader gives none."""
    rollout_id, grader = result.rollout_id, result.grader
    if result.source == "timeout":
        return RolloutOutcome(RolloutStatus.FAILURE, error="callback_timeout", rollout_id=rollout_id)
    if result.source == "cancelled":
        return RolloutOutcome(RolloutStatus.CANCELLED, error="cancelled", rollout_id=rollout_id)
    if grader is None:
        error = "missing terminal grader callback"
        return RolloutOutcome(RolloutStatus.FAILURE, error=error, rollout_id=rollout_id)
    if grader.status.value == "success":
        return RolloutOutcome(RolloutStatus.SUCCESS, grader.sample, grader.err_message, rollout_id)
    message = grader.err_message
    if message is None and result.completion is not None:
        message = result.completion.err_message
    return RolloutOutcome(RolloutStatus.FAILURE, grader.sample, message, rollout_id)


def admission_pause_s(headers: Mapping[str, str]) -> float:
    """Return how long to wait for a full server, in seconds, within sane bounds."""
    shortest, longest = RETRY_AFTER_BOUNDS_S
    wait_s = retry_after_s(headers)
    return RETRY_AFTER_DEFAULT_S if wait_s is None else min(max(wait_s, shortest), longest)


def encode_request(body: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:
        # Integers beyond 64 bits and lone surrogates, which datasets do contain.
        return json.dumps(body).encode()


def refused_admission(status: int, body: bytes, route: str) -> RolloutProtocolError:
    """Return the error of an admission that is neither accepted nor postponed."""
    reason = " ".join(body.decode("utf-8", "replace").split())[:500]
    return RolloutProtocolError(
        f"the rollout server answered {status} to `{route}` (expected: 202 or 429)"
        + (f": {reason}" if reason else "."),
        status_code=status,
    )


LOOPBACK = "127.0.0.1"
MAX_BODY_BYTES = 64 * 1024 * 1024
# Only processes of this run connect, so the side that closes an idle connection is never this one:
# a client that reuses a connection at that very moment would lose its callback.
KEEP_ALIVE_S = 3600.0
SHUTDOWN_GRACE_S = 2.0
BACKLOG = 2048

# A grader is never cancelled.
_TERMINAL_STATUSES = frozenset({"success", "failure", "cancelled"})

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HasRoutes(Protocol):
    """Serves routes of its own, as :class:`osmosis_ai.controller.model_proxy.ModelProxy` does."""

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes to mount in the listener's application."""


def create_callback_app(store: CallbackStore, *, auth_token: str) -> web.Application:
    """Return the application that takes callbacks into ``store``."""
    token = _checked_token(auth_token, "auth_token")
    app = web.Application(client_max_size=MAX_BODY_BYTES)

    def handler(model: type[BaseModel], handle: Callable[..., Awaitable[Acknowledgment]]) -> Handler:
        async def take(request: web.Request) -> web.Response:
            body = await _read_callback(request, model)
            try:
                return json_reply(await handle(body.rollout_id, body))
            except UnknownRolloutIdError:
                return json_reply({"detail": "unknown rollout id"}, 404)
            except Exception:
                # Edge of the process: whatever the hook raised, the server reads "not durable" and retries.
                logger.exception("the result of rollout %s could not be committed", body.rollout_id)
                return json_reply({"detail": "the result could not be committed"}, 500)

        return _authenticated(take, token, _refused_callback)

    path = "/v1/rollouts/{rollout_id}"
    app.router.add_post(f"{path}/completion", handler(RolloutCompleteRequest, store.handle_completion))
    app.router.add_post(f"{path}/grader", handler(GraderCompleteRequest, store.handle_grader))
    return app


@dataclass(frozen=True)
class CallbackAddress:
    """Where agents on other machines reach this process."""

    host: str = LOOPBACK
    listen: str = ""
    ports: tuple[int, int] = (0, 0)

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> CallbackAddress:
        """Return what the operator of this machine has set."""
        host = env.get("OSMOSIS_BRIDGE_HOST", "").strip()
        listen = env.get("OSMOSIS_BRIDGE_LISTEN", "").strip()
        given = env.get("OSMOSIS_BRIDGE_PORTS", "").strip()
        first, dash, last = (given or "0").partition("-")
        numbers = (first, last if dash else first)
        if given and not all(each.isascii() and each.isdigit() and 0 < int(each) < 65536 for each in numbers):
            raise OsmosisError(f"OSMOSIS_BRIDGE_PORTS must be ports such as 9100-9199, not '{given}'.")
        return cls(host or LOOPBACK, listen, (int(numbers[0]), int(numbers[1])))

    def socket(self) -> socket.socket:
        listen = self.listen or self.host
        family = socket.AF_INET6 if ":" in listen else socket.AF_INET
        reason = "no port is given"
        for port in range(self.ports[0], self.ports[1] + 1):
            try:
                return socket.create_server((listen, port), family=family, backlog=BACKLOG)
            except UnicodeError:
                reason = "it is not a host name"
            except OSError as error:
                reason = error.strerror or str(error)
        hint = (
            "set OSMOSIS_BRIDGE_LISTEN to an address of this machine (0.0.0.0 for all), "
            "and OSMOSIS_BRIDGE_PORTS to free ports"
        )
        raise OsmosisError(
            f"the callback listener cannot listen on {listen} ({reason}).",
            hint=hint if self != CallbackAddress() else None,
        )


class CallbackListener:
    """Serves a callback store, and a model proxy if there is one; an async context manager."""

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
        """Listen on a free loopback port, or on the configured address."""
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
        self._runner, self._port = runner, listening.getsockname()[1]

    @property
    def port(self) -> int:
        if self._port is None:
            raise RuntimeError("the callback listener is not running")
        return self._port

    async def listen_on(self, listening: socket.socket) -> Callable[[], Awaitable[None]]:
        """Serve one more socket, such as one on a sandbox's loopback; return the function that stops it."""
        assert self._runner is not None
        site = web.SockSite(self._runner, listening, backlog=BACKLOG)
        await site.start()

        async def leave() -> None:
            with contextlib.suppress(RuntimeError):  # the listener was stopped, and the site with it
                await site.stop()

        return leave

    async def stop(self) -> None:
        """Stop listening; running requests get a moment to end. Does nothing when stopped."""
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
        """Its URL, ``http://127.0.0.1:<port>`` unless an address was given."""
        port, host = self.port, self._address.host
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def completion_url(self, rollout_id: str) -> str:
        return f"{self.chat_completions_url(rollout_id)}/completion"

    def grader_url(self, rollout_id: str) -> str:
        return f"{self.chat_completions_url(rollout_id)}/grader"

    def chat_completions_url(self, rollout_id: str) -> str:
        """Return a rollout's OpenAI base URL, to which clients append ``/chat/completions``."""
        return f"{self.base_url}/v1/rollouts/{quote(rollout_id, safe='')}"

    def _application(self) -> web.Application:
        if self._agents is not None:
            app = web.Application(client_max_size=MAX_BODY_BYTES)
            app.router.add_routes(self._agents.routes())
            return app
        app = create_callback_app(self._store, auth_token=self._auth_token)
        for route in self._bridge.routes() if self._bridge is not None else ():
            handler = _authenticated(route.handler, self._bridge_token, _refused_model_call)
            app.router.add_route(route.method, route.path, handler, **route.kwargs)
        return app


def _checked_token(token: str, name: str) -> str:
    if not token.strip():
        raise ValueError(f"{name} must not be blank")
    return token


def _authenticated(handler: Any, auth_token: str, refused: Callable[[], web.Response]) -> Handler:
    """Return a handler for requests with the bearer token only."""
    expected = auth_token.encode()

    async def authenticated(request: web.Request) -> web.StreamResponse:
        scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
        presented = credentials.strip().encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(presented, expected) or scheme.lower() != "bearer":
            return refused()
        response: web.StreamResponse = await handler(request)
        return response

    return authenticated


def _refused_callback() -> web.Response:
    detail = {"detail": "missing or wrong bearer token"}
    return web.json_response(detail, status=401, headers={"WWW-Authenticate": "Bearer"})


def _refused_model_call() -> web.Response:
    from osmosis_ai.controller.model_proxy import refusal

    return refusal(401, "missing or wrong bearer token", "invalid_api_key")


async def _read_callback(request: web.Request, model: type[BaseModel]) -> Any:
    """Return the body of a callback, with the rollout id of its path."""
    rollout_id = request.match_info["rollout_id"]
    if not is_single_path_segment(rollout_id):
        raise _unprocessable("the rollout id in the path is not a single path segment")
    try:
        content = loads(await request.read())
    except ValueError:
        raise _unprocessable("the body is not JSON") from None
    if not isinstance(content, dict):
        raise _unprocessable("the body is not a JSON object")
    if isinstance(sample := content.get("sample"), dict):
        # Never on the wire; left out, the model would copy every message for it.
        sample["trajectory_messages"] = None
    try:
        body: Any = model.model_validate(content)
    except ValidationError as error:
        raise _unprocessable(validation_errors(error)) from None
    # The path identifies the rollout; a body without the id belongs to the same one.
    body.rollout_id = body.rollout_id or rollout_id
    if body.rollout_id != rollout_id:
        raise _unprocessable("the rollout id in the body differs from the one in the path")
    if body.status.value not in _TERMINAL_STATUSES:
        raise _unprocessable(f"status '{body.status.value}' is not terminal")
    return body


def validation_errors(error: ValidationError) -> list[Any]:
    """Return what is wrong with a body, without the body."""
    return list(error.errors(include_url=False, include_input=False, include_context=False))


def json_reply(content: object, status: int = 200) -> web.Response:
    return web.Response(body=_encode(content), status=status, content_type="application/json")


def _unprocessable(detail: object) -> web.HTTPException:
    return web.HTTPUnprocessableEntity(
        text=_encode({"detail": detail}).decode(), content_type="application/json"
    )
