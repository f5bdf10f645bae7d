"""HTTP application of a served agent loop. ``POST /v1/rollout/init`` starts a rollout; a callback reports its outcome.

Every rollout has exactly one outcome, whatever the agent does. A delivery failure never changes it.
"""

# The route handlers are defined where FastAPI is imported, so their annotations must not be strings.
import asyncio
import hashlib
import inspect
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
from pydantic import ValidationError

from osmosis_ai.errors import install_command

from ..backend import awaitable, run_within, text_of
from ..config import RolloutSettings
from ..core.base import AgentLoopContext, RolloutAgentLoop, RolloutResult
from ..core.exceptions import (
    OsmosisRolloutError,
    OsmosisTimeoutError,
    OsmosisTransportError,
    OsmosisValidationError,
)
from ..core.schemas import (
    InitResponse,
    RolloutMetrics,
    RolloutRequest,
    RolloutResponse,
    get_max_metadata_size_bytes,
)
from ..extra_fields import CANCELLED
from ..tools import normalize_tools
from .api_key import validate_api_key
from .callback_delivery import DeliveryError, RetryableError, deliver_with_retries
from .registration import Registration, registered
from .state import AppState

if TYPE_CHECKING:
    from fastapi import FastAPI

    from osmosis_ai.api.credentials import Credentials

    from ..client import OsmosisLLMClient

logger = logging.getLogger(__name__)

MOST_BODY_BYTES = 16 * 1024 * 1024  # not counting metadata, which have their own limit
# How long an outcome is offered to a controller that does not accept it, normally and during shutdown.
COMPLETION_WINDOW_S, SHUTDOWN_WINDOW_S = 600.0, 10.0
SHUTDOWN_CONNECT_TIMEOUT_S = 1.5  # long enough to resend one lost packet
LONGEST_ERROR_MESSAGE = 4000

_LONGEST_KEY = 256
_RETRY_AFTER = {"Retry-After": "5"}
_RETRIED_STATUSES = frozenset({408, 425, 429})
_BODY = {"content": {"application/json": {"schema": RolloutRequest.model_json_schema()}}, "required": True}

Hook = Callable[[], Awaitable[None] | None]


def create_app(
    agent_loop: RolloutAgentLoop,
    max_concurrent: int | None = None,
    record_ttl_seconds: float | None = None,
    settings: RolloutSettings | None = None,
    credentials: "Credentials | None" = None,
    server_host: str | None = None,
    server_port: int | None = None,
    api_key: str | None = None,
    debug_dir: str | Path | None = None,
    on_startup: Hook | None = None,
    on_shutdown: Hook | None = None,
    *,
    public_host: str | None = None,
    say: Callable[[str], None] = logger.info,
) -> "FastAPI":
    """Return the application that serves ``agent_loop`` to controllers.

    Args:
        agent_loop: Runs the rollouts.
        max_concurrent: Maximum number of concurrent rollouts; None and 0 use the setting.
        record_ttl_seconds: How long a finished rollout is remembered; None uses the setting.
        settings: Defaults for the other arguments (default: the process's settings).
        credentials: Login for registration. Registration needs it, a host and a port.
        server_host: Address the server binds to.
        server_port: Port it listens on.
        api_key: Key that callers must send; None disables authentication.
        debug_dir: Directory for the agents' events, one file per rollout.
        on_startup: Called before the first request.
        on_shutdown: Called when no rollout is running any more.
        public_host: Address of this server for the platform. Detected if the server binds to every address.
        say: Called with messages about the registration.

    Raises:
        ImportError: The `server` extra is not installed.
    """
    try:
        from fastapi import FastAPI, HTTPException, Request, Response
        from starlette.requests import ClientDisconnect
    except ModuleNotFoundError as error:
        raise ImportError(
            f"create_app needs FastAPI, which the `server` extra has. Install it with: {install_command('server')}"
        ) from error
    from ..model_client import close_shared_connections

    state = AppState(max_concurrent, record_ttl_seconds, None, settings, agent_loop.name)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            state.start_cleanup_task()
            stack.push_async_callback(state.stop_cleanup_task)
            # The user's hook runs last: rollouts may need what it closes until they end.
            stack.push_async_callback(_call, on_shutdown)
            stack.push_async_callback(close_shared_connections)
            await _call(on_startup)
            if credentials is not None and server_host is not None and server_port is not None:
                server = Registration(
                    credentials, server_host, server_port, agent_loop.name, api_key, public_host
                )
                await stack.enter_async_context(registered(server, state.settings, say))
            stack.push_async_callback(state.cancel_all)
            yield

    app = FastAPI(title=f"Osmosis agent loop: {agent_loop.name}", lifespan=life)
    app.state.rollouts = state
    # A rollout directory's entrypoint may bind only its app, so hosting finds the agent here.
    app.state.agent_loop = agent_loop

    def check_key(request: Request) -> None:
        """Refuse a request without the key, as `Bearer <key>` or bare."""
        sent = request.headers.get("authorization", "")
        scheme, _, rest = sent.partition(" ")
        key = rest if scheme.lower() == "bearer" else sent
        if api_key is not None and not validate_api_key(key.strip(), api_key):
            raise HTTPException(401, "Invalid or missing API key", {"WWW-Authenticate": "Bearer"})

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {
            "status": "healthy",
            "agent_loop": state.agent_loop_name,
            "active_rollouts": state.active_count,
            "completed_rollouts": state.completed_count,
        }

    @app.get("/platform/health")
    async def platform_health(request: Request) -> dict[str, Any]:
        if api_key is None:
            raise HTTPException(404)
        check_key(request)
        return await health()

    @app.post(
        "/v1/rollout/init", status_code=202, response_model=InitResponse, openapi_extra={"requestBody": _BODY}
    )
    async def init(request: Request) -> Response:
        check_key(request)
        limit_s = state.settings.request_timeout_seconds
        try:
            body = await asyncio.wait_for(read(request), limit_s)
        except asyncio.TimeoutError:
            raise HTTPException(408, f"the request did not arrive within {limit_s:g} seconds") from None
        except ClientDisconnect:
            raise HTTPException(400, "the request is incomplete") from None
        return Response(start(parse(body), len(body)), 202, media_type="application/json")

    async def read(request: Request) -> bytes:
        most = MOST_BODY_BYTES + get_max_metadata_size_bytes()
        too_large = HTTPException(413, f"the request has more than {most} bytes")
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > most:
            raise too_large
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > most:
                raise too_large
        return bytes(body)

    def parse(body: bytes) -> RolloutRequest:
        try:
            request = RolloutRequest.model_validate_json(body)
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            raise HTTPException(
                422, [{**each, "loc": ("body", *each["loc"])} for each in problems]
            ) from error
        for field, problem in _unusable(request):
            raise HTTPException(422, [{"type": "value_error", "loc": ("body", field), "msg": problem}])
        return request

    def start(request: RolloutRequest, size_bytes: int) -> bytes:
        """Start a rollout unless its key is known, and return the reply. A refused request leaves no state.

        There is no await between lookup and registration, so concurrent requests with one key start one rollout.
        """
        key = request.idempotency_key or request.rollout_id
        if len(key) > _LONGEST_KEY:
            key = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        if (known := state.reply_to(key)) is not None:
            return known
        if state.closing:
            raise HTTPException(503, "the server is shutting down", _RETRY_AFTER)
        if not state.has_room(size_bytes):
            raise HTTPException(429, "too many rollouts are waiting; try again later", _RETRY_AFTER)
        try:
            tools = normalize_tools(agent_loop.get_tools(request), agent_loop.name)
            reply = InitResponse(rollout_id=request.rollout_id, tools=tools).model_dump_json().encode()
        except (Exception, SystemExit) as error:  # the user's code
            logger.exception("the agent's tools for rollout %s are unavailable", request.rollout_id)
            raise HTTPException(
                500, f"the agent's tools are unavailable: {type(error).__name__}: {error}"
            ) from error
        state.held_bytes += size_bytes
        state.mark_started(key, asyncio.ensure_future(run(key, request, tools, size_bytes)), reply)
        return reply

    async def run(key: str, request: RolloutRequest, tools: list[Any], size_bytes: int) -> None:
        started = time.monotonic()  # the latency includes the wait for a slot
        try:
            async with _open_client(request, settings) as client:
                context = AgentLoopContext(request, tools, client, started, _debug_dir=debug_dir)
                await _run_and_report(agent_loop, context, client, state)
        except Exception:  # the edge of this task: nothing awaits it
            logger.exception("rollout %s ended with an internal error", key)
        finally:
            state.held_bytes -= size_bytes
            state.mark_completed(key)

    return app


async def _call(hook: Hook | None) -> None:
    if hook is not None:
        called = hook()
        if inspect.isawaitable(called):
            await called


def _unusable(request: RolloutRequest) -> Iterator[tuple[str, str]]:
    """Yield the fields with which a rollout could never be reported, and the problem."""
    name, url = request.rollout_id, request.server_url
    if name in (".", "..") or "/" in name or "\\" in name or not name.isprintable():
        yield (
            "rollout_id",
            "an id must be printable, have no slashes or backslashes, and be neither '.' nor '..'",
        )
    if not _is_plain_address(url):
        yield (
            "server_url",
            "the address must be http(s)://HOST[:PORT][/PATH], without a user name, query or fragment",
        )
    key = request.api_key
    if key is not None and not (key.isascii() and key.isprintable()):
        yield "api_key", "a key consists of printable ASCII characters"


def _is_plain_address(url: str) -> bool:
    """Return whether a path can be appended to an address and a key sent to it."""
    parts = urlsplit(url)
    try:
        has_port = parts.port != 0
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL):
        return False
    plain = url.isprintable() and not any(c.isspace() for c in url)
    return has_port and plain and "@" not in parts.netloc and not parts.query and not parts.fragment


def _open_client(request: RolloutRequest, settings: RolloutSettings | None) -> "OsmosisLLMClient":
    # Look the class up under its public path, so that tests can replace it there.
    public = import_module("osmosis_ai.rollout.server.app")
    options = {} if settings is None else {"settings": settings.client}
    client: OsmosisLLMClient = public.OsmosisLLMClient(
        server_url=request.server_url, rollout_id=request.rollout_id, api_key=request.api_key, **options
    )
    if hasattr(client, "share_connections"):  # a test's client may lack this method
        client.share_connections()
    return client


async def _run_and_report(
    agent: RolloutAgentLoop, context: AgentLoopContext, client: "OsmosisLLMClient", state: AppState
) -> None:
    """Wait for a slot, run the agent and report the outcome.

    Cancelling the task ends the agent but not the report. Raises only when the event loop is ending.
    """
    try:
        async with state.semaphore:
            result = await _run_agent(agent, context)
    except asyncio.CancelledError:
        # Cancellation without closing means that the event loop is ending, so no report can be sent.
        if not state.closing:
            raise
        result = _failure(context, "the agent's server was shut down before the rollout had ended")
        result = replace(result, finish_reason=CANCELLED)
    if not state.closing:
        try:
            await _report(client, context, result, COMPLETION_WINDOW_S)
            return
        except asyncio.CancelledError:
            if not state.closing:
                raise
    await _report(client, context, result, SHUTDOWN_WINDOW_S, closing=True)


async def _run_agent(agent: RolloutAgentLoop, context: AgentLoopContext) -> RolloutResult:
    """Run the agent and return a result that can be sent."""
    try:
        result = await run_within(_result_of(agent, context), None)
    except Exception as error:  # any error of the user's code is the rollout's outcome
        logger.error("rollout %s: the agent failed", context.request.rollout_id, exc_info=error)
        return _failure(context, text_of(error) or type(error).__name__)
    return _sendable(context, result)


async def _result_of(agent: RolloutAgentLoop, context: AgentLoopContext) -> RolloutResult:
    result: Any = await awaitable(agent.run(context), "run")  # type: ignore[arg-type]  # one name for both contexts
    if not isinstance(result, RolloutResult):
        raise TypeError(f"the agent's run returned {type(result).__name__}, no RolloutResult")
    return result


def _failure(context: AgentLoopContext, message: str) -> RolloutResult:
    return context.error(message[:LONGEST_ERROR_MESSAGE].encode("utf-8", "backslashreplace").decode())


def _sendable(context: AgentLoopContext, result: RolloutResult) -> RolloutResult:
    """Return the result in JSON types. A result that cannot be sent becomes a failure with the reason."""
    status = getattr(result.status, "value", result.status)
    fields = {**vars(result), "rollout_id": context.request.rollout_id, "status": status}
    if not isinstance(result.metrics, RolloutMetrics):
        fields["metrics"] = None
    try:
        checked = RolloutResponse.model_validate(fields)
        if checked.reward is not None and not math.isfinite(checked.reward):
            raise ValueError(f"the reward {checked.reward} is not a finite number")
        sent = checked.model_dump(mode="json")
        json.dumps(sent, ensure_ascii=False, allow_nan=False).encode()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return _failure(context, f"the agent's result cannot be reported: {where}: {first['msg']}")
    except (ValueError, RecursionError) as error:
        return _failure(context, f"the agent's result cannot be reported: {error}")
    return replace(
        result,
        status=status,
        final_messages=sent["final_messages"],
        metrics=checked.metrics or context.error("").metrics,
        reward=checked.reward,
    )


async def _report(
    client: "OsmosisLLMClient",
    context: AgentLoopContext,
    result: RolloutResult,
    window_s: float,
    *,
    closing: bool = False,
) -> None:
    """Offer ``result`` for ``window_s`` seconds. An outcome that is refused or lost is logged.

    With ``closing``, stop as soon as the controller is unreachable.
    """
    give_up_at = time.monotonic() + window_s
    if closing:
        client.complete_rollout_retries = 0
        client.connect_timeout_s = SHUTDOWN_CONNECT_TIMEOUT_S

    async def send() -> None:
        try:
            left_s = max(give_up_at - time.monotonic(), 0.001)
            await asyncio.wait_for(client.complete_rollout(**vars(result)), left_s)
        except OsmosisRolloutError as error:
            refused = isinstance(error, OsmosisValidationError) and error.status_code not in _RETRIED_STATUSES
            if refused or (closing and isinstance(error, OsmosisTransportError | OsmosisTimeoutError)):
                raise DeliveryError(str(error), refused=refused) from error
            raise RetryableError(str(error)) from error
        except asyncio.TimeoutError as error:
            raise RetryableError("the controller did not answer in time") from error

    request = context.request
    try:
        await deliver_with_retries(send, request.server_url, patience_s=window_s)
    except DeliveryError as error:
        verb = "refused" if error.refused else "did not accept"
        lost = f"rollout {request.rollout_id}: its outcome ({result.status}) is lost"
        logger.error("%s: the controller %s it: %s", lost, verb, error)
