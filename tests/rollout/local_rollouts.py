"""Workflows and graders made from functions, and rollouts of them in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowContext,
    ExecutionRequest,
    ExecutionResult,
    Grader,
    GraderContext,
    LocalBackend,
)

PROMPT = [{"role": "user", "content": "say ok"}]


def request(name: str = "r1", **changes: Any) -> ExecutionRequest:
    return ExecutionRequest(**{"id": name, "prompt": PROMPT, "label": "ok", **changes})


def workflow(run: Callable[[AgentWorkflowContext], Any]) -> type[AgentWorkflow]:
    class Built(AgentWorkflow):
        async def run(self, ctx: AgentWorkflowContext) -> Any:
            return await run(ctx)

    return Built


def grader(grade: Callable[[GraderContext], Any]) -> type[Grader]:
    class Built(Grader):
        async def grade(self, ctx: GraderContext) -> None:
            await grade(ctx)

    return Built


def returning(value: Any) -> type[AgentWorkflow]:
    async def run(ctx: AgentWorkflowContext) -> Any:
        return value

    return workflow(run)


def rewarding(reward: float | None) -> type[Grader]:
    """Return a grader of one reward, or of none."""

    async def grade(ctx: GraderContext) -> None:
        if reward is not None:
            ctx.set_reward(reward)

    return grader(grade)


async def execute(
    backend: LocalBackend, request: ExecutionRequest
) -> tuple[ExecutionResult, ExecutionResult]:
    """Run a rollout and return the results passed to its two callbacks."""
    results: list[ExecutionResult] = []

    async def report(result: ExecutionResult) -> None:
        results.append(result.model_copy())

    await backend.execute(request, report, report)
    completion, graded = results
    return completion, graded


async def hang(_: Any) -> None:
    await asyncio.Event().wait()


async def until(condition: Callable[[], bool]) -> None:
    """Run the event loop until a condition holds."""
    give_up = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up
        await asyncio.sleep(0.01)
