"""An agent whose replies are graded against a rubric, by a judge.

The judge is the model that JUDGE_MODEL names (`[env]` of the config). Until one is named, the rubric is applied as code:
`by_rule` gives what a careful judge would give, so that the rollout runs without a key. It can be that simple
because this rubric is about a number; keep it in step with the rubric, or delete it once you have a judge.
"""

from __future__ import annotations

import os
import re
from typing import Any

import uvicorn

from osmosis_ai.eval.rubric import evaluate_rubric
from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.rollout.context import AgentWorkflowContext, GraderContext, get_rollout_context
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.server import create_rollout_server
from osmosis_ai.rollout.types import AgentWorkflowConfig, ConcurrencyConfig

INSTRUCTIONS = {"role": "system", "content": "Answer with #### and the number."}
RUBRIC = """\
Score the reply to a question about a sum.
1.0: it ends with `####` and the reference answer.
0.5: it holds the reference answer, but does not end with it after `####`.
0.2: it ends with `####` and another number.
0.0: anything else.
"""
ENDING = re.compile(r"####\s*(-?[\d,]+)\s*\Z")


class AnswerWorkflow(AgentWorkflow[AgentWorkflowConfig]):
    """Asks the model once."""

    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = [INSTRUCTIONS, *ctx.prompt]
        # The run decides which model answers, so the body names none in particular.
        body = {"model": "policy", "messages": messages, "temperature": 1.0, "max_tokens": 256}
        response = await get_rollout_context().http().post("/chat/completions", json=body)
        if response.status_code != 200:
            raise RuntimeError(f"the model answered HTTP {response.status_code}: {response.text}")
        return [*messages, response.json()["choices"][0]["message"]]


class RubricGrader(Grader):
    """The judge's score is the reward; what it says of the reply is kept with the sample."""

    async def grade(self, ctx: GraderContext) -> None:
        reply = ctx.sample.messages[-1].get("content") or ""
        judge = os.environ.get("JUDGE_MODEL")
        if not reply.strip():
            ctx.set_reward(0.0)  # there is nothing to ask a judge about
        elif judge:
            judged = await evaluate_rubric(
                solution_str=reply, rubric=RUBRIC, ground_truth=str(ctx.label), model=judge
            )
            ctx.set_reward(judged.score)
        else:
            ctx.set_reward(by_rule(reply, str(ctx.label)))


def by_rule(reply: str, answer: str) -> float:
    """Return the rubric's score."""
    ending = ENDING.search(reply)
    if ending and ending[1].replace(",", "") == answer:
        return 1.0
    if re.search(rf"(?<!\d){re.escape(answer)}(?!\d)", reply.replace(",", "")):
        return 0.5
    return 0.2 if ending else 0.0


def main() -> None:
    # No limit here: how many rollouts run at once is the controller's choice.
    config = AgentWorkflowConfig(name="sums-rubric", concurrency=ConcurrencyConfig(max_concurrent=None))
    backend = LocalBackend(workflow=AnswerWorkflow, workflow_config=config, grader=RubricGrader)
    host = os.environ.get("_OSMOSIS_ROLLOUT_HOST", "0.0.0.0")
    port = int(os.environ.get("_OSMOSIS_ROLLOUT_PORT", "8000"))
    uvicorn.run(create_rollout_server(backend=backend), host=host, port=port, log_level="warning")


if __name__ == "__main__":
    main()
