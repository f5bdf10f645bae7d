"""The controller against the SDK's own server: real processes, the model left out."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from osmosis_ai.driving.callback_registry import CallbackStore, TerminalCallbackResult
from osmosis_ai.driving.callback_server import CallbackListener
from osmosis_ai.driving.driver import RolloutOutcome, RolloutRunRequest
from osmosis_ai.driving.http_driver import HttpRolloutDriver
from osmosis_ai.driving.server_process import RolloutServer, ServerSpec

pytestmark = pytest.mark.e2e

ENTRYPOINT = """
import asyncio
import os

import uvicorn
from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.server import create_rollout_server


class Echo(AgentWorkflow):
    async def run(self, ctx):
        said = ctx.prompt[0]["content"]
        if said == "raise":
            raise RuntimeError("the agent broke")
        if said == "hang":
            await asyncio.Event().wait()
        return [*ctx.prompt, {"role": "assistant", "content": said}]


class Exact(Grader):
    async def grade(self, ctx):
        ctx.set_reward(float(ctx.sample.messages[-1]["content"] == ctx.label))


def main():
    app = create_rollout_server(backend=LocalBackend(workflow=Echo, grader=Exact))
    uvicorn.run(app, host="0.0.0.0", port=int(os.environ["_OSMOSIS_ROLLOUT_PORT"]), log_level="warning")


if __name__ == "__main__":
    main()
"""


@dataclass
class World:
    server: RolloutServer
    driver: HttpRolloutDriver
    commits: list[TerminalCallbackResult] = field(default_factory=list)

    async def run(
        self, said: str, *, rollout_id: str = "", agent_timeout_sec: float = 600.0
    ) -> RolloutOutcome:
        return await self.driver.run(
            RolloutRunRequest(
                messages=[{"role": "user", "content": said}],
                label="ok",
                rollout_id=rollout_id or f"rollout-{said}",
                agent_timeout_sec=agent_timeout_sec,
                grader_timeout_sec=600.0,
            )
        )


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    (tmp_path / "main.py").write_text(textwrap.dedent(ENTRYPOINT))
    spec = ServerSpec(
        rollout_dir=tmp_path,
        entrypoint="main.py",
        python=Path(sys.executable),
        env=dict(os.environ),
        artifact_root=tmp_path / "trials",
        port=None,
        log_path=tmp_path / "server.log",
    )
    commits: list[TerminalCallbackResult] = []

    async def commit(result: TerminalCallbackResult) -> None:
        commits.append(result)

    store = CallbackStore(on_terminal_commit=commit)
    async with CallbackListener(store, auth_token="K1") as listener, RolloutServer(spec) as server:
        driver = HttpRolloutDriver(
            rollout_base_url=server.base_url,
            callback_store=store,
            completion_url_for=listener.completion_url,
            grader_url_for=listener.grader_url,
            chat_completions_url_for=listener.chat_completions_url,
            chat_api_key="K2",
            controller_api_key="K1",
            callback_timeout_sec=600.0,
        )
        yield World(server, driver, commits)
        await driver.aclose()


async def test_rollouts_run_and_are_graded(world: World, tmp_path: Path) -> None:
    assert world.server.capacity == 4
    right, wrong = await asyncio.gather(world.run("ok"), world.run("no"))
    assert right.status.value == wrong.status.value == "success"
    assert right.sample is not None and right.sample.reward == 1.0
    assert wrong.sample is not None and wrong.sample.reward == 0.0
    assert {commit.rollout_id for commit in world.commits} == {"rollout-ok", "rollout-no"}
    assert all(commit.completion is not None for commit in world.commits)


async def test_a_workflow_that_raises_says_so(world: World) -> None:
    outcome = await world.run("raise")
    assert outcome.status.value == "failure"
    assert "the agent broke" in (outcome.error or "")
    (commit,) = world.commits
    assert commit.completion is not None and commit.completion.err_category is not None
    assert commit.completion.err_category.value == "agent_error"


async def test_a_workflow_that_hangs_is_ended_by_its_deadline(world: World) -> None:
    outcome = await world.run("hang", agent_timeout_sec=0.2)
    assert outcome.status.value == "failure"
    assert "deadline" in (outcome.error or "")


async def test_many_rollouts_go_through_a_server_of_four(world: World) -> None:
    outcomes = await asyncio.gather(*(world.run("ok", rollout_id=f"rollout-{index}") for index in range(60)))
    assert [outcome.sample.reward for outcome in outcomes if outcome.sample] == [1.0] * 60
    assert len({commit.rollout_id for commit in world.commits}) == 60
