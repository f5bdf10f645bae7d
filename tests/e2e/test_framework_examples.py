"""The example agents, run by the command with a stand-in model."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agent_workspace import CONFIG, Outcome, World
from tests.standin_model import Reply, StandInModel

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[2] / "examples"
AGENTS = ("openai-agents", "strands", "command")
ROWS = [("Compute 6 * 7.", "42"), ("What is 8 times 9?", "72"), ("Compute 5 * 5.", "26")]


def multiplies(body: dict[str, Any]) -> Reply:
    """Call the tool first, then answer with its result."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return Reply(content=f"#### {last['content']}")
    numbers = [int(number) for number in re.findall(r"\d+", json.dumps(last["content"]))]
    if len(numbers) != 2:
        return Reply()  # the run asks whether the model answers at all before it starts
    return Reply(content=None, tool_calls=[("multiply", dict(zip("ab", numbers, strict=True)))])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[World, Outcome]]:
    """Evaluate all at once: a framework takes seconds to import."""

    async def evaluate(agent: str) -> tuple[World, Outcome]:
        async with StandInModel(multiplies) as model:
            world = World(tmp_path_factory.mktemp(agent), model)
            shutil.copytree(EXAMPLES / agent, world.root / "rollouts" / agent)
            lines = [json.dumps({"user_prompt": asked, "ground_truth": truth}) for asked, truth in ROWS]
            (world.root / "data" / "rows.jsonl").write_text("\n".join(lines) + "\n")
            world.config(rollout=agent, timeout_s=600)
            started = await world.start("eval", "run", CONFIG, "--yes", "--json")
            out, err = await asyncio.wait_for(started.communicate(), 900)
            assert started.returncode is not None
            return world, Outcome(started.returncode, out.decode(), err.decode())

    async def evaluate_all() -> list[tuple[World, Outcome]]:
        return await asyncio.gather(*map(evaluate, AGENTS))

    return dict(zip(AGENTS, asyncio.run(evaluate_all()), strict=True))


@pytest.mark.parametrize("agent", AGENTS)
def test_example_agent(runs: dict[str, tuple[World, Outcome]], agent: str) -> None:
    world, outcome = runs[agent]
    assert outcome.status == 0, outcome.err
    assert json.loads(outcome.out)["status"] == "success"
    by_row = {record["row_index"]: record for record in world.records()}
    assert [by_row[row]["reward"] for row in range(3)] == [1.0, 1.0, 0.0]
    assert by_row[0]["model_calls"] == 2 and by_row[0]["tokens"] > 0
    _, *asked = (sent.body for sent in world.model.requests)
    assert [body["model"] for body in asked] == ["stand-in"] * 6
    assert {body["tools"][0]["function"]["name"] for body in asked} == {"multiply"}

    trajectory = json.loads((world.runs[0] / "trajectories" / "row_0_run_0.json").read_text())
    assert [(step["source"], step["message"]) for step in trajectory["steps"]] == [
        ("system", "Answer with #### and the number."),
        ("user", "Compute 6 * 7."),
        ("agent", ""),
        ("agent", "#### 42"),
    ]
    called = trajectory["steps"][2]
    assert called["tool_calls"] == [
        {"tool_call_id": "call_0", "function_name": "multiply", "arguments": {"a": 6, "b": 7}}
    ]
    assert called["observation"]["results"] == [{"source_call_id": "call_0", "content": "42"}]
    assert all(step["metrics"]["completion_tokens"] for step in trajectory["steps"][2:])
    about = trajectory["extra"]["osmosis"]
    assert about["reward"] == 1.0
    if agent == "command":
        kept = about["sample_extra_fields"]["command"]
        assert kept == {"exit_status": 0, "stdout": "#### 42\n", "stderr": ""}
