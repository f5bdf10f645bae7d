"""Servers of models in the test's own event loop, in the place of real ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.models import ServableModel

TINY = ServableModel("osmosis/tiny")
CHAT = {"model": "osmosis/tiny", "messages": [{"role": "user", "content": "hi"}]}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class StandIn:
    """The server of a model in this event loop, with a handler the test chooses."""

    def __init__(self, handler: Handler, *, broken: str = "") -> None:
        self.api_key = "inner-key"
        self.started = self.stopped = 0
        self.has_stopped = asyncio.Event()
        self._handler = handler
        self._broken = broken
        self._runner: web.AppRunner | None = None
        self._port = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    async def start(self) -> None:
        self.started += 1
        if self._broken:
            raise OsmosisError(self._broken, code="INTERNAL")
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._handler)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        self.stopped += 1
        await self.die()
        self.has_stopped.set()

    async def die(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()


async def echo(request: web.Request) -> web.Response:
    body = await request.json()
    return web.json_response({"echo": body, "key": request.headers["Authorization"]})


class Starts:
    """Starts one stand-in after another, as often as one is needed, or those of certain models."""

    def __init__(self, *stand_ins: StandIn, of: Mapping[ServableModel, StandIn] | None = None) -> None:
        self._left = list(stand_ins)
        self._of = of or {}

    async def __call__(self, model: ServableModel) -> StandIn:
        server = self._of.get(model) or self._left.pop(0)
        await server.start()
        return server
