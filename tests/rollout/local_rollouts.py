"""Workflows and graders made of a function, and rollouts of them in this process."""

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

NOTHING_YET = {"reward": None, "err_message": None}
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


async def execute(backend: LocalBackend, asked: ExecutionRequest) -> tuple[ExecutionResult, ExecutionResult]:
    """Run a rollout and return what its two callbacks were given."""
    told: list[ExecutionResult] = []

    async def tell(result: ExecutionResult) -> None:
        told.append(result.model_copy())

    await backend.execute(asked, tell, tell)
    completion, graded = told
    return completion, graded


async def hang(_: Any) -> None:
    await asyncio.Event().wait()


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until something in this process has come about."""
    give_up = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up
        await asyncio.sleep(0)
