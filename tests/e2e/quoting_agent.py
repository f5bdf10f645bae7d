"""The multiply agent, which also shows the policy wrong answers of another agent.

It is next to the sample rollout's `main.py`. After the answer it asks for an easy sum, after a conversation in which
another agent guesses repeatedly. The policy did not sample those guesses; a learner that uses them learns to guess.
"""

from __future__ import annotations

import re
from typing import Any

import main
from main import INSTRUCTIONS, MULTIPLY_TOOL, MultiplyWorkflow

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    AgentWorkflowOutput,
    get_rollout_context,
)

MISSES = (10, -10, 20, -20, 100)
# Its first token is certain, so sampling it teaches nothing; the call is there to be read.
EASY = {"role": "user", "content": "What is 31 + 42?"}


class QuotingWorkflow(MultiplyWorkflow):
    """Answers like its parent; the later calls do not affect the reward."""

    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> AgentWorkflowOutput:
        output = await super().run(ctx)
        question = ctx.prompt[-1]
        left, right = map(int, re.findall(r"\d+", str(question["content"])))
        quoted: list[dict[str, Any]] = [INSTRUCTIONS]
        for miss in MISSES:
            quoted += [question, {"role": "assistant", "content": f"#### {left * right + miss}"}]
        await self.show([*quoted, EASY])
        return output

    async def show(self, messages: list[dict[str, Any]]) -> None:
        """Let the policy read ``messages`` and answer with one token."""
        rollout = get_rollout_context()
        assert rollout is not None
        body = {"model": "policy", "messages": messages, "tools": [MULTIPLY_TOOL], "max_tokens": 1}
        response = await rollout.http().post("/chat/completions", json=body)
        response.raise_for_status()


def serve() -> None:
    """Serve it as `main.py` serves its own."""
    workflow: type[AgentWorkflow[AgentWorkflowConfig]] = QuotingWorkflow
    main.MultiplyWorkflow = workflow
    main.main()


if __name__ == "__main__":
    serve()
