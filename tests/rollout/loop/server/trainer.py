"""The controller of a served agent, in the test's own process, which records what it receives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from aiohttp import web

from osmosis_ai.rollout import create_app
from tests.rollout.world import client_of, listening

REPLY = {
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "#### 42"}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
}


class Trainer:
    """Answers chat calls and accepts completions.

    Attributes:
        refusals: statuses of the next completions; then 200.
        chats, offers, completions: calls, offered and accepted completions, each with its ``authorization``.
    """

    def __init__(self) -> None:
        self.url = ""
        self.refusals: list[int] = []
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
        """Wait for accepted completions."""
        return await self.received(self.completions, count)

    async def received(self, bodies: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
        """Wait until ``chats``, ``offers`` or ``completions`` has so many."""
        async with self._came:
            await asyncio.wait_for(self._came.wait_for(lambda: len(bodies) >= count), 120)
        return bodies

    async def _keep(self, kept: list[dict[str, Any]], request: web.Request) -> dict[str, Any]:
        body: dict[str, Any] = await request.json()
        async with self._came:
            kept.append({**body, "authorization": request.headers.get("Authorization")})
            self._came.notify_all()
        return body

    async def _chat(self, request: web.Request) -> web.Response:
        await self._keep(self.chats, request)
        return web.json_response(REPLY)

    async def _completed(self, request: web.Request) -> web.Response:
        await self._keep(self.offers, request)
        status = self.refusals.pop(0) if self.refusals else 200
        if status < 300:
            await self._keep(self.completions, request)
        return web.json_response({"detail": "scripted"}, status=status)

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


async def ended(server: httpx.AsyncClient, count: int = 1) -> None:
    """Wait until rollouts have ended, so that the end of the server does not report them again."""
    while (await server.get("/health")).json()["completed_rollouts"] < count:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
