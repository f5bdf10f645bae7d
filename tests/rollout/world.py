"""The other end of the protocol, in the test's own process: a controller that records what it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from aiohttp import web
from fastapi import FastAPI

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowContext, ExecutionBackend, Grader, GraderContext
from osmosis_ai.rollout.model_client import close_shared_connections
from osmosis_ai.rollout.server import create_rollout_server

OK_MESSAGES = [{"role": "user", "content": "say ok"}, {"role": "assistant", "content": "ok"}]


@asynccontextmanager
async def listening(app: web.Application) -> AsyncIterator[str]:
    """Serve an application on this machine; yields its address."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=2048).start()
    try:
        yield "http://{}:{}".format(*runner.addresses[0][:2])
    finally:
        await close_shared_connections()
        await runner.cleanup()


@dataclass
class Callback:
    channel: str
    body: dict[str, Any]
    authorization: str | None


@dataclass
class Controller:
    """Takes callbacks; ``answers`` scripts (status, body) per channel, 200 when it runs out."""

    base_url: str = ""
    callbacks: list[Callback] = field(default_factory=list)
    answers: dict[str, list[tuple[int, dict[str, Any]]]] = field(default_factory=dict)
    chats: list[dict[str, Any]] = field(default_factory=list)
    on_callback: Callable[[str], None] = lambda channel: None
    _arrived: asyncio.Condition = field(default_factory=asyncio.Condition)

    def bodies(self, channel: str) -> list[dict[str, Any]]:
        return [callback.body for callback in self.callbacks if callback.channel == channel]

    async def wait_for(self, channel: str, count: int = 1) -> dict[str, Any]:
        """Return the ``count``-th body of a channel once it has come."""

        def enough() -> bool:
            return len(self.bodies(channel)) >= count

        async with self._arrived:
            await asyncio.wait_for(self._arrived.wait_for(enough), 60)
        return self.bodies(channel)[count - 1]

    def init_body(self, rollout_id: str = "r1", **changes: Any) -> dict[str, Any]:
        url = f"{self.base_url}/v1/rollouts/{rollout_id}"
        body: dict[str, Any] = {
            "initial_messages": [{"role": "user", "content": "say ok"}],
            "label": "ok",
            "metadata": None,
            "rollout_id": rollout_id,
            "chat_completions_url": url,
            "controller_api_key": "K1",
            "llm_api_key": "K2",
            "completion_callback_url": f"{url}/completion",
            "grader_callback_url": f"{url}/grader",
            "agent_timeout_sec": 600.0,
            "grader_timeout_sec": 600.0,
            "extra_fields": {"row_index": 0, "run_index": 0},
        }
        return {**body, **changes}

    async def _callback(self, request: web.Request) -> web.Response:
        channel = request.match_info["channel"]
        async with self._arrived:
            body = await request.json()
            self.on_callback(channel)
            self.callbacks.append(Callback(channel, body, request.headers.get("Authorization")))
            self._arrived.notify_all()
        script = self.answers.get(channel)
        status, answer = script.pop(0) if script else (200, {"ok": True})
        return web.json_response(answer, status=status)

    async def _chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.chats.append({**body, "authorization": request.headers.get("Authorization")})
        message = {"role": "assistant", "content": "ok"}
        return web.json_response({"choices": [{"index": 0, "finish_reason": "stop", "message": message}]})

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Controller]:
        app = web.Application()
        app.router.add_post("/v1/rollouts/{rollout_id}/chat/completions", self._chat)
        app.router.add_post("/v1/rollouts/{rollout_id}/{channel}", self._callback)
        async with listening(app) as self.base_url:
            yield self


@asynccontextmanager
async def client_of(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Run the app's lifespan and talk to it without a socket."""
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://rollout") as client,
    ):
        yield client


@asynccontextmanager
async def serving(backend: ExecutionBackend, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(create_rollout_server(backend=backend, **options)) as client:
        yield client


class SayOk(AgentWorkflow):
    """Answers without a model."""

    async def run(self, ctx: AgentWorkflowContext) -> Any:
        return [*ctx.prompt, {"role": "assistant", "content": "ok"}]


class ExactMatch(Grader):
    """One for the label as the last word."""

    async def grade(self, ctx: GraderContext) -> None:
        assert ctx.sample is not None
        ctx.set_reward(float(ctx.sample.messages[-1]["content"] == ctx.label))


class Removes(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        assert ctx.sample is not None
        ctx.sample.reward = 1.0
        ctx.sample.remove_sample = True


async def until_status(client: Any, rollout_id: str, status: str) -> None:
    async def look() -> None:
        found = None
        while found != status:
            found = (await client.get(f"/rollout/{rollout_id}/status")).json()["status"]
            await asyncio.sleep(0)

    await asyncio.wait_for(look(), 60)
