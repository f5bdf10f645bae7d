"""A model proxy in front of a stand-in model, and clients of it that can be cut off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from osmosis_ai.controller.callbacks import CallbackListener, CallbackStore, TerminalCallbackResult
from osmosis_ai.controller.model_proxy import ModelProxy, ProviderProxy
from osmosis_ai.llm.client import ModelClient
from osmosis_ai.llm.providers import ModelEndpoint
from tests.standin_model import StandInModel

SECRET = "sk-very-secret-0123456789"
TOKEN = "agents-token"
HELLO: dict[str, Any] = {"model": "osmosis-rollout", "messages": [{"role": "user", "content": "hello there"}]}


@dataclass
class ProxyWorld:
    model: StandInModel
    proxy: ProviderProxy
    url: str
    session: aiohttp.ClientSession

    def rollout_url(self, rollout_id: str) -> str:
        return f"{self.url}/v1/rollouts/{rollout_id}/chat/completions"

    def post(
        self,
        body: Any = HELLO,
        *,
        rollout_id: str = "r1",
        token: str | None = TOKEN,
        retry_count: int | None = None,
    ) -> Any:
        """A request as OpenAI's client sends it; bytes go out as they are."""
        headers = {"Content-Type": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        if retry_count is not None:
            headers["x-stainless-retry-count"] = str(retry_count)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.session.post(self.rollout_url(rollout_id), data=data, headers=headers)

    async def ask(self, body: Any = HELLO, **options: Any) -> tuple[int, Mapping[str, str], Any]:
        """Status, headers and JSON of one whole answer."""
        async with self.post(body, **options) as response:
            return response.status, response.headers, await response.json()

    async def content(self, body: Any = HELLO, **options: Any) -> str:
        status, _, answer = await self.ask(body, **options)
        assert status == 200, answer
        text: str = answer["choices"][0]["message"]["content"]
        return text

    async def events(self, body: Mapping[str, Any] = HELLO, **options: Any) -> list[str]:
        """The lines of a streamed answer that are not empty."""
        async with self.post({**body, "stream": True}, **options) as response:
            assert response.status == 200, await response.text()
            assert response.content_type == "text/event-stream"
            return [line for line in (await response.text()).splitlines() if line]

    async def cut_off(self, body: Any = HELLO, *, first_bytes: bool = False) -> None:
        """Send a request, hang up when the model has it or the first bytes are back, and wait until that is noticed."""
        self.model.arrived.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(self.url.rpartition(":")[2]))
        data = json.dumps(body).encode()
        head = (
            f"POST /v1/rollouts/r1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        writer.write(head.encode() + data)
        await self.model.arrived.wait()
        if first_bytes:
            await reader.readuntil(b": ping")
        writer.transport.abort()

        async def until_noticed() -> None:
            while not self.proxy._rollouts["r1"].running[-1].is_abandoned:  # noqa: ASYNC110 - the proxy does not signal it
                await asyncio.sleep(0)

        await asyncio.wait_for(until_noticed(), 60)


async def settle() -> None:
    """Let the event loop handle what is on its way between tasks and sockets of this process."""
    for _ in range(30):
        await asyncio.sleep(0)


@asynccontextmanager
async def proxy_world(model: StandInModel, *, transport: Any = "openai") -> AsyncIterator[ProxyWorld]:
    """Serve rollout ``r1`` from ``model``."""
    endpoint = ModelEndpoint("openai/m", "openai", "m", transport, model.base_url, SECRET)
    async with ModelClient(endpoint, max_attempts=3) as client:
        proxy = ProviderProxy(client)
        async with serve_proxy(proxy, TOKEN) as url, aiohttp.ClientSession() as session:
            proxy.open("r1")
            try:
                yield ProxyWorld(model, proxy, url, session)
            finally:
                proxy.close("r1")


@asynccontextmanager
async def serve_proxy(proxy: ModelProxy, token: str) -> AsyncIterator[str]:
    """Serve a model proxy as a run does; gives the URL."""

    async def commit(_: TerminalCallbackResult) -> None:
        return None

    store = CallbackStore(on_terminal_commit=commit)
    async with CallbackListener(store, auth_token="callbacks", bridge=proxy, bridge_token=token) as listener:
        yield listener.base_url
