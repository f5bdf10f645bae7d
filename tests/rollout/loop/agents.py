"""Agent loops and models for tests."""

from __future__ import annotations

from typing import Any

from osmosis_ai.rollout import RolloutMetrics, RolloutRequest
from osmosis_ai.rollout.core.base import AgentLoopContext, CompletionsResult, RolloutAgentLoop, RolloutResult


class Echo(RolloutAgentLoop):
    """Asks the model once."""

    name = "echo"

    def get_tools(self, request: RolloutRequest) -> list[Any]:
        return []

    async def run(self, ctx: Any) -> RolloutResult:
        reply = await ctx.chat(ctx.request.messages)
        return ctx.complete([*ctx.request.messages, reply.message])


class CannedModel:
    """Answers "hello" and records the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[dict[str, Any]], dict[str, Any]]] = []

    async def chat_completions(self, messages: list[dict[str, Any]], **kwargs: Any) -> CompletionsResult:
        self.calls.append((messages, kwargs))
        return CompletionsResult({"role": "assistant", "content": "hello"})

    def get_metrics(self) -> RolloutMetrics:
        return RolloutMetrics(
            num_llm_calls=len(self.calls), llm_latency_ms=5.0, prompt_tokens=7 * len(self.calls)
        )


def request(**given: Any) -> RolloutRequest:
    fields: dict[str, Any] = {
        "rollout_id": "r1",
        "server_url": "http://controller",
        "messages": [{"role": "user", "content": "hi"}],
        "completion_params": {},
    }
    return RolloutRequest(**{**fields, **given})


def context(**given: Any) -> AgentLoopContext:
    return AgentLoopContext(**{"request": request(), "tools": [], "llm": CannedModel(), **given})
