"""An agent that multiplies: it may call a tool, and is graded against the known product.

The model is asked over plain HTTP, so every step is visible: the rollout context has a client with
the endpoint and its key, the conversation is a list of OpenAI messages, and what `run` returns is
what the grader sees. (`get_rollout_context().openai()` is the same as an OpenAI client.)
"""

from __future__ import annotations

import json
import os
import re
from decimal import Decimal
from typing import Any

import uvicorn

from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.rollout.context import AgentWorkflowContext, GraderContext, get_rollout_context
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.server import create_rollout_server
from osmosis_ai.rollout.types import AgentWorkflowConfig, AgentWorkflowOutput, ConcurrencyConfig

MAX_TURNS = 4
INSTRUCTIONS = {"role": "system", "content": "Answer with #### and the number."}
ANSWER = re.compile(r"####\s*(-?\d[\d,]*(?:\.\d+)?)")
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
MULTIPLY_TOOL = {
    "type": "function",
    "function": {"name": "multiply", "description": "Multiply two integers.", "parameters": PARAMETERS},
}


class MultiplyWorkflow(AgentWorkflow[AgentWorkflowConfig]):
    """Asks the model, executes the tool calls it makes, and stops at its first plain answer."""

    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> AgentWorkflowOutput:
        messages: list[dict[str, Any]] = [INSTRUCTIONS, *ctx.prompt]
        for _ in range(MAX_TURNS):
            reply = await self.ask_model(messages)
            messages.append(reply)
            tool_calls = reply.get("tool_calls") or []
            if not tool_calls:
                break
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": call_tool(call["function"])}
                for call in tool_calls
            ]
        return AgentWorkflowOutput(messages=messages)

    async def ask_model(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        rollout = get_rollout_context()
        assert rollout is not None, "the rollout server sets the context around run()"
        # The run decides which model answers, so the body names none in particular.
        body = {"model": "policy", "messages": messages, "tools": [MULTIPLY_TOOL], "temperature": 1.0}
        response = await rollout.http().post("/chat/completions", json=body)
        if response.status_code != 200:
            raise RuntimeError(f"the model answered HTTP {response.status_code}: {response.text}")
        reply = response.json()["choices"][0]["message"]
        return {key: value for key, value in reply.items() if value is not None}


class MultiplyGrader(Grader):
    """Reward 1.0 when the last `#### <number>` of the conversation is the row's ground truth."""

    async def grade(self, ctx: GraderContext) -> None:
        messages = ctx.sample.messages if ctx.sample else []
        said = "\n".join(str(m.get("content")) for m in messages if m["role"] == "assistant")
        answers = ANSWER.findall(said)
        correct = bool(answers) and Decimal(answers[-1].replace(",", "")) == Decimal(str(ctx.label))
        ctx.set_reward(1.0 if correct else 0.0)


def call_tool(function: dict[str, Any]) -> str:
    """Run one tool call; what is wrong with it is told to the model, which may try again."""
    try:
        if function["name"] != "multiply":
            return f"error: there is no tool named {function['name']!r}"
        arguments = json.loads(function["arguments"])
        a, b = arguments["a"], arguments["b"]
        if type(a) is not int or type(b) is not int:
            return "error: a and b must be integers"
        return str(a * b)
    except (KeyError, TypeError, ValueError) as error:
        return f"error: bad arguments ({error})"


def main() -> None:
    # No limit here: how many rollouts run at once is the controller's choice.
    config = AgentWorkflowConfig(name="multiply", concurrency=ConcurrencyConfig(max_concurrent=None))
    backend = LocalBackend(workflow=MultiplyWorkflow, workflow_config=config, grader=MultiplyGrader)
    app = create_rollout_server(backend=backend)
    host = os.environ.get("_OSMOSIS_ROLLOUT_HOST", "0.0.0.0")
    port = int(os.environ.get("_OSMOSIS_ROLLOUT_PORT", "8000"))
    uvicorn.run(app, host=host, port=port, log_level="warning")


if __name__ == "__main__":
    main()
