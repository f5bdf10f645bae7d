"""The examples of agent frameworks, as a user runs them: the command, the server, the engine, a model's server."""

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
FRAMEWORKS = ("openai-agents", "strands")
ROWS = [("Compute 6 * 7.", "42"), ("What is 8 times 9?", "72"), ("Compute 5 * 5.", "26")]


def multiplies(body: dict[str, Any]) -> Reply:
    """Call the tool first, then answer with what it gave."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return Reply(content=f"#### {last['content']}")
    numbers = [int(number) for number in re.findall(r"\d+", json.dumps(last["content"]))]
    if len(numbers) != 2:
        return Reply()  # the run asks whether the model answers at all before it starts
    return Reply(content=None, tool_calls=[("multiply", dict(zip("ab", numbers, strict=True)))])


def steps(trajectory: dict[str, Any]) -> list[tuple[str, str]]:
    return [(step["source"], step["message"]) for step in trajectory["steps"]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[World, Outcome]]:
    """Evaluate both at once: each takes seconds to import its framework."""

    async def evaluate(framework: str) -> tuple[World, Outcome]:
        async with StandInModel(multiplies) as model:
            world = World(tmp_path_factory.mktemp(framework), model)
            shutil.copytree(EXAMPLES / framework, world.root / "rollouts" / framework)
            lines = [json.dumps({"user_prompt": asked, "ground_truth": truth}) for asked, truth in ROWS]
            (world.root / "data" / "rows.jsonl").write_text("\n".join(lines) + "\n")
            world.config(rollout=framework, timeout_s=600)
            started = await world.start("eval", "run", CONFIG, "--yes", "--json")
            out, err = await asyncio.wait_for(started.communicate(), 900)
            assert started.returncode is not None
            return world, Outcome(started.returncode, out.decode(), err.decode())

    async def evaluate_all() -> list[tuple[World, Outcome]]:
        return await asyncio.gather(*map(evaluate, FRAMEWORKS))

    return dict(zip(FRAMEWORKS, asyncio.run(evaluate_all()), strict=True))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_agent_of_a_framework_calls_its_tool_and_is_graded(
    runs: dict[str, tuple[World, Outcome]], framework: str
) -> None:
    world, outcome = runs[framework]

    assert outcome.status == 0, outcome.err
    assert json.loads(outcome.out)["status"] == "success"
    by_row = {record["row_index"]: record for record in world.records()}
    assert [by_row[row]["reward"] for row in range(3)] == [1.0, 1.0, 0.0]
    _, *asked = (sent.body for sent in world.model.requests)
    assert [body["model"] for body in asked] == ["stand-in"] * 6
    assert {body["tools"][0]["function"]["name"] for body in asked} == {"multiply"}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_its_conversation_is_archived_with_the_tool_call_and_its_tokens(
    runs: dict[str, tuple[World, Outcome]], framework: str
) -> None:
    world, _ = runs[framework]
    (record,) = (record for record in world.records() if record["row_index"] == 0)
    trajectory = json.loads(
        (world.runs[0] / "rollout_trials" / record["rollout_id"] / "trajectory.json").read_text()
    )

    assert steps(trajectory) == [
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
    assert trajectory["extra"]["osmosis"]["reward"] == 1.0
