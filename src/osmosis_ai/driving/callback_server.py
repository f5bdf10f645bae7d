"""The HTTP door of the controller: callbacks come in here, and the agent's model calls.

It listens on loopback only, on a port the kernel chose, unless an agent on another machine calls back
(:class:`CallbackAddress`). A 200 to a grader's callback is sent only
after the commit hook has returned; a commit that failed is a 500, which the rollout server
delivers again. Two different keys guard the two kinds of routes, so that the key an agent holds
cannot post results.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import quote

import orjson
from aiohttp import web
from pydantic import ValidationError

from osmosis_ai.driving.callback_registry import UnknownRolloutIdError
from osmosis_ai.errors import OsmosisError
from osmosis_ai.rollout.types import (
    GraderCompleteRequest,
    GraderStatus,
    RolloutCompleteRequest,
    RolloutStatus,
)
from osmosis_ai.rollout.types.protocol import is_single_path_segment

if TYPE_CHECKING:
    from typing_extensions import Self

    from osmosis_ai.driving.callback_registry import CallbackStore

logger = logging.getLogger(__name__)

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
    """Serves on routes of its own, as the bridge does (:class:`osmosis_ai.driving.bridge.RolloutBridge`)."""

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
    from osmosis_ai.driving.bridge_errors import refusal

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
