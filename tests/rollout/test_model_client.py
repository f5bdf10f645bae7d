"""`get_rollout_context().http()` and `.openai()`, against a real endpoint on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from aiohttp import web

from osmosis_ai.rollout import RolloutContext, model_client
from osmosis_ai.rollout.model_client import close_shared_connections

pytestmark = pytest.mark.imports_much

REPLY = {
    "id": "c",
    "object": "chat.completion",
    "created": 0,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
}
BODY = {"model": "m", "messages": []}


class Endpoint:
    """A model for any number of rollouts; it remembers who asked, with which key, over which connection."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.retries: list[str | None] = []
        self.base_url = ""
        self.breaks = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append((request.path, request.headers.get("Authorization")))
        self.retries.append(request.headers.get("x-stainless-retry-count"))
        assert request.transport is not None
        if self.breaks:
            self.breaks -= 1
            request.transport.abort()
        return web.json_response(REPLY, headers={"Set-Cookie": "whose=mine"})

    async def __aenter__(self) -> Endpoint:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.base_url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await close_shared_connections()
        await self._runner.cleanup()

    def rollout(self, name: str) -> RolloutContext:
        return RolloutContext(f"{self.base_url}/v1/rollouts/{name}", f"key-{name}", name)


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with Endpoint() as endpoint:
        yield endpoint


async def test_each_rollout_calls_its_own_address_with_its_own_key_over_shared_connections(
    endpoint: Endpoint,
) -> None:
    for name in ("a", "b"):
        reply = await endpoint.rollout(name).http().post("/chat/completions", json=BODY)
        assert reply.json() == REPLY
        completion = await endpoint.rollout(name).openai().chat.completions.create(model="m", messages=[])
        assert completion.choices[0].message.content == "hi"

    assert endpoint.asked == [
        (f"/v1/rollouts/{name}/chat/completions", f"Bearer key-{name}") for name in ("a", "a", "b", "b")
    ]
    # Not the sockets: on a busy machine one may have been idle for too long in between.
    assert len(model_client._shared[asyncio.get_running_loop()]) == 1


async def test_many_calls_at_once_wait_for_no_connection(endpoint: Endpoint) -> None:
    clients = [endpoint.rollout(str(index)).http() for index in range(150)]
    replies = await asyncio.gather(*(client.post("/chat/completions", json=BODY) for client in clients))

    assert {reply.status_code for reply in replies} == {200}
    assert len({key for _, key in endpoint.asked}) == 150


async def test_the_key_and_the_cookies_of_a_rollout_go_nowhere_else(endpoint: Endpoint) -> None:
    client = endpoint.rollout("a").http()
    await client.post("/chat/completions", json=BODY)
    await client.get(f"{endpoint.base_url}/v1/rollouts/b/chat/completions")
    await client.get(f"{endpoint.base_url}/v1/rollouts/ab")
    await client.get(endpoint.base_url.replace("127.0.0.1", "localhost") + "/v1/rollouts/a/x")

    assert [key for _, key in endpoint.asked] == ["Bearer key-a", None, None, None]
    assert not endpoint.rollout("b").http().cookies


async def test_closing_a_client_closes_it_for_nobody_else(endpoint: Endpoint) -> None:
    one, other = endpoint.rollout("a"), endpoint.rollout("b")
    async with one.http() as client:
        await client.post("/chat/completions", json=BODY)
    await one.openai().close()

    assert (await other.http().post("/chat/completions", json=BODY)).status_code == 200
    assert (await one.http().post("/chat/completions", json=BODY)).status_code == 200
    assert await one.openai().chat.completions.create(model="m", messages=[])


async def test_a_call_whose_connection_broke_is_sent_again_and_says_so(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.0)
    endpoint.breaks = 1
    completion = await endpoint.rollout("a").openai().chat.completions.create(model="m", messages=[])

    assert completion.choices[0].message.content == "hi"
    assert endpoint.retries == ["0", "1"], "the bridge answers what says that it is a retry from its record"


async def test_what_went_wrong_with_a_connection_is_said(endpoint: Endpoint) -> None:
    endpoint.breaks = 1
    with pytest.raises(httpx.ReadError, match="disconnected"):
        await endpoint.rollout("a").http().post("/chat/completions", json=BODY)
    nobody = RolloutContext("http://127.0.0.1:9/v1", "key")
    with pytest.raises(httpx.ConnectError, match=r"cannot connect to 127\.0\.0\.1:9"):
        await nobody.http().post("/chat/completions", json=BODY)


async def test_a_stream_comes_as_it_is_sent(endpoint: Endpoint) -> None:
    async with endpoint.rollout("a").http().stream("POST", "/chat/completions", json=BODY) as reply:
        assert b"".join([piece async for piece in reply.aiter_bytes()]).startswith(b'{"id"')


def test_a_client_serves_every_event_loop_it_is_used_in() -> None:
    kept: list[RolloutContext] = []

    async def call() -> int:
        async with Endpoint() as endpoint:
            rollout = kept[0] if kept else endpoint.rollout("a")
            kept.append(rollout)
            url = f"{endpoint.base_url}/v1/rollouts/a/chat/completions"
            return (await rollout.http().post(url, json=BODY)).status_code

    assert [asyncio.run(call()), asyncio.run(call())] == [200, 200]


async def test_a_rollout_without_a_model_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OSMOSIS_CHAT_COMPLETIONS_URL", raising=False)
    for opened in (RolloutContext().http, RolloutContext().openai):
        with pytest.raises(RuntimeError, match=r"this rollout has no model.*OSMOSIS_CHAT_COMPLETIONS_URL"):
            opened()


async def test_no_key_is_shown(endpoint: Endpoint) -> None:
    rollout = endpoint.rollout("a")
    shown: list[Any] = [rollout, rollout.http(), rollout.openai(), rollout.http().auth]
    assert "key-a" not in "".join(map(repr, shown))
