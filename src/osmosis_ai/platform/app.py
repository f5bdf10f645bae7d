"""The ASGI application: the routers of ``routes`` with the middleware for every request.

From outside to inside: count requests, catch exceptions, refuse old clients and large bodies, route undecoded paths.
There are no redirects and no compression; clients do not expect them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from osmosis_ai._version import __version__
from osmosis_ai.platform.http.errors import ErrorEdge, install_error_handlers
from osmosis_ai.platform.http.middleware import BodyLimit, ClientVersions, RequestMeter
from osmosis_ai.platform.http.routing import RawPath
from osmosis_ai.platform.pages import runs as run_pages
from osmosis_ai.platform.pages import sign_in, workspace
from osmosis_ai.platform.pages.shell import load_templates
from osmosis_ai.platform.routes import (
    accounts,
    blobs,
    datasets,
    eval_runs,
    inference,
    models,
    operations,
    rollouts,
    secrets,
    training_runs,
    workers,
)
from osmosis_ai.platform.services import PlatformServices

# Requests that may wait for the disk or another writer at a time, while others are served.
_THREADS = 32
# Routes are tried in this order. Routes that clients poll come first; the last are pages of a workspace, whose name
# may be any first segment that nothing else has taken.
_IN_ORDER = (
    *(eval_runs, training_runs, datasets, accounts, blobs, secrets, rollouts, models, inference),
    *(sign_in, workspace, run_pages),
)


def create_app(services: PlatformServices) -> FastAPI:
    app = FastAPI(
        title="Osmosis platform",
        version=__version__,
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
    )
    app.state.services = services
    load_templates()
    install_error_handlers(app)
    # The last one added is the outermost.
    app.add_middleware(RawPath)
    app.add_middleware(BodyLimit, streamed=("/blobs/",))
    app.add_middleware(
        ClientVersions,
        minimum=services.config.minimum_cli_version,
        recommended=services.config.recommended_cli_version,
    )
    app.add_middleware(ErrorEdge)
    app.add_middleware(RequestMeter)
    app.router.routes.extend(workers.CALLS)
    for resource in (operations, *_IN_ORDER):
        app.include_router(resource.router)
    return app


def create_worker_app(services: PlatformServices) -> FastAPI:
    """Return the application for the workers of this machine: their calls, and bytes by signed URL."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.services = services
    install_error_handlers(app)
    app.add_middleware(RawPath)
    app.add_middleware(BodyLimit, streamed=("/blobs/",))
    app.add_middleware(ErrorEdge)
    app.router.routes.extend(workers.CALLS)
    app.include_router(blobs.router)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    import anyio.to_thread

    services: PlatformServices = app.state.services
    anyio.to_thread.current_default_thread_limiter().total_tokens = _THREADS
    services.datasets.ingest.start()
    # Before any claim is answered: who works on a run could not say so while the platform was away.
    await anyio.to_thread.run_sync(services.queue.extend_all)
    await anyio.to_thread.run_sync(services.runs.finish_deletions)
    services.maintenance.start()
    services.platform_shards.start()
    try:
        yield
    finally:
        await anyio.to_thread.run_sync(services.platform_shards.close)
        await anyio.to_thread.run_sync(services.maintenance.close)
        await anyio.to_thread.run_sync(services.datasets.ingest.close)
        await services.model_servers.close()
        services.submitter.close()
        services.sources.close()
        await anyio.to_thread.run_sync(services.rollouts.close)
