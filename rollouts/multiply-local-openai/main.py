"""An agent of the OpenAI Agents SDK that multiplies with a tool, graded against the known product.

The configuration holds a placeholder for the model; `OsmosisAgent` puts the rollout's own in its place. The session
is the sample: what the runner remembers is what the grader reads.
"""

from __future__ import annotations

import os
import re
from typing import Any

import uvicorn
from agents import ModelSettings, Runner, function_tool, set_tracing_disabled
from agents.models.interface import Model

from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.rollout.context import AgentWorkflowContext, GraderContext
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.integrations.agents.openai_agents import (
    OsmosisAgent,
    OsmosisMemorySession,
    OsmosisRolloutModel,
)
from osmosis_ai.rollout.server import create_rollout_server
from osmosis_ai.rollout.types import AgentWorkflowConfig, ConcurrencyConfig

ANSWER = re.compile(r"####\s*(-?\d+)")

# With an OPENAI_API_KEY the framework would send every conversation to OpenAI's traces.
set_tracing_disabled(True)


@function_tool
def multiply(a: int, b: int) -> str:
    """Multiply two integers."""
    return str(a * b)


class CalculatorConfig(AgentWorkflowConfig):
    """What every rollout gets a copy of."""

    model: Model
    model_settings: ModelSettings


class CalculatorWorkflow(AgentWorkflow[CalculatorConfig]):
    """Lets the runner call the model and the tool until the model answers."""

    async def run(self, ctx: AgentWorkflowContext[CalculatorConfig]) -> None:
        assert ctx.config is not None
        agent = OsmosisAgent(
            name="calculator",
            instructions="Answer with #### and the number.",
            model=ctx.config.model,
            model_settings=ctx.config.model_settings,
            tools=[multiply],
        )
        prompt: Any = ctx.prompt
        await Runner.run(agent, prompt, session=OsmosisMemorySession(), max_turns=6)


class CalculatorGrader(Grader):
    """Reward 1.0 when the agent's last answer is the row's ground truth."""

    async def grade(self, ctx: GraderContext) -> None:
        items = ctx.sample.messages if ctx.sample else []
        answers = ANSWER.findall(said(items[-1]) if items else "")
        ctx.set_reward(1.0 if answers and answers[-1] == ctx.label else 0.0)


def said(item: dict[str, Any]) -> str:
    """Return the text of an item of the conversation, which is in the shape of OpenAI's Responses."""
    content = item.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def main() -> None:
    config = CalculatorConfig(
        name="calculator",
        model=OsmosisRolloutModel(),
        model_settings=ModelSettings(temperature=1.0, max_tokens=256),
        concurrency=ConcurrencyConfig(max_concurrent=None),
    )
    backend = LocalBackend(workflow=CalculatorWorkflow, workflow_config=config, grader=CalculatorGrader)
    app = create_rollout_server(backend=backend)
    port = int(os.environ.get("_OSMOSIS_ROLLOUT_PORT", "8000"))
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
