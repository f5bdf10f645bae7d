"""Runs rollouts over the rollout protocol: the store and listener for callbacks, and the driver of a rollout server."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import socket
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar
from urllib.parse import quote

import aiohttp
import orjson
from aiohttp import web
from pydantic import BaseModel, ValidationError

from osmosis_ai.controller.model_proxy import RefusedCallError
from osmosis_ai.errors import OsmosisError
from osmosis_ai.llm.replies import dumps, loads
from osmosis_ai.processes.addresses import describe_bind_error, listen, open_server_session, server_url
from osmosis_ai.retry_after import retry_after_s
from osmosis_ai.rollout.driver import RolloutDriver, RolloutOutcome, RolloutRunRequest
from osmosis_ai.rollout.types import (
    GraderCompleteRequest,
    RolloutCompleteRequest,
    RolloutStatus,
    is_single_path_segment,
)

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)

DEFAULT_DEADLINE_S = 3600.0
CALLBACK_GRACE_S = 60.0


@dataclass(frozen=True)
class AttemptTimeouts:
    """Time limits of an attempt's agent and grader; None means unlimited."""

    agent_s: float | None
    grader_s: float | None

    @property
    def callback_s(self) -> float:
        """Seconds from admission to the callback deadline."""
        if self.agent_s and self.grader_s:
            return self.agent_s + self.grader_s + CALLBACK_GRACE_S
        return DEFAULT_DEADLINE_S

    @property
    def completion_s(self) -> float:
        """Seconds from admission by a remote agent to its completion deadline."""
        return self.agent_s + CALLBACK_GRACE_S if self.agent_s else DEFAULT_DEADLINE_S


TerminalSource = Literal["grader", "timeout", "cancelled"]
Acknowledgment = Mapping[str, Any]
ModelT = TypeVar("ModelT", bound=BaseModel)
CallbackT = TypeVar("CallbackT", RolloutCompleteRequest, GraderCompleteRequest)
_OK: Acknowledgment = {"ok": True}


@dataclass(frozen=True)
class TerminalCallbackResult:
    """The terminal result of a rollout, with the callbacks received until then."""

    rollout_id: str
    source: TerminalSource
    completion: RolloutCompleteRequest | None = None
    grader: GraderCompleteRequest | None = None
    acknowledgment: Acknowledgment = field(default_factory=lambda: _OK)


class UnknownRolloutIdError(KeyError):
    """The rollout id was never registered, or its rollout has ended."""


class DuplicateRegistrationError(ValueError):
    """The rollout id was registered before; every attempt needs a new one."""


def duplicate_callback_payload(first: BaseModel, second: BaseModel) -> bool:
    """Return whether two callback bodies are equal."""
    return first == second


# A server repeats a callback for some minutes. Acknowledgments with token ids are large.
REMEMBERED_BYTES = 64 << 20
_ENTRY_BYTES = 256


@dataclass(slots=True)
class _Rollout:
    """A registered rollout that is not discarded, or whose result is being committed."""

    arrival: asyncio.Future[TerminalCallbackResult]
    completion: RolloutCompleteRequest | None = None
    grader: GraderCompleteRequest | None = None
    commit: asyncio.Task[TerminalCallbackResult] | None = None
    result: TerminalCallbackResult | None = None


class CallbackStore:
    """Matches callbacks with waiters, by rollout id."""

    def __init__(
        self,
        *,
        on_terminal_commit: Callable[[TerminalCallbackResult], Awaitable[Acknowledgment | None]],
        acknowledge_completion: Callable[[str], Acknowledgment] = lambda _: _OK,
    ) -> None:
        self._on_terminal_commit = on_terminal_commit
        self._acknowledge_completion = acknowledge_completion
        self._rollouts: dict[str, _Rollout] = {}
        self._finished: OrderedDict[str, bytes] = OrderedDict()
        self._finished_bytes = 0

    async def register(self, rollout_id: str) -> None:
        """Expect callbacks for a rollout; call it before dispatching it."""
        if rollout_id in self._rollouts or rollout_id in self._finished:
            raise DuplicateRegistrationError(f"rollout id {rollout_id!r} was registered before")
        self._rollouts[rollout_id] = _Rollout(asyncio.get_running_loop().create_future())

    async def handle_completion(self, rollout_id: str, request: RolloutCompleteRequest) -> Acknowledgment:
        """Remember how the workflow ended; this alone never ends a rollout."""
        if (finished := self._finished_acknowledgment(rollout_id)) is not None:
            return finished
        rollout = self._find(rollout_id)
        rollout.completion = _first("completion", rollout.completion, request)
        return rollout.result.acknowledgment if rollout.result else self._acknowledge_completion(rollout_id)

    async def handle_grader(self, rollout_id: str, request: GraderCompleteRequest) -> Acknowledgment:
        """Commit the grader's result, or join the running commit, and return the acknowledgment."""
        if (finished := self._finished_acknowledgment(rollout_id)) is not None:
            return finished
        rollout = self._find(rollout_id)
        rollout.grader = _first("grader", rollout.grader, request)
        return (await self._reach_terminal(rollout_id, "grader", _OK)).acknowledgment

    async def finalize_timeout(
        self, rollout_id: str, acknowledgment: Acknowledgment = _OK
    ) -> TerminalCallbackResult:
        """Try to end the rollout as timed out; return the terminal result that won."""
        return await self._reach_terminal(rollout_id, "timeout", acknowledgment)

    async def acknowledge_without_commit(
        self, rollout_id: str, source: TerminalSource = "cancelled", acknowledgment: Acknowledgment = _OK
    ) -> TerminalCallbackResult:
        """End the rollout without the commit hook, unless a running commit wins; return the winner."""
        rollout = self._find(rollout_id)
        while rollout.commit is not None:
            await asyncio.wait({rollout.commit})
        if rollout.result is None:
            result = TerminalCallbackResult(rollout_id, source, rollout.completion, None, acknowledgment)
            return self._accept(rollout, result)
        return rollout.result

    async def wait_terminal(self, rollout_id: str) -> TerminalCallbackResult:
        """Wait for the terminal result, across failed and repeated commits."""
        # Others may wait for the future, so a cancelled waiter must not cancel it.
        return await asyncio.shield(self._find(rollout_id).arrival)

    def fail(self, rollout_id: str, error: Exception) -> None:
        """Raise ``error`` in the rollout's waiter, unless there is a terminal result."""
        rollout = self._rollouts.get(rollout_id)
        if rollout is not None and not rollout.arrival.done():
            rollout.arrival.set_exception(error)
            rollout.arrival.exception()  # Without a waiter, asyncio would report it as never retrieved.

    async def discard(self, rollout_id: str) -> None:
        """Forget a rollout's payloads; its waiter is cancelled, a running commit is not."""
        if rollout_id in self._rollouts:
            rollout = self._rollouts[rollout_id]
            rollout.arrival.cancel()
            if rollout.commit is None:
                self._remove(rollout_id)
            else:
                rollout.commit.add_done_callback(lambda _: self._remove(rollout_id))

    def _find(self, rollout_id: str) -> _Rollout:
        if rollout_id not in self._rollouts:
            raise UnknownRolloutIdError(rollout_id)
        return self._rollouts[rollout_id]

    async def _reach_terminal(
        self, rollout_id: str, source: TerminalSource, acknowledgment: Acknowledgment
    ) -> TerminalCallbackResult:
        """Return the accepted terminal result, or else join or start a commit."""
        rollout = self._find(rollout_id)
        if rollout.result is not None:
            return rollout.result
        if rollout.commit is None:
            result = TerminalCallbackResult(
                rollout_id, source, rollout.completion, rollout.grader, acknowledgment
            )
            rollout.commit = asyncio.create_task(self._commit(rollout, result))
            # If every observer was cancelled, asyncio would report an exception as never retrieved.
            rollout.commit.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(rollout.commit)

    async def _commit(self, rollout: _Rollout, result: TerminalCallbackResult) -> TerminalCallbackResult:
        try:
            reply = await self._on_terminal_commit(result)
            return self._accept(rollout, result if reply is None else replace(result, acknowledgment=reply))
        except BaseException:
            # Not durable, so the next grader callback counts as the first.
            rollout.grader = None
            raise
        finally:
            rollout.commit = None

    def _accept(self, rollout: _Rollout, result: TerminalCallbackResult) -> TerminalCallbackResult:
        rollout.result = result
        if not rollout.arrival.done():
            rollout.arrival.set_result(result)
        return result

    def _remove(self, rollout_id: str) -> None:
        """Keep only the acknowledgment of a rollout, for repeated callbacks."""
        rollout = self._rollouts.pop(rollout_id, None)
        if rollout is None or rollout.result is None:
            return
        # A copy of the exact size: orjson's own result keeps the kilobytes of its write buffer.
        self._finished[rollout_id] = encoded = bytes(memoryview(_encode(rollout.result.acknowledgment)))
        self._finished_bytes += len(encoded) + _ENTRY_BYTES
        while self._finished_bytes > REMEMBERED_BYTES:
            _, oldest = self._finished.popitem(last=False)
            self._finished_bytes -= len(oldest) + _ENTRY_BYTES

    def _finished_acknowledgment(self, rollout_id: str) -> Acknowledgment | None:
        encoded = self._finished.get(rollout_id)
        return None if encoded is None else orjson.loads(encoded)


def _first(channel: str, first: CallbackT | None, request: CallbackT) -> CallbackT:
    """Return the first callback; log an error if a repeated one contradicts it."""
    if first is None:
        return request
    if first != request:
        logger.error("conflicting duplicate %s callback for rollout %s", channel, request.rollout_id)
    return first


ADMISSION_TIMEOUT_S = 60.0
MAX_REPLY_BYTES = 1024 * 1024


class RolloutProtocolError(OsmosisError):
    """The rollout server sent an unexpected reply."""

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
            arrival = self._store.wait_terminal(rollout_id)
            try:
                terminal = await asyncio.wait_for(arrival, self._callback_timeout_s)
            except asyncio.TimeoutError:
                reply = {"ok": True, "error_type": "callback_timeout"}
                terminal = await self._store.finalize_timeout(rollout_id, reply)
                if terminal.source == "timeout":
                    await self._request_cancel(rollout_id)
            return _outcome(terminal)
        except asyncio.CancelledError:
            winner = await self._store.acknowledge_without_commit(rollout_id)
            if winner.source == "cancelled":
                await self._request_cancel(rollout_id)
            raise
        finally:
            await self._store.discard(rollout_id)

    async def aclose(self) -> None:
        """Close the session, unless the caller owns it."""
        if self._owns_session and self._session is not None:
            await self._session.close()
            self._session = None

    @abstractmethod
    def _open_session(self) -> aiohttp.ClientSession:
        """Open the session for requests to the server."""

    @abstractmethod
    async def _admit(self, request: RolloutRunRequest) -> None:
        """Wait until the server has accepted the rollout."""

    async def _request_cancel(self, rollout_id: str) -> None:
        """Ask the server to cancel a rollout."""

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = self._open_session()
        return self._session

    async def _post_admission(self, url: str, body: dict[str, Any]) -> bytes:
        """Post a rollout until the server has room for it; return the reply."""
        data, headers = dumps(body), {"Content-Type": "application/json"}
        while True:
            async with self._client().post(url, data=data, headers=headers, allow_redirects=False) as reply:
                content = await read_bounded(reply)
            if reply.status == 202:
                return content
            if reply.status != 429:
                reason = " ".join(content.decode("utf-8", "replace").split())[:500]
                raise RolloutProtocolError(
                    f"the rollout server answered {reply.status} to `POST {reply.url.path}` "
                    f"(expected: 202 or 429): {reason or 'no reason given'}",
                    status_code=reply.status,
                )
            wait_s = retry_after_s(reply.headers)
            await asyncio.sleep(1.0 if wait_s is None else min(max(wait_s, 0.05), 60.0))


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
        super().__init__(callback_store, http_client=http_client, callback_timeout_s=callback_timeout_sec)
        self._base_url = rollout_base_url
        self._completion_url_for = completion_url_for
        self._grader_url_for = grader_url_for
        self._chat_completions_url_for = chat_completions_url_for
        self._chat_api_key = chat_api_key or None
        self._controller_api_key = _require_token(controller_api_key, "controller_api_key")

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
        await self._post_admission(server_url(self._base_url, "/rollout"), body)

    async def _request_cancel(self, rollout_id: str) -> None:
        url, timeout = server_url(self._base_url, "/rollout/cancel"), aiohttp.ClientTimeout(total=5.0)
        try:
            async with self._client().post(url, json={"ids": [rollout_id]}, timeout=timeout) as reply:
                await reply.read()
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            logger.debug("could not cancel rollout %s on its server: %s", rollout_id, error)


def _outcome(result: TerminalCallbackResult) -> RolloutOutcome:
    """Return the outcome of a terminal result; the workflow's message replaces a missing one of the grader."""
    rollout_id, grader = result.rollout_id, result.grader
    if result.source == "cancelled":
        return RolloutOutcome(RolloutStatus.CANCELLED, error="cancelled", rollout_id=rollout_id)
    if result.source == "timeout" or grader is None:
        error = "missing terminal grader callback" if result.source == "grader" else "callback_timeout"
        return RolloutOutcome(RolloutStatus.FAILURE, error=error, rollout_id=rollout_id)
    if grader.status.value == "success":
        return RolloutOutcome(RolloutStatus.SUCCESS, grader.sample, grader.err_message, rollout_id)
    message = grader.err_message
    if message is None and result.completion is not None:
        message = result.completion.err_message
    return RolloutOutcome(RolloutStatus.FAILURE, grader.sample, message, rollout_id)


async def read_bounded(reply: aiohttp.ClientResponse) -> bytes:
    """Return the body of a reply; raise ConnectionError if it is too large."""
    content = bytearray()
    async for piece in reply.content.iter_any():
        content += piece
        if len(content) > MAX_REPLY_BYTES:
            raise ConnectionError(f"its reply is larger than {MAX_REPLY_BYTES} bytes")
    return bytes(content)


MAX_BODY_BYTES = 64 * 1024 * 1024
_WRONG_TOKEN = "missing or wrong bearer token"
# A grader is never cancelled.
_TERMINAL_STATUSES = frozenset({"success", "failure", "cancelled"})

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpRefusal(web.HTTPException):
    """Refuses a request of a rollout server or an agent, with the reason in JSON."""

    def __init__(self, status: int, detail: object) -> None:
        self.status_code = status
        super().__init__(text=_encode({"detail": detail}).decode(), content_type="application/json")


def create_callback_app(store: CallbackStore, *, auth_token: str) -> web.Application:
    """Return the application that receives callbacks for ``store``."""
    token = _require_token(auth_token, "auth_token")

    def receiver(model: type[BaseModel], handle: Callable[..., Awaitable[Acknowledgment]]) -> Handler:
        async def receive(request: web.Request) -> web.Response:
            if not _has_token(request, token):
                raise HttpRefusal(401, _WRONG_TOKEN)
            rollout_id = request.match_info["rollout_id"]
            if not is_single_path_segment(rollout_id):
                raise HttpRefusal(422, "the rollout id in the path is not a single path segment")
            body: Any = await read_body(request, model)
            # The path identifies the rollout, so the body may leave the id out.
            body.rollout_id = body.rollout_id or rollout_id
            if body.rollout_id != rollout_id:
                raise HttpRefusal(422, "the rollout id in the body differs from the one in the path")
            if body.status.value not in _TERMINAL_STATUSES:
                raise HttpRefusal(422, f"status '{body.status.value}' is not terminal")
            return json_reply(await committed(rollout_id, handle(rollout_id, body)))

        return receive

    app, path = web.Application(client_max_size=MAX_BODY_BYTES), "/v1/rollouts/{rollout_id}"
    app.router.add_post(f"{path}/completion", receiver(RolloutCompleteRequest, store.handle_completion))
    app.router.add_post(f"{path}/grader", receiver(GraderCompleteRequest, store.handle_grader))
    return app


def _require_token(token: str | None, name: str) -> str:
    if not token or not token.strip():
        raise ValueError(f"{name} must not be blank")
    return token


def _has_token(request: web.Request, token: str) -> bool:
    scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
    presented = credentials.strip().encode("utf-8", "surrogateescape")
    return hmac.compare_digest(presented, token.encode()) and scheme.lower() == "bearer"


async def read_body(request: web.Request, model: type[ModelT]) -> ModelT:
    try:
        content = loads(await request.read())
        if isinstance(content, dict) and isinstance(sample := content.get("sample"), dict):
            # Never on the wire; without the key, the model would copy every message for it.
            sample["trajectory_messages"] = None
        return model.model_validate(content)
    except ValidationError as error:
        # The reply does not repeat the body.
        details = error.errors(include_url=False, include_input=False, include_context=False)
        raise HttpRefusal(422, details) from None
    except ValueError:
        raise HttpRefusal(422, "the body is not JSON") from None


async def committed(rollout_id: str, commit: Awaitable[Acknowledgment]) -> Acknowledgment:
    """Wait for a commit, and refuse the request if it fails."""
    try:
        return await commit
    except UnknownRolloutIdError:
        raise HttpRefusal(404, "unknown rollout id") from None
    except Exception:
        # Edge of the process: whatever the hook raised, the sender must read "not durable" and retry.
        logger.exception("the result of rollout %s could not be committed", rollout_id)
        raise HttpRefusal(500, "the result could not be committed") from None


def json_reply(content: object) -> web.Response:
    return web.Response(body=_encode(content), content_type="application/json")


def _encode(content: object) -> bytes:
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


LOOPBACK = "127.0.0.1"
# Only processes of this run connect. If this side closed idle connections, a client that reuses one at that moment
# would lose its callback.
KEEP_ALIVE_S = 3600.0


@dataclass(frozen=True)
class CallbackAddress:
    """The address at which agents on other machines reach this process."""

    host: str = LOOPBACK
    listen: str = ""
    ports: tuple[int, int] = (0, 0)

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> CallbackAddress:
        """Return the address that the operator of this machine configured."""
        host = env.get("OSMOSIS_BRIDGE_HOST", "").strip() or LOOPBACK
        listen = env.get("OSMOSIS_BRIDGE_LISTEN", "").strip()
        ports = env.get("OSMOSIS_BRIDGE_PORTS", "").strip()
        if not ports:
            return cls(host, listen)
        found = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", ports)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 0 < first <= last < 65536:
            raise OsmosisError(f"OSMOSIS_BRIDGE_PORTS must be ports such as 9100-9199, not '{ports}'.")
        return cls(host, listen, (first, last))

    def socket(self) -> socket.socket:
        """Listen on the first free port."""
        host, reason = self.listen or self.host, ""
        for port in range(self.ports[0], self.ports[1] + 1):
            try:
                return listen(host, port)
            except (OSError, UnicodeError) as error:
                reason = describe_bind_error(error)
        hint = (
            "set OSMOSIS_BRIDGE_LISTEN to an address of this machine, and OSMOSIS_BRIDGE_PORTS to free ports"
        )
        is_default = self == CallbackAddress()
        message = f"the callback listener cannot listen on {host} ({reason})."
        raise OsmosisError(message, hint=None if is_default else hint)


class HasRoutes(Protocol):
    def routes(self) -> Sequence[web.RouteDef]: ...


class CallbackListener:
    """Serves a callback store, and a model proxy if there is one; an async context manager.

    With ``agents`` it serves only their routes, which authenticate their callers themselves.
    """

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
        self._app = create_callback_app(store, auth_token=auth_token)
        if agents is not None:
            self._app = web.Application(client_max_size=MAX_BODY_BYTES)
            self._app.router.add_routes(agents.routes())
        elif bridge is not None:
            token = _require_token(bridge_token, "bridge_token")
            for route in bridge.routes():
                handler = _bridge_handler(route.handler, token)
                self._app.router.add_route(route.method, route.path, handler, **route.kwargs)
        self._address = address or CallbackAddress()
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen on a free loopback port, or on the configured address."""
        listening = self._address.socket()
        self._runner = web.AppRunner(
            self._app, access_log=None, keepalive_timeout=KEEP_ALIVE_S, shutdown_timeout=2.0
        )
        await self._runner.setup()
        await self.listen_on(listening)

    async def stop(self) -> None:
        """Stop listening; running requests get a moment to end."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    async def listen_on(self, listening: socket.socket) -> Callable[[], Awaitable[None]]:
        """Serve one more socket, such as one on a sandbox's loopback; return the function that stops it."""
        assert self._runner is not None
        site = web.SockSite(self._runner, listening, backlog=2048)
        await site.start()
        return site.stop

    @property
    def port(self) -> int:
        assert self._runner is not None, "the callback listener is not running"
        port: int = self._runner.addresses[0][1]
        return port

    @property
    def base_url(self) -> str:
        """Its URL, ``http://127.0.0.1:<port>`` unless an address was given."""
        host = self._address.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def completion_url(self, rollout_id: str) -> str:
        return f"{self.chat_completions_url(rollout_id)}/completion"

    def grader_url(self, rollout_id: str) -> str:
        return f"{self.chat_completions_url(rollout_id)}/grader"

    def chat_completions_url(self, rollout_id: str) -> str:
        """Return a rollout's OpenAI base URL, to which clients append ``/chat/completions``."""
        return f"{self.base_url}/v1/rollouts/{quote(rollout_id, safe='')}"


def _bridge_handler(handler: Any, token: str) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        if not _has_token(request, token):
            raise RefusedCallError(401, _WRONG_TOKEN, "invalid_api_key")
        response: web.StreamResponse = await handler(request)
        return response

    return handle
