"""An agent loop in a rollout directory is evaluated like any other rollout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agent_workspace import World
from tests.standin_model import Reply, StandInModel

pytestmark = pytest.mark.e2e

AGENT = """
import json

from osmosis_ai.rollout import RolloutAgentLoop

ADD = {
    "type": "function",
    "function": {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}},
}


class Adds(RolloutAgentLoop):
    name = "adds"

    def get_tools(self, request):
        return [ADD]

    async def run(self, ctx):
        messages = list(ctx.request.messages)
        assert ctx.request.metadata["ground_truth"] == "5"
        while True:
            reply = await ctx.chat(messages, temperature=0.5, **ctx.request.completion_params)
            messages.append(reply.message)
            if not reply.has_tool_calls:
                break
            for call in reply.tool_calls:
                numbers = json.loads(call["function"]["arguments"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(sum(numbers["terms"]))})
        said = ctx.request.messages[-1]["content"]
        if said == "raise":
            raise KeyError("weather")
        if said == "give up":
            return ctx.error("the shop is closed")
        if said == "nothing":
            return None
        return ctx.complete(messages, reward=0.5)


def exact(solution_str, ground_truth, extra_info):
    if extra_info["user_prompt"] == "unscored":
        raise RuntimeError("no judge")
    return float(solution_str == ground_truth)


async def turns(messages, ground_truth, metadata):
    return len(messages)


agent_loop = Adds()
eval_fns = [exact, turns]

if __name__ == "__main__":
    raise AssertionError("it serves by itself")
"""


def respond(body: dict[str, Any]) -> Reply:
    if body["messages"][-1]["role"] == "tool":
        return Reply(content=body["messages"][-1]["content"])
    return Reply(content=None, tool_calls=[("add", {"terms": [2, 3]})])


async def test_agent_loop_evaluation(tmp_path: Path) -> None:
    async with StandInModel(respond) as model:
        world = World(tmp_path, model)
        (world.agent / "main.py").write_text(AGENT)
        asked = ["add", "raise", "give up", "nothing", "unscored"]
        rows = [json.dumps({"user_prompt": prompt, "ground_truth": "5"}) for prompt in asked]
        (world.root / "data" / "rows.jsonl").write_text("\n".join(rows) + "\n")
        world.config(timeout_s=120)
        ended = await world.run("--seed", "7")
        assert ended.status == 0, ended.err
        by_row = {asked[record["row_index"]]: record for record in world.records()}
        seen = [request.body for request in model.requests]

    added = by_row["add"]
    assert (added["status"], added["reward"], added["finish_reason"]) == ("success", 1.0, "stop")
    assert added["scores"] == {"agent": 0.5, "exact": 1.0, "turns": 4.0}
    assert all(record["model_calls"] == 2 and record["tokens"] > 0 for record in by_row.values())
    failures = {
        "raise": ("failed", "agent", "exception", "KeyError: 'weather'"),
        "give up": ("failed", "agent", "exception", "the shop is closed"),
        "nothing": (
            "failed",
            "agent",
            "invalid_value",
            "`run` must return a RolloutResult (`return ctx.complete(...)`), but it returned NoneType",
        ),
        "unscored": ("failed", "grader", "exception", "eval function 'exact': RuntimeError: no judge"),
    }
    for name, expected in failures.items():
        record = by_row[name]
        told = tuple(record.get(key) for key in ("status", "boundary", "category", "error"))
        assert told == expected
        assert "scores" not in record and "reward" not in record
    calls = [body for body in seen if body["messages"][0].get("content") == "add"]
    assert [body["temperature"] for body in calls] == [0.5, 0.5]
    assert all(body["tools"][0]["function"]["name"] == "add" for body in calls)
    assert calls[0]["seed"] != calls[1]["seed"]
    assert calls[1]["messages"][1]["tool_calls"][0]["function"]["name"] == "add"
    trajectory = json.loads(next(world.runs[0].glob("trajectories/row_0_run_0.json")).read_text())
    about = trajectory["extra"]["osmosis"]
    assert about["sample_metrics"] == {"agent": 0.5, "exact": 1.0, "turns": 4.0}
