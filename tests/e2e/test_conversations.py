"""An acknowledged sample keeps its conversation if its process is killed."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agent_workspace import World
from tests.e2e.kill_plan import seed_of_kills
from tests.evaluation.rollouts import AGENT
from tests.standin_model import StandInModel

pytestmark = pytest.mark.e2e

ROWS, KILLS = 24, 12
# Killed once its result is acknowledged and before anything else happens to the conversation.
DIES_ACKNOWLEDGED = """
from osmosis_ai.rollout.trajectory import RolloutArchive

name_it = RolloutArchive.publish


def die(archive, result, report, diagnostics):
    if result is not None and "die acknowledged" in result.sample.messages[0]["content"]:
        os.kill(os.getpid(), signal.SIGKILL)
    name_it(archive, result, report, diagnostics)


RolloutArchive.publish = die

if __name__ == "__main__":
"""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with StandInModel() as model:
        yield World(tmp_path, model)


def conversation(path: Path) -> tuple[str, list[str], dict[str, Any]]:
    """Return the question, the answers and the facts of a stored conversation."""
    document = json.loads(path.read_text())
    said = [step["message"] for step in document["steps"]]
    measured = [step["metrics"]["prompt_tokens"] for step in document["steps"] if "metrics" in step]
    assert len(measured) == 1, "what the controller knows of the model call is missing"
    return said[0], said[1:], document["extra"]["osmosis"]


async def test_server_killed_after_acknowledgement(world: World) -> None:
    killed = set(random.Random(seed_of_kills()).sample(range(ROWS), KILLS))
    prompts = [f"{'die acknowledged' if row in killed else 'answer'} {row}" for row in range(ROWS)]
    world.rows(*prompts)
    (world.agent / "main.py").write_text(AGENT.replace('if __name__ == "__main__":\n', DIES_ACKNOWLEDGED))

    # One at a time: no other attempt goes down with the server, so nothing is made twice.
    outcome = await world.osmosis(
        "eval", "run", "configs/eval/agent.toml", "--yes", "--json", "--max-in-flight", "1"
    )

    assert (outcome.status, outcome.resource["succeeded"]) == (0, ROWS), outcome.err
    (run,) = world.runs
    assert (run / "rollout-server.log").exists()
    found = {row: conversation(run / "trajectories" / f"row_{row}_run_0.json") for row in range(ROWS)}
    for row, (asked, answers, facts) in found.items():
        assert (asked, answers) == (prompts[row], ["ok"])
        assert facts["reward"] == 1.0
    summary = [json.loads(line) for line in (run / "summary.jsonl").read_text().splitlines()]
    assert [line["trajectory_filename"] for line in summary] == ["trajectory.json"] * ROWS
    assert len(world.records()) == ROWS
    world.assert_nothing_half_written()
