"""Projects as their authors write them, run unchanged: the entry point is executed as a script."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from .world import Controller

SCRIPT = """
import os
from typing import Any

import aiohttp
import uvicorn

from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.rollout.context import AgentWorkflowContext, GraderContext, get_rollout_context
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.server import create_rollout_server
from osmosis_ai.rollout.types import AgentWorkflowConfig, AgentWorkflowOutput, ConcurrencyConfig, GraderConfig


class EchoConfig(AgentWorkflowConfig):
    model: Any = None
    temperature: float = 1.0


class EchoWorkflow(AgentWorkflow[EchoConfig]):
    def __init__(self, config: EchoConfig | None = None):
        super().__init__(config)
        self.temperature = config.temperature

    async def run(self, ctx: AgentWorkflowContext[EchoConfig]) -> AgentWorkflowOutput:
        rollout = get_rollout_context()
        messages = list(ctx.prompt)
        async with aiohttp.ClientSession() as session:
            async with session.post(
                f"{rollout.chat_completions_url}/chat/completions",
                headers={"Authorization": f"Bearer {rollout.api_key}"},
                json={"model": "osmosis-rollout", "messages": messages, "temperature": self.temperature},
            ) as reply:
                messages.append((await reply.json())["choices"][0]["message"])
        (ctx.artifacts_dir / "note.txt").write_text("kept")
        print("ran", rollout.rollout_id, flush=True)
        return AgentWorkflowOutput(messages=messages, metrics={"turns": 1})


class EchoGrader(Grader):
    async def grade(self, ctx: GraderContext) -> Any:
        answer = ctx.sample.messages[-1]["content"]
        ctx.set_reward(1.0 if answer == ctx.label else 0.0)


backend = LocalBackend(
    workflow=EchoWorkflow,
    workflow_config=EchoConfig(name="echo", concurrency=ConcurrencyConfig(max_concurrent=2)),
    grader=EchoGrader,
    grader_config=GraderConfig(name="echo-grader"),
)
app = create_rollout_server(backend=backend)


def main() -> None:
    uvicorn.run(app, host="0.0.0.0", port=int(os.environ.get("_OSMOSIS_ROLLOUT_PORT", "8000")))


if __name__ == "__main__":
    main()
"""


async def until_healthy(session: aiohttp.ClientSession) -> dict[str, Any]:
    while True:
        try:
            async with session.get("/health") as reply:
                return dict(await reply.json())
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(0.05)


@pytest.mark.e2e
async def test_a_project_for_the_hosted_sdk(
    controller: Controller, artifact_root: Path, tmp_path: Path, unused_tcp_port: int
) -> None:
    (tmp_path / "main.py").write_text(textwrap.dedent(SCRIPT))
    environment = {
        **os.environ,
        "_OSMOSIS_ROLLOUT_PORT": str(unused_tcp_port),
        "_OSMOSIS_ROLLOUT_INSTANCE_ID": "mine",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "main.py",
        cwd=tmp_path,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{unused_tcp_port}") as session:
            health = await asyncio.wait_for(until_healthy(session), 300)
            for name in ("r1", "r2", "r3"):
                async with session.post("/rollout", json=controller.init_body(name)) as reply:
                    assert reply.status == 202
            await controller.wait_for("grader", 3)
    finally:
        process.send_signal(signal.SIGTERM)
        output, _ = await asyncio.wait_for(process.communicate(), 60)

    samples = {body["rollout_id"]: body["sample"] for body in controller.bodies("grader")}
    assert health["instance_id"] == "mine"
    assert health["concurrency"]["max_concurrent"] == 2
    assert {name: (sample["reward"], sample["metrics"]) for name, sample in samples.items()} == {
        name: (1.0, {"turns": 1.0}) for name in ("r1", "r2", "r3")
    }
    assert (artifact_root / "r1" / "artifacts" / "note.txt").read_text() == "kept"
    assert all((artifact_root / name / "trajectory.json").exists() for name in samples)
    assert b"ran r1" in output
    assert b"POST /rollout" not in output, "one access line per rollout drowns what the project prints"
