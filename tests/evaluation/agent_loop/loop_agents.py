"""Agent loops and a model for tests that run them in this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from osmosis_ai.rollout import CompletionsResult, RolloutAgentLoop, RolloutMetrics, RolloutResult

ADD: dict[str, Any] = {
    "type": "function",
    "function": {"name": "add-up", "description": "Add.", "parameters": {"properties": {}}},
}


def row(question: str = "1 + 1?", **more: Any) -> dict[str, Any]:
    return {"system_prompt": "Be brief.", "user_prompt": question, "ground_truth": "2", **more}


class ScriptedClient:
    """A model that repeats the question, and records how it is used."""

    def __init__(self) -> None:
        self.tools: list[Any] | None = None
        self.offered: list[Any] = []
        self.resets = 0
        self.calls = 0
        self.closed = False

    def set_tools(self, tools: Any) -> None:
        self.tools = list(tools)

    def clear_tools(self) -> None:
        self.tools = None

    def reset_metrics(self) -> None:
        self.resets += 1
        self.calls = 0

    def get_metrics(self) -> RolloutMetrics:
        return RolloutMetrics(
            num_llm_calls=self.calls, prompt_tokens=7 * self.calls, response_tokens=self.calls
        )

    async def chat_completions(self, messages: list[dict[str, Any]], **_: Any) -> CompletionsResult:
        self.calls += 1
        self.offered.append(self.tools)
        return CompletionsResult({"role": "assistant", "content": f"about: {messages[-1]['content']}"})

    async def close(self) -> None:
        self.closed = True


async def answer(ctx: Any) -> RolloutResult:
    """Ask the model once and complete."""
    messages = list(ctx.request.messages)
    reply = await ctx.chat(messages, **ctx.request.completion_params)
    ended: RolloutResult = ctx.complete([*messages, reply.message], reward=0.5)
    return ended


class Agent(RolloutAgentLoop):
    """An agent whose ``run`` is given, and which records its requests."""

    name = "tried"

    def __init__(self, run: Callable[[Any], Awaitable[Any]] = answer, tools: Any = ()) -> None:
        self._run = run
        self._tools = [ADD] if tools == () else tools
        self.requests: list[Any] = []

    def get_tools(self, request: Any) -> Any:
        return self._tools

    async def run(self, ctx: Any) -> Any:
        self.requests.append(ctx.request)
        return await self._run(ctx)
