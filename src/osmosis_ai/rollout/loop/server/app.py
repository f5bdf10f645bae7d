"""Web application of a served agent."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..agent import RolloutAgentLoop
from .admission import RolloutAdmission
from .registration import Registration, start_registering
from .state import AppState

if TYPE_CHECKING:
    from fastapi import FastAPI

    from osmosis_ai.api.credentials import Credentials

    from ..client import OsmosisLLMClient
    from ..settings import RolloutSettings

logger = logging.getLogger(__name__)

Hook = Callable[[], Awaitable[None] | None]


def create_app(
    agent_loop: RolloutAgentLoop,
    max_concurrent: int | None = None,
    record_ttl_seconds: float | None = None,
    settings: RolloutSettings | None = None,
    credentials: Credentials | None = None,
    server_host: str | None = None,
    server_port: int | None = None,
    api_key: str | None = None,
    debug_dir: str | Path | None = None,
    on_startup: Hook | None = None,
    on_shutdown: Hook | None = None,
    *,
    public_host: str | None = None,
    say: Callable[[str], None] = logger.info,
) -> FastAPI:
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
        import fastapi
    except ModuleNotFoundError as error:
        from osmosis_ai.errors import install_command

        raise ImportError(
            f"create_app needs FastAPI, which the `server` extra has. Install it with: {install_command('server')}"
        ) from error
    from ...model_client import close_shared_connections
    from .routes import add_routes

    state = AppState(max_concurrent, record_ttl_seconds, None, settings, agent_loop.name)

    def open_client(**about: Any) -> OsmosisLLMClient:
        # Look the class up under its public path, so that tests can replace it there.
        public = import_module("osmosis_ai.rollout.server.app")
        if settings is not None:
            about["settings"] = settings.client
        client: OsmosisLLMClient = public.OsmosisLLMClient(**about)
        if hasattr(client, "share_connections"):  # a test's client may lack this method
            client.share_connections()
        return client

    registration = None
    if credentials is not None and server_host is not None and server_port is not None:
        registration = Registration(
            credentials, server_host, server_port, agent_loop.name, api_key=api_key, public_host=public_host
        )

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            state.start_cleanup_task()
            stack.push_async_callback(state.stop_cleanup_task)
            # The user's hook runs last: rollouts may need what it closes until they end.
            stack.push_async_callback(_call, on_shutdown)
            stack.push_async_callback(close_shared_connections)
            await _call(on_startup)
            endings: list[Callable[[], Awaitable[None]]] = [state.cancel_all]
            if registration is not None:
                endings.append(start_registering(registration, settings, say))
            try:
                yield
            finally:
                await asyncio.gather(*(end() for end in endings))

    app = fastapi.FastAPI(title=f"Osmosis agent loop: {agent_loop.name}", lifespan=life)
    admission = RolloutAdmission(agent_loop, state, open_client=open_client, debug_dir=debug_dir)
    add_routes(app, state, admission, api_key)
    app.state.rollouts = state
    # A rollout directory's entrypoint may bind only its app, so hosting finds the agent here.
    app.state.agent_loop = agent_loop
    return app


async def _call(hook: Hook | None) -> None:
    if hook is not None:
        called = hook()
        if inspect.isawaitable(called):
            await called
