"""The conversation of an agent that fails after model calls is stored, locally and on a platform."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import platform_checkout
from tests.e2e.agent_workspace import KEY, World
from tests.e2e.platform_checkout import connected_world
from tests.evaluation.rollouts import AGENT
from tests.standin_model import Reply, StandInModel

pytestmark = pytest.mark.e2e

TAKEN = "Taken from the model calls of an agent that ended without returning a conversation"
# Asks twice, tells a secret, and ends as its prompt says.
TALKS = f"""
class Agent(AgentWorkflow):
    async def run(self, ctx):
        said = list(ctx.prompt)
        for more in ("is that all, {KEY}?", None):
            reply = await get_rollout_context().http().post("/chat/completions", json={{"messages": said}})
            said.append(reply.json()["choices"][0]["message"])
            if more is not None:
                said.append({{"role": "user", "content": more}})
        how = ctx.prompt[-1]["content"]
        if how == "hang":
            await asyncio.sleep(3600)
        if how == "nothing":
            return None
        if how == "raise":
            raise RuntimeError("the agent broke")
        return said


if __name__ == "__main__":
"""
SAID = ["is that all, [REDACTED]?", "the first answer", "the second answer"]
BREAKS = """\
        for question in ("What is it?", "Are you sure?"):
            messages.append({"role": "user", "content": question})
            messages.append(await self.ask_model(messages))
        raise RuntimeError("the agent broke")
"""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    def answer(body: dict[str, Any]) -> Reply:
        return Reply("the first answer" if len(body["messages"]) == 1 else "the second answer")

    async with StandInModel(answer) as model:
        world = World(tmp_path, model)
        (world.agent / "main.py").write_text(AGENT.replace('if __name__ == "__main__":\n', TALKS))
        yield world


async def test_conversation_before_a_failure_on_this_machine(world: World) -> None:
    prompts = ["raise", "hang", "nothing", "right"]
    world.rows(*prompts)
    world.config(timeout_s=15)  # in which each comes to its end on a busy machine, too
    assert (await world.run("--name", "broken")).status == 0
    assert [each["status"] for each in sorted(world.records(), key=lambda each: each["row_index"])] == [
        *["failed"] * 3,
        "success",
    ]
    (run,) = world.runs
    for row, prompt in enumerate(prompts):
        stored = json.loads((run / "trajectories" / f"row_{row}_run_0.json").read_text())
        asked, first, more, second = stored["steps"]
        assert [asked["message"], more["message"], first["message"], second["message"]] == [prompt, *SAID]
        assert second["model_name"] == "openai/stand-in"
        for step in (first, second):
            assert step["metrics"]["completion_tokens"] > 0 and step["extra"]["duration_ms"] > 0
            assert step["timestamp"]
        about = stored["extra"]["osmosis"]
        assert about.get("from_model_calls", False) == (prompt != "right")
        assert about["request_extra_fields"] == {"row_index": row, "run_index": 0, "source_row_index": row}
    world.assert_nothing_half_written()

    shown = await world.osmosis("eval", "show", "broken", "--row", "0", "--plain")
    assert all(said in " ".join(shown.out.split()) for said in [*SAID, TAKEN, "the agent broke"])
    found = await world.osmosis("eval", "show", "broken", "--search", "second answer", "--json")
    told = json.loads(found.out)["data"]["samples"]
    assert {(each["row"], each.get("from_model_calls", False)) for each in told} == {
        (0, True),
        (1, True),
        (2, True),
        (3, False),
    }
    assert (await world.osmosis("view", "broken", "--report", "report.html")).status == 0
    report = (world.root / "report.html").read_text()
    assert report.count(TAKEN) == 3 and report.count("the second answer") >= 4
    exported = await world.osmosis(
        "eval", "export", "broken", "--format", "jsonl", "--output", "samples.jsonl"
    )
    assert exported.status == 0, exported.err
    lines = [json.loads(line) for line in (world.root / "samples.jsonl").read_text().splitlines()]
    assert [
        (len(line["messages"]), line["from_model_calls"], line["answer"])
        for line in sorted(lines, key=lambda line: line["row_index"])
    ] == [*[(4, True, None)] * 3, (4, None, "the second answer")]


def assert_downloaded(world: platform_checkout.World, name: str) -> None:
    assert world.json("eval", "download", name, "--output", f"got-{name}", "--yes").status == 0
    kept = [json.loads(path.read_text()) for path in (world.root / f"got-{name}").rglob("row_*_run_0.json")]
    assert [(len(each["steps"]), each["extra"]["osmosis"]["from_model_calls"]) for each in kept] == [
        (6, True),
        (6, True),
    ]


def test_conversation_before_a_failure_on_a_platform(tmp_path: Path) -> None:
    with connected_world(tmp_path) as world:
        main = world.root / "rollouts" / "multiply" / "main.py"
        head, loop, rest = main.read_text().partition("        for _ in range(MAX_TURNS):\n")
        assert loop
        main.write_text(head + BREAKS + loop + rest)
        world.git("commit", "-qam", "break")
        world.git("push", "-q")
        assert world.osmosis("dataset", "upload", "data/multiply.jsonl", "--wait", "--yes").status == 0
        run = world.submit("broken", "--watch").resource
        assert run["headline"]["failed_by_boundary"] == {"agent": 2}
        assert "sandbox" in world.osmosis("eval", "logs", run["name"], "--plain").out
        samples = world.json("eval", "show", run["name"]).resource["samples"]
        assert [each["from_model_calls"] for each in samples] == [True, True]
        for each in samples:
            roles = [message["role"] for message in each["messages"]]
            assert roles == ["system", "user", "user", "assistant", "user", "assistant"]
            assert each["messages"][4]["content"] == "Are you sure?"
            assert each["problems"][0].startswith(TAKEN)
        found = world.json("eval", "show", run["name"], "--search", "are you sure").resource
        assert len(found["samples"]) == 2
        assert_downloaded(world, run["name"])
        ran = world.json("eval", "run", "configs/eval/broken.toml", "--yes", "--name", "here")
        assert ran.status == 0, ran.err
        assert_downloaded(world, world.json("eval", "upload", "here").resource["eval_run_name"])
