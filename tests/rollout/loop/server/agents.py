"""Agents that are served in tests."""

from __future__ import annotations

import asyncio
from typing import Any

from osmosis_ai.rollout import RolloutAgentLoop, RolloutRequest, RolloutResult

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number", "description": "The first."}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
}


class Calculator(RolloutAgentLoop):
    """Calls its model once and gives itself a reward; counts the calls of `get_tools`."""

    name = "calculator"

    def __init__(self) -> None:
        self.asked_for_tools = 0
        self.runs = 0

    def get_tools(self, request: RolloutRequest) -> list[Any]:
        self.asked_for_tools += 1
        return [ADD]

    async def run(self, ctx: Any) -> RolloutResult:
        self.runs += 1
        ctx.log_event("start", row=ctx.request.metadata)
        reply = await ctx.chat(ctx.request.messages, **ctx.request.completion_params)
        ctx.record_tool_call(latency_ms=2.0)
        return ctx.complete([*ctx.request.messages, reply.message], reward=1.0)


class Unready(Calculator):
    """Fails to list its tools the first time."""

    def get_tools(self, request: RolloutRequest) -> list[Any]:
        if not self.asked_for_tools:
            self.asked_for_tools += 1
            raise LookupError("the tool server is unavailable")
        return super().get_tools(request)


class Held(Calculator):
    """Runs until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.started = asyncio.Event()
        self.released = asyncio.Event()

    async def run(self, ctx: Any) -> RolloutResult:
        self.started.set()
        await self.released.wait()
        return ctx.complete([])


class Does(Calculator):
    """Calls a function with its context."""

    def __init__(self, what: Any) -> None:
        super().__init__()
        self._what = what

    async def run(self, ctx: Any) -> RolloutResult:
        return self._what(ctx)
