"""Replies that were truncated, filtered or refused: counted in every output of a run, and found by `eval show`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.maze import Maze
from tests.cli.test_eval_run import World
from tests.evaluation.builders import record
from tests.evaluation.comparison.builders import write_journalled_run
from tests.evaluation.rollouts import AGENT, write_rollout
from tests.standin_model import Reply, StandInModel

REFUSED = {"role": "assistant", "content": None, "refusal": "I cannot help with that."}
STREAMING = AGENT.replace('"messages": ctx.prompt}', '"messages": ctx.prompt, "stream": "stream" in said}').replace(
    "body = await reply.json()",
    'text = await reply.text()\n            body = json.loads(text) if text[0] == "{" else {"choices": [{"message": '
    '{"role": "assistant", "content": "a stream"}}]}',
).replace("import asyncio\n", "import asyncio\nimport json\n", 1)


def respond(body: dict[str, Any]) -> Reply:
    said = body["messages"][-1]["content"]
    if "cut" in said:
        return Reply(content="half an", finish_reason="length")
    if "filter" in said:
        return Reply(content="", finish_reason="content_filter")
    if "refuse" in said:
        if body.get("stream"):
            deltas = [{"role": "assistant", "content": ""}, {"refusal": "I cannot"}, {"refusal": " help."}, {}]
            chunks: list[Any] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
            chunks[-1]["choices"][0]["finish_reason"] = "stop"
            return Reply(chunks=[*chunks, b"data: [DONE]\n\n"])
        return Reply(choice_extra={"message": REFUSED})
    return Reply(content="ok", finish_reason="MAX_TOKENS" if "old" in said else None)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with StandInModel(respond) as model:
        world = World(tmp_path, model)
        write_rollout(world.workspace.rollouts_dir / "multiply", STREAMING)
        yield world


@pytest.mark.e2e
async def test_a_run_counts_truncated_filtered_and_refused_replies(world: World) -> None:
    world.rows(
        ["fine", "cut", "filter", "refuse", "old", "stream fine", "stream cut", "stream filter", "stream refuse"]
    )
    outcome = await world.run("--name", "seen")
    assert (outcome.status, outcome.resource["succeeded"]) == (0, 9), outcome.err
    counted = {
        "truncated": 3,
        "filtered": 2,
        "refused": 2,
        "affected": 7,
        "known_samples": 9,
        "recorded_samples": 9,
    }
    warning = "7 of 9 attempts (77.8 %) have a model reply that was truncated (3), filtered (2), refused (2)"
    assert outcome.resource["metrics"]["estimates"]["finish"] == counted
    assert outcome.resource["headline"]["warnings"] == [warning]
    directory = Path(outcome.resource["output_path"])
    assert json.loads((directory / "metrics.json").read_text())["estimates"]["finish"] == counted
    trajectory = json.loads((directory / "trajectories" / "row_1_run_0.json").read_text())
    calls = [step["metrics"]["extra"] for step in trajectory["steps"] if "metrics" in step]
    assert [call["finish_reason"] for call in calls] == ["length"]

    seen = await world.osmosis("info", "seen", "--plain")
    for line in ("Truncated (token limit)\t3 of 9 attempts", "Filtered\t2 of 9 attempts", "Refused\t2 of 9 attempts"):
        assert line in seen.out
    assert warning in seen.out
    rows = {
        finish: [each["row"] for each in json.loads(found.out)["data"]["samples"]]
        for finish in ("length", "content_filter", "refusal")
        for found in [await world.osmosis("show", "seen", "--finish", finish, "--json")]
    }
    assert rows == {"length": [1, 4, 6], "content_filter": [2, 7], "refusal": [3, 8]}
