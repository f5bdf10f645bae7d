"""A rollout whose agent is a program of its own: `agent.py`, which would run without Osmosis just as well."""

from __future__ import annotations

import os
import re

import uvicorn

from osmosis_ai.rollout import CommandWorkflow, Grader, GraderContext, LocalBackend
from osmosis_ai.rollout.server import create_rollout_server
from osmosis_ai.rollout.types import AgentWorkflowConfig, ConcurrencyConfig

ANSWER = re.compile(r"####\s*(-?\d+)")


class PrintedAnswer(Grader):
    """Reward 1.0 when the number that the program printed is the row's ground truth."""

    async def grade(self, ctx: GraderContext) -> None:
        printed = ctx.sample.extra_fields["command"]["stdout"] if ctx.sample else ""
        answers = ANSWER.findall(printed)
        ctx.set_reward(1.0 if answers and answers[-1] == str(ctx.label) else 0.0)


def main() -> None:
    # No limit here: how many programs run at once is the controller's choice (`batch_size`, `--max-in-flight`).
    config = AgentWorkflowConfig(name="command", concurrency=ConcurrencyConfig(max_concurrent=None))
    agent = CommandWorkflow(["python", "agent.py"])
    app = create_rollout_server(
        backend=LocalBackend(workflow=agent, workflow_config=config, grader=PrintedAnswer)
    )
    host = os.environ.get("_OSMOSIS_ROLLOUT_HOST", "127.0.0.1")
    uvicorn.run(
        app, host=host, port=int(os.environ.get("_OSMOSIS_ROLLOUT_PORT", "8000")), log_level="warning"
    )


if __name__ == "__main__":
    main()
