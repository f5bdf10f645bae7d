"""An agent that is served elsewhere is trained as the rollout it was written after: the same tokens, the same rewards."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from osmosis_ai.controller.remote_agents import AgentAddress
from osmosis_ai.evaluation.sources import RemoteSource
from tests.e2e.training import WORKSPACE, one_step, trainer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

KEY = "osm_rollout_canary-4711"
# The loop of the rollout directory, its reward given by itself: nothing else grades what is served elsewhere.
SERVED = """
import socket
import sys

import uvicorn
from multiply_loop import MultiplyLoop, product

from osmosis_ai.rollout import create_app


class Graded(MultiplyLoop):
    async def run(self, ctx):
        result = await super().run(ctx)
        result.reward = product(result.final_messages, ctx.request.metadata["ground_truth"], {})
        return result


listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
app = create_app(Graded(), api_key=sys.argv[1])
uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])
"""


SETTINGS = {
    "lr": 2e-3,
    "rollout_batch_size": 2,
    "n_samples_per_prompt": 4,
    "max_prompt_length": 512,
    "max_response_length": 512,
    "max_steps": 1,
    "eval_interval": 1,
}


async def train(run_dir: Path, **agent: Any) -> tuple[list[dict[str, Any]], bytes]:
    """Train one step; return its numbers and the adapter."""
    return one_step(run_dir, (await trainer(run_dir, SETTINGS, validated=4, **agent).run()).records)


async def test_a_served_agent_is_trained_on_the_same_tokens_and_rewards_as_the_rollout(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "multiply"
    shutil.copytree(WORKSPACE / "rollouts" / "multiply", directory)
    shutil.copy(Path(__file__).with_name("multiply_loop.py"), directory)
    (directory / "served.py").write_text(SERVED)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "served.py", KEY, cwd=directory, env=os.environ, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        address = AgentAddress("127.0.0.1", int(await process.stdout.readline()), KEY)
        served = RemoteSource("multiply", lambda: address, hint="")
        elsewhere = await train(tmp_path / "elsewhere", entrypoint="server://multiply", served=served)
    finally:
        process.kill()
        await process.wait()
    here = await train(tmp_path / "here")
    assert elsewhere == here
