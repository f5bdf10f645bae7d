"""The other end of a served agent, in the test's own process: a trainer that keeps what it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
from aiohttp import web

from osmosis_ai.rollout.server.agent_loop import create_app
from tests.rollout.world import client_of, listening

Answer = Callable[[dict[str, Any]], web.Response]


def model_reply(body: dict[str, Any]) -> web.Response:
    """The model's reply to one call: the example's answer, or a call of its tool."""
    message: dict[str, Any] = {"role": "assistant", "content": "#### 42"}
    return web.json_response(
        {
            "id": body["rollout_id"],
            "object": "chat.completion",
            "created": 1,
            "model": "default",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
        }
    )


class Trainer:
    """Answers chat calls, takes completions.

    Attributes:
        on_chat: answers a chat call.
        refusals: statuses of the next completions; 200 when there are none left.
        elsewhere: where a completion that is redirected should go.
        chats, completions: what came, oldest first, each with its ``authorization``.
    """

    def __init__(self) -> None:
        self.url = ""
        self.on_chat: Answer = model_reply
        self.refusals: list[int] = []
        self.elsewhere = ""
        self.chats: list[dict[str, Any]] = []
        self.offers: list[dict[str, Any]] = []
        self.completions: list[dict[str, Any]] = []
        self._came = asyncio.Condition()

    def init(self, rollout_id: str = "R1", **changes: Any) -> dict[str, Any]:
        body: dict[str, Any] = {
            "rollout_id": rollout_id,
            "server_url": self.url,
            "messages": [{"role": "user", "content": "What is 6 * 7?"}],
            "completion_params": {"temperature": 0.5, "max_tokens": 64, "stop": "END"},
            "max_turns": 10,
            "max_tokens_total": 8192,
            "metadata": {"ground_truth": "42"},
            "api_key": "CB",
            "idempotency_key": None,
            "tool_server_url": None,
        }
        return {**body, **changes}

    async def completed(self, count: int = 1) -> list[dict[str, Any]]:
        """Return the completions once so many were taken."""
        return await self._wait(self.completions, count)

    async def offered(self, count: int = 1) -> list[dict[str, Any]]:
        """Return the completions once so many came, taken or refused."""
        return await self._wait(self.offers, count)

    async def asked(self, count: int = 1) -> list[dict[str, Any]]:
        """Return the chat calls once so many came."""
        return await self._wait(self.chats, count)

    async def _wait(self, kept: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
        async with self._came:
            await asyncio.wait_for(self._came.wait_for(lambda: len(kept) >= count), 120)
        return kept

    async def _keep(self, kept: list[dict[str, Any]], request: web.Request) -> dict[str, Any]:
        body: dict[str, Any] = await request.json()
        async with self._came:
            kept.append({**body, "authorization": request.headers.get("Authorization")})
            self._came.notify_all()
        return body

    async def _chat(self, request: web.Request) -> web.Response:
        return self.on_chat(await self._keep(self.chats, request))

    async def _completed(self, request: web.Request) -> web.Response:
        await self._keep(self.offers, request)
        status = self.refusals.pop(0) if self.refusals else 200
        if status < 300:
            await self._keep(self.completions, request)
        headers = {"Location": f"{self.elsewhere}/v1/rollout/completed"} if 300 <= status < 400 else {}
        return web.json_response({"detail": "as it was told to answer"}, status=status, headers=headers)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Trainer]:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/rollout/completed", self._completed)
        async with listening(app) as self.url:
            yield self


@asynccontextmanager
async def served(agent: Any, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Serve an agent, and talk to it without a socket."""
    async with client_of(create_app(agent, **options)) as client:
        yield client
