"""HTTP to an application in this process, for a third of the time that Starlette's client takes for a request.

That one goes to the thread of the event loop and back eight times for each request, and starts a loop and a thread for
each client. Here the loop lasts as long as the tests do, and is asked once for a whole reply.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import httpx
from anyio.from_thread import BlockingPortal
from fastapi import FastAPI


class _OneHop(httpx.BaseTransport):
    """Gives a request to an application, and its reply when all of it is there."""

    def __init__(self, app: FastAPI, portal: BlockingPortal) -> None:
        self._app, self._portal = app, portal
        self.address = "testclient"

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        return self._portal.call(self._answer, request)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        asked = iter([{"type": "http.request", "body": request.content, "more_body": False}])
        told: list[dict[str, Any]] = []
        ended = asyncio.Event()

        async def receive() -> dict[str, Any]:
            for message in asked:
                return message
            await ended.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            told.append(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                ended.set()

        # An exception has become a reply by then, and is only logged by the server.
        with contextlib.suppress(Exception):
            await self._app(_scope(request, self.address), receive, send)
        assert told, "the application did not answer"
        start, *body = told
        return httpx.Response(
            start["status"],
            headers=start.get("headers", []),
            content=b"".join(part.get("body", b"") for part in body),
            request=request,
        )


def _scope(request: httpx.Request, address: str) -> dict[str, Any]:
    url = request.url
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": url.scheme,
        "path": unquote(url.raw_path.partition(b"?")[0].decode("ascii")),
        "raw_path": url.raw_path.partition(b"?")[0],
        "root_path": "",
        "query_string": url.query,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "client": (address, 50000),
        "server": (url.host, url.port or {"http": 80, "https": 443}[url.scheme]),
        "state": {},
    }


class OneHopClient(httpx.Client):
    """A client of ``app``; nothing is followed."""

    def __init__(self, app: FastAPI, portal: BlockingPortal, base_url: str) -> None:
        self._one_hop = _OneHop(app, portal)
        super().__init__(transport=self._one_hop, base_url=base_url, trust_env=False)
        self.app = app

    @property
    def address(self) -> str:
        """Where the requests come from."""
        return self._one_hop.address

    @address.setter
    def address(self, address: str) -> None:
        self._one_hop.address = address


@contextlib.contextmanager
def running(
    app: FastAPI, portal: BlockingPortal, base_url: str = "http://testserver"
) -> Iterator[OneHopClient]:
    """Start ``app`` in the event loop of ``portal``, give a client of it, and stop it."""
    lifespan = portal.wrap_async_context_manager(app.router.lifespan_context(app))
    with lifespan, OneHopClient(app, portal, base_url) as client:
        yield client
