"""An agent that is served elsewhere, learning: its calls are recorded token by token, with tools it never sends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from osmosis_ai.driving.callback_registry import CallbackStore, TerminalCallbackResult
from osmosis_ai.driving.driver import RolloutRunRequest
from osmosis_ai.driving.loop_endpoints import LoopEndpoints
from tests.training.policy_world import MULTIPLY, PolicyWorld, policy_world, question


@asynccontextmanager
async def loop_url(world: PolicyWorld) -> AsyncIterator[tuple[str, LoopEndpoints]]:
    """Serve the policy to a loop, too."""

    async def commit(_: TerminalCallbackResult) -> None:
        return None

    endpoints = LoopEndpoints(CallbackStore(on_terminal_commit=commit), world.bridge)
    app = web.Application()
    app.add_routes(endpoints.routes())
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", endpoints
    finally:
        await runner.cleanup()


async def test_a_loops_calls_are_recorded_like_those_of_an_agent_that_sends_its_tools() -> None:
    async with policy_world() as world, loop_url(world) as (url, endpoints), aiohttp.ClientSession() as http:
        key = endpoints.open(RolloutRunRequest([], rollout_id="r1"))
        nullable = {**MULTIPLY, "function": {**MULTIPLY["function"], "description": None, "strict": None}}
        endpoints.offer_tools("r1", [nullable])
        body: dict[str, Any] = {
            "model": "default",
            "messages": question(),
            "rollout_id": "r1",
            "temperature": 1.0,
            "top_p": 1.0,
            "max_tokens": 64,
            "logprobs": True,
        }
        headers = {"Authorization": f"Bearer {key}"}
        async with http.post(f"{url}/v1/chat/completions", json=body, headers=headers) as reply:
            assert reply.status == 200, await reply.text()
            answer = await reply.json()
        assert answer["model"] == "default"
        assert {"id", "object", "created", "choices", "usage"} <= answer.keys()
        world.bridge.open("r2")
        await world.reply(question(), rollout_id="r2", max_tokens=64)
        as_loop, as_agent = world.engine.asked
        assert list(as_loop.prompt) == list(as_agent.prompt)
        recorded = world.bridge.take("r1")
        assert recorded.sampled_tokens == answer["usage"]["completion_tokens"] > 0
