"""HTTP application of the rollout server, in front of :class:`RolloutHost`."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from pydantic import ValidationError

from osmosis_ai.event_loop import LoopMonitor

from ..backend import ExecutionBackend
from ..types.protocol import CancelRolloutsRequest, RolloutInitRequest
from .callback_delivery import CallbackDelivery
from .host import RolloutHost

# Names of the 0.2 SDK that agent loops import from this module, by defining module.
_NAMES_OF_AGENT_LOOPS = {
    "AppState": "osmosis_ai.rollout.server.state",
    "OsmosisLLMClient": "osmosis_ai.rollout.client",
    "create_app": "osmosis_ai.rollout.server.agent_loop",
}

INSTANCE_ID_ENV = "_OSMOSIS_ROLLOUT_INSTANCE_ID"
RETRY_AFTER_S = 5

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[Any]]


def create_rollout_server(
    *,
    backend: ExecutionBackend,
    lifespan: Lifespan | None = None,
    configure_logging: bool = True,
) -> FastAPI:
    """Return the application that serves ``backend`` to a controller.

    At shutdown, rollouts have :data:`~osmosis_ai.rollout.server.host.DRAIN_S` seconds to finish and are
    then cancelled. ``lifespan`` exits last.

    Args:
        backend: Executes the rollouts.
        lifespan: The caller's startup and shutdown, wrapped around the server's.
        configure_logging: Show INFO lines if the process has not configured logging, and disable uvicorn's
            access log.
    """
    if configure_logging and not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    host = RolloutHost(backend, CallbackDelivery())
    lag = LoopMonitor()

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[Any]:
        if configure_logging:
            # Set it here, because uvicorn sets its own levels when it starts.
            logging.getLogger("uvicorn.access").setLevel(logging.WARNING)
        # Import aiohttp now, so that the first rollouts do not wait for it.
        import aiohttp  # noqa: F401

        async with AsyncExitStack() as stack:
            lag.start()
            stack.callback(lag.stop)
            state = await stack.enter_async_context(lifespan(app)) if lifespan is not None else None
            stack.push_async_callback(_close_model_connections)
            stack.push_async_callback(host.close)
            yield state

    app = FastAPI(title="Osmosis rollout server", lifespan=life)
    _add_routes(app, backend, host, lag, os.environ.get(INSTANCE_ID_ENV))
    return app


async def _close_model_connections() -> None:
    """Close the rollouts' shared connections, if any were used."""
    if model_client := sys.modules.get("osmosis_ai.rollout.model_client"):
        await model_client.close_shared_connections()


def _add_routes(
    app: FastAPI, backend: ExecutionBackend, host: RolloutHost, lag: LoopMonitor, instance_id: str | None
) -> None:
    # The handlers read and write JSON themselves: FastAPI's own validation costs more than the rollout's
    # admission, and cannot render an error about a number that is not finite. For the same reason the busiest route
    # is one of Starlette's.

    @app.get("/health")
    async def health() -> Response:
        loop = lag.state()
        # Controllers limit concurrency by how busy this process is.
        busy = {"lag_ms": round(loop.lag_s * 1000, 1), "busy": round(loop.busy, 3)}
        identity = {"instance_id": instance_id} if instance_id else {}
        return _reply(200, {**backend.health(), "event_loop": busy, **identity})

    async def start(request: Request) -> Response:
        init = _read(RolloutInitRequest, await request.body())
        if isinstance(init, Response):
            return init
        refusal = host.admit(init)
        if refusal is None:
            return _reply(202, {})
        status, reason = refusal
        headers = {"Retry-After": str(RETRY_AFTER_S)} if status in (429, 503) else None
        return _reply(status, {"detail": reason}, headers)

    app.add_route("/rollout", start, methods=["POST"])

    @app.get("/rollout/{rollout_id}/status")
    async def status(rollout_id: str) -> Response:
        return _reply(200, (await host.status(rollout_id)).model_dump())

    @app.post("/rollout/cancel")
    async def cancel(request: Request) -> Response:
        selection = _read(CancelRolloutsRequest, await request.body())
        if isinstance(selection, Response):
            return selection
        return _reply(200, (await host.cancel(selection)).model_dump())


def _read(model: type[Any], body: bytes) -> Any:
    """Parse the body as a ``model``, or raise the 422 that describes the error."""
    try:
        try:
            content = orjson.loads(body)
        except orjson.JSONDecodeError:
            # Numbers out of range and lone surrogates: the model accepts them or names the field.
            content = json.loads(body)
        return model.model_validate(content)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        return _reply(422, {"detail": problems})
    except (ValueError, RecursionError) as error:
        return _reply(422, {"detail": f"the body is no JSON: {error}"})


def _reply(status: int, content: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(content), status, headers, "application/json")


def __getattr__(name: str) -> Any:
    home = _NAMES_OF_AGENT_LOOPS.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
