"""An agent of Strands that multiplies with a tool, graded against the known product.

The configuration holds a placeholder for the model; `OsmosisStrandsAgent` puts the rollout's own in its place. The
agent is the sample: its messages are what the grader reads.
"""

from __future__ import annotations

import os
import re

import uvicorn
from strands import tool
from strands.models.model import Model
from strands.types.exceptions import MaxTokensReachedException

from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.rollout.context import AgentWorkflowContext, GraderContext
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.integrations.agents.strands import OsmosisRolloutModel, OsmosisStrandsAgent
from osmosis_ai.rollout.server import create_rollout_server
from osmosis_ai.rollout.types import AgentWorkflowConfig, ConcurrencyConfig

ANSWER = re.compile(r"####\s*(-?\d+)")


@tool
def multiply(a: int, b: int) -> str:
    """Multiply two integers."""
    return str(a * b)


class CalculatorConfig(AgentWorkflowConfig):
    """What every rollout gets a copy of."""

    model: Model


class CalculatorWorkflow(AgentWorkflow[CalculatorConfig]):
    """Lets the agent call the model and the tool until the model answers."""

    async def run(self, ctx: AgentWorkflowContext[CalculatorConfig]) -> None:
        assert ctx.config is not None
        agent = OsmosisStrandsAgent(
            model=ctx.config.model,
            messages=ctx.prompt,
            system_prompt="Answer with #### and the number.",
            tools=[multiply],
            callback_handler=None,
        )
        try:
            await agent.invoke_async()
        except MaxTokensReachedException:
            # An answer that was cut off is a sample, too: it gets its reward instead of being lost.
            return


class CalculatorGrader(Grader):
    """Reward 1.0 when the agent's last answer is the row's ground truth."""

    async def grade(self, ctx: GraderContext) -> None:
        messages = ctx.sample.messages if ctx.sample else []
        blocks = messages[-1]["content"] if messages else []
        answers = ANSWER.findall("".join(block.get("text", "") for block in blocks))
        ctx.set_reward(1.0 if answers and answers[-1] == ctx.label else 0.0)


def main() -> None:
    config = CalculatorConfig(
        name="calculator",
        model=OsmosisRolloutModel(params={"temperature": 1.0, "max_tokens": 256}),
        concurrency=ConcurrencyConfig(max_concurrent=None),
    )
    backend = LocalBackend(workflow=CalculatorWorkflow, workflow_config=config, grader=CalculatorGrader)
    app = create_rollout_server(backend=backend)
    port = int(os.environ.get("_OSMOSIS_ROLLOUT_PORT", "8000"))
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
