"""Rollouts for tests: small agents that act as the row's prompt says."""

from __future__ import annotations

import json
from pathlib import Path

AGENT = """
import asyncio
import os
import signal

import aiohttp
import uvicorn

from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.rollout.context import get_rollout_context
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.server import create_rollout_server
from osmosis_ai.rollout.types import AgentWorkflowConfig, ConcurrencyConfig


class Agent(AgentWorkflow):
    async def run(self, ctx):
        said = ctx.prompt[-1]["content"]
        if said.startswith("write "):
            (ctx.artifacts_dir / "note.txt").write_text(said)
        if said == "raise":
            raise RuntimeError("the agent broke, key=" + os.environ.get("AGENT_KEY", "none"))
        if said == "number":
            return 42
        if said == "hang":
            await asyncio.sleep(3600)
        if said == "die":
            print("about to die", flush=True)
            os._exit(7)
        model = get_rollout_context()
        async with aiohttp.ClientSession() as session, session.post(
            f"{model.chat_completions_url}/chat/completions",
            headers={"Authorization": f"Bearer {model.api_key}"},
            json={"model": "policy", "messages": ctx.prompt},
        ) as reply:
            body = await reply.json()
            if reply.status != 200:
                raise RuntimeError(f"the model answered HTTP {reply.status}")
        return [*ctx.prompt, body["choices"][0]["message"]]


class EndsAlike(Grader):
    async def grade(self, ctx):
        said = ctx.sample.messages[0]["content"]
        if said == "no reward":
            return
        if said == "nan":
            ctx.set_reward(float("nan"))
        if said == "slow grader":
            await asyncio.sleep(3600)
        if said.startswith("reward "):
            ctx.set_reward(float(said.removeprefix("reward ")))
            return
        if said == "remove":
            ctx.sample.remove_sample = True
            return
        ctx.set_reward(1.0 if ctx.sample.messages[-1]["content"] == ctx.label else 0.0)


if __name__ == "__main__":
    config = AgentWorkflowConfig(name="test", concurrency=ConcurrencyConfig(max_concurrent=None))
    app = create_rollout_server(backend=LocalBackend(workflow=Agent, workflow_config=config, grader=EndsAlike))
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ["_OSMOSIS_ROLLOUT_PORT"]), log_level="error")
"""


def write_rollout(directory: Path, source: str = AGENT) -> Path:
    """Write a rollout that runs in the interpreter of the tests."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "main.py").write_text(source)
    return directory


def write_rows(path: Path, prompts: list[str], *, answer: str = "ok") -> Path:
    """Write one row per prompt, all with the same expected answer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.dumps({"user_prompt": prompt, "ground_truth": answer}) for prompt in prompts]
    path.write_text("".join(f"{row}\n" for row in rows))
    return path


def agent_with(classes: str, **names: str) -> str:
    """Return the agent's source with further classes; ``workflow`` and ``grader`` name those to use."""
    head, main, rest = AGENT.partition('if __name__ == "__main__":\n')
    for role, own in (("workflow", "Agent"), ("grader", "EndsAlike")):
        rest = rest.replace(f"{role}={own}", f"{role}={names.get(role, own)}")
    return f"{head}{classes.strip()}\n\n\n{main}{rest}"
