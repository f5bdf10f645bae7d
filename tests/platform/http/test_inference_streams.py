"""Streams of `/v1`, as an ASGI server would drive them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from aiohttp import web

from osmosis_ai.platform import model_serving as served_module
from osmosis_ai.platform.model_serving import ModelServerPool
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import Member, application, assert_openai_error
from tests.platform.model_servers import CHAT, TINY, StandIn, Starts, echo


class _Client:
    """Speaks ASGI to the platform, so that a test decides when it reads and when it hangs up."""

    def __init__(self, services: PlatformServices, api_key: str) -> None:
        self._app = application(services)
        self._key = api_key
        self.hung_up = asyncio.Event()
        self.received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def post(self, body: dict[str, Any]) -> asyncio.Task[None]:
        content = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

        async def receive() -> dict[str, Any]:
            if content:
                return content.pop()
            await self.hung_up.wait()
            return {"type": "http.disconnect"}

        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/v1/chat/completions",
            "raw_path": b"/v1/chat/completions",
            "query_string": b"",
            "root_path": "",
            "headers": [(b"authorization", f"Bearer {self._key}".encode())],
        }
        return asyncio.ensure_future(self._app(scope, receive, self.received.put))


class Upstream:
    """A model that sends when the test says so, and tells when its client has gone."""

    def __init__(self) -> None:
        self.asked, self.gone, self.more = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.set()
        try:
            if not (await request.json()).get("stream"):
                await self.more.wait()
                return web.json_response({"done": True})
            reply = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
            await reply.prepare(request)
            await reply.write(b"data: 1\n\n")
            await self.more.wait()
            await reply.write(b"data: [DONE]\n\n")
            return reply
        finally:
            self.gone.set()


@pytest.fixture
def upstream() -> Upstream:
    return Upstream()


@pytest.fixture
async def platform(services: PlatformServices, upstream: Upstream) -> AsyncIterator[PlatformServices]:
    """The platform over a model that ``upstream`` speaks for."""
    served = ModelServerPool(Starts(StandIn(upstream.answer)))
    yield replace(services, model_servers=served)
    await served.close()


async def test_events_reach_the_client_as_they_come(
    platform: PlatformServices, api_key: str, upstream: Upstream
) -> None:
    client = _Client(platform, api_key)
    request = client.post({**CHAT, "stream": True})

    assert (await client.received.get())["status"] == 200
    assert (await client.received.get())["body"] == b"data: 1\n\n"
    upstream.more.set()
    await request
    rest = b"".join(client.received.get_nowait().get("body", b"") for _ in range(client.received.qsize()))
    assert rest == b"data: [DONE]\n\n"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_hangs_up_takes_its_generation_with_it(
    platform: PlatformServices,
    api_key: str,
    upstream: Upstream,
    stream: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = _Client(platform, api_key)
    request = client.post({**CHAT, "stream": stream})
    await upstream.asked.wait()
    if stream:
        assert (await client.received.get())["status"] == 200
        await client.received.get()
    client.hung_up.set()

    await asyncio.wait_for(upstream.gone.wait(), 300)
    await asyncio.wait_for(request, 300)
    monkeypatch.setattr(served_module, "MAX_REQUESTS", 1)
    with platform.model_servers.place("its place is free again", TINY):
        pass


async def test_a_model_that_dies_in_the_middle_of_a_stream_is_an_event(
    services: PlatformServices, api_key: str, member: Member
) -> None:
    async def die(request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        await reply.write(b"data: 1\n\n")
        assert request.transport is not None
        request.transport.abort()
        return reply

    platform = replace(services, model_servers=ModelServerPool(Starts(StandIn(die))))
    client = _Client(platform, api_key)
    await client.post({**CHAT, "stream": True})
    await platform.model_servers.close()

    body = b"".join(client.received.get_nowait().get("body", b"") for _ in range(client.received.qsize()))
    error = json.loads(body.decode().split("data: ")[-1])["error"]
    assert "ended before its answer was complete" in error["message"]


async def test_a_full_house_is_told_to_come_again(
    platform: PlatformServices, api_key: str, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_module, "MAX_REQUESTS", 1)
    first = _Client(platform, api_key).post(CHAT)
    await upstream.asked.wait()

    transport = httpx.ASGITransport(application(platform))
    async with httpx.AsyncClient(transport=transport, base_url="http://platform") as client:
        headers = {"Authorization": f"Bearer {api_key}"}
        refused = await client.post("/v1/chat/completions", json=CHAT, headers=headers)
    assert_openai_error(refused, 429, "rate_limit_exceeded")
    assert refused.headers["Retry-After"] == "1"
    upstream.more.set()
    await first


async def test_a_model_that_cannot_start_is_an_error_clients_read(
    services: PlatformServices, api_key: str
) -> None:
    platform = replace(services, model_servers=ModelServerPool(Starts(StandIn(echo, broken="no memory"))))
    transport = httpx.ASGITransport(application(platform))
    async with httpx.AsyncClient(transport=transport, base_url="http://platform") as client:
        reply = await client.post(
            "/v1/chat/completions", json=CHAT, headers={"Authorization": f"Bearer {api_key}"}
        )
    assert "no memory" in assert_openai_error(reply, 503, "model_unavailable")
    assert reply.headers["Retry-After"] == "10"
