"""What `osmosis eval run` makes of model replies with HTTP 200 that are failures, or that are incomplete."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_eval_run import CONFIG, Outcome, World
from tests.conftest import NIGHTLY
from tests.standin_model import Reply, StandInModel

pytestmark = pytest.mark.e2e

DOWN = {"code": 502, "message": "upstream is down"}
OK = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "kept"}}
SAID = {"index": 0, "delta": {"role": "assistant", "content": "kept"}, "finish_reason": None}
LAST = {"index": 0, "delta": {}, "finish_reason": "stop"}
DONE = b"data: [DONE]\n\n"

FAILURES: dict[str, tuple[Reply, str]] = {
    "error in the choice": (
        Reply(
            body={
                "choices": [
                    {
                        "index": 0,
                        "finish_reason": "error",
                        "message": {"role": "assistant", "content": ""},
                        "error": DOWN,
                    }
                ]
            }
        ),
        "upstream is down",
    ),
    "error in the body": (Reply(body={"error": DOWN}), "upstream is down"),
    "error next to choices": (Reply(body={"choices": [OK], "error": DOWN}), "upstream is down"),
    "finish reason": (Reply(body={"choices": [{**OK, "finish_reason": "error"}]}), "finish reason 'error'"),
    "null choice": (Reply(body={"choices": [None]}), '{"choices":[null]}'),
    "no message": (Reply(body={"choices": [{"message": "hi"}]}), '{"choices":[{"message":"hi"}]}'),
    "no choices": (Reply(body={"choices": []}), '{"choices":[]}'),
    "empty object": (Reply(body={}), "'{}'"),
    "list": (Reply(body=["no", "completion"]), '["no","completion"]'),
    "key in it": (Reply(body=b"<html>sk-stand-in</html>"), "<html>[redacted]</html>"),
    "stream error": (Reply(chunks=[{"choices": [SAID]}, {"error": DOWN}, DONE]), "upstream is down"),
    "stream event": (
        Reply(chunks=[{"choices": [SAID]}, b'event: error\ndata: {"message": "upstream is down"}\n\n', DONE]),
        "upstream is down",
    ),
    "stream finish reason": (
        Reply(chunks=[{"choices": [SAID]}, {"choices": [{**LAST, "finish_reason": "error"}]}, DONE]),
        "finish reason 'error'",
    ),
    "stream error next to choices": (
        Reply(chunks=[{"choices": [SAID]}, {"choices": [LAST], "error": DOWN}, DONE]),
        "upstream is down",
    ),
    "stream breaks off": (Reply(chunks=[{"choices": [SAID]}]), "ended in the middle"),
    "stream null choice": (Reply(chunks=[{"choices": [None]}, DONE]), '{"choices":[null]}'),
    "stream is empty": (Reply(chunks=[DONE]), "the stream was empty"),
    "stream is no stream": (Reply(body={"error": DOWN}), "upstream is down"),
}

AGENT = """
import json
import os

import uvicorn

from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.rollout.context import get_rollout_context
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.server import create_rollout_server

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


class Agent(AgentWorkflow):
    async def run(self, ctx):
        said = ctx.prompt[-1]["content"]
        model = get_rollout_context().openai().chat.completions
        if said.startswith("stream"):
            text, calls = "", {}
            async for chunk in await model.create(model="m", messages=ctx.prompt, tools=[TOOL], stream=True):
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    for call in choice.delta.tool_calls or ():
                        kept = calls.setdefault(call.index, {"id": "", "arguments": ""})
                        kept["id"] += call.id or ""
                        kept["arguments"] += call.function.arguments
            calls = list(calls.values())
        else:
            message = (await model.create(model="m", messages=ctx.prompt, tools=[TOOL])).choices[0].message
            text = message.content
            calls = [
                {"id": call.id, "arguments": call.function.arguments} for call in message.tool_calls or ()
            ]
        if calls:
            assert all(json.loads(call["arguments"]) == {} for call in calls)
            assert len({call["id"] for call in calls if call["id"]}) == len(calls)
            text = "kept"
        return [*ctx.prompt, {"role": "assistant", "content": text}]


class Graded(Grader):
    async def grade(self, ctx):
        ctx.set_reward(float(ctx.sample.messages[-1]["content"] == "kept"))


if __name__ == "__main__":
    app = create_rollout_server(backend=LocalBackend(workflow=Agent, grader=Graded))
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ["_OSMOSIS_ROLLOUT_PORT"]), log_level="error")
"""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with StandInModel() as model:
        world = World(tmp_path, model)
        (world.workspace.rollouts_dir / "multiply" / "main.py").write_text(AGENT)
        yield world


def answer(world: World, replies: Mapping[str, Reply]) -> None:
    """Give each row the reply that its prompt names, and the preflight a good one."""
    world.model.respond = lambda body: replies.get(body["messages"][-1]["content"], Reply("kept"))
    world.rows(list(replies))


def records(outcome: Outcome) -> dict[str, dict[str, Any]]:
    """Return what the run's files say of each row."""
    lines = (Path(outcome.resource["output_path"]) / "events.jsonl").read_text().splitlines()
    return {record["input"]: record for record in map(json.loads, lines)}


EVERY_PUSH = ["error in the choice", "null choice", "key in it", "stream error", "stream breaks off"]
"""Each kind takes six tries with pauses, so the others wait for the night."""


async def test_a_failure_in_a_successful_response_is_retried_and_then_has_no_score(world: World) -> None:
    kinds = {name: FAILURES[name] for name in (FAILURES if NIGHTLY else EVERY_PUSH)}
    answer(world, {name: reply for name, (reply, _) in kinds.items()})
    outcome = await world.run()
    assert outcome.status == 0, outcome.err
    found = records(outcome)
    for name, (_, words) in kinds.items():
        record = found[name]
        assert (record["status"], record["boundary"]) == ("failed", "provider"), record
        assert "reward" not in record
        assert words in record["error"], record["error"]
        tries = [each for each in world.model.requests if each.body["messages"][-1]["content"] == name]
        assert len(tries) == 6, name
    counts = outcome.resource["metrics"]["estimates"]["counts"]
    assert (counts["scored"], counts["failed_by_boundary"]) == (0, {"provider": len(kinds)})


async def test_a_failure_that_passes_costs_an_attempt_nothing(world: World) -> None:
    world.rows(["stream once", "once"])
    seen: set[str] = set()

    def once(body: dict[str, Any]) -> Reply:
        said = body["messages"][-1]["content"]
        if said.endswith("once") and said not in seen:
            seen.add(said)
            return FAILURES["stream error" if said.startswith("stream") else "error in the choice"][0]
        return Reply("kept")

    world.model.respond = once
    outcome = await world.run()
    assert outcome.resource["metrics"]["reward_stats"]["mean"] == 1.0
    assert {name: record["model_calls"] for name, record in records(outcome).items()} == {
        "once": 1,
        "stream once": 1,
    }


CALL = {"type": "function", "function": {"name": "look", "arguments": ""}}
BARE = {"id": None, "type": "function", "function": {"name": "look"}}
ASKED = {"role": "assistant", "content": None}
TOOL_CALLS = {
    "whole": Reply(
        body={
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "tool_calls",
                    "message": {**ASKED, "tool_calls": [{**CALL, "id": "a"}, CALL, BARE]},
                }
            ]
        }
    ),
    "streamed": Reply(
        chunks=[
            {"choices": [{"index": 0, "delta": {**ASKED, "tool_calls": [call]}, "finish_reason": None}]}
            for call in ({**CALL, "id": "a", "index": 0}, {**CALL, "index": 1}, {**BARE, "index": 2})
        ]
        + [{"choices": [{**LAST, "finish_reason": "tool_calls"}]}, DONE]
    ),
}


async def test_tool_calls_without_arguments_or_id_reach_the_agent_complete(world: World) -> None:
    answer(world, TOOL_CALLS)
    outcome = await world.run()
    found = records(outcome)
    assert {name: found[name].get("error") for name in TOOL_CALLS} == dict.fromkeys(TOOL_CALLS)
    assert outcome.resource["metrics"]["reward_stats"]["mean"] == 1.0


async def test_tokens_that_were_not_reported_are_unknown_and_averages_leave_them_out(world: World) -> None:
    usage = {"prompt_tokens": 90, "completion_tokens": 10, "total_tokens": 100}
    answer(
        world,
        {
            "reported": Reply("kept", usage=usage),
            "missing": Reply("kept", usage=False),
            "zeros": Reply("kept", usage=dict.fromkeys(usage, 0)),
            "half": Reply("kept", usage={"completion_tokens": 10}),
            "stream missing": Reply("kept", usage=False),
            "stream reported": Reply("kept", usage={**usage, "total_tokens": 300, "prompt_tokens": 290}),
        },
    )
    outcome = await world.run()
    tokens = outcome.resource["metrics"]["estimates"]["tokens"]
    assert tokens == {
        "prompt": 380,
        "completion": 20,
        "total": 400,
        "per_sample": 200.0,
        "known_samples": 2,
        "unreported_samples": 4,
    }
    assert {name: record.get("tokens") for name, record in records(outcome).items()} == {
        "reported": 100,
        "missing": None,
        "zeros": None,
        "half": None,
        "stream missing": None,
        "stream reported": 300,
    }
    name = outcome.resource["run_name"]
    shown = await world.osmosis("run", CONFIG, "--yes", "--plain", "--name", name)
    (line,) = [line for line in shown.out.splitlines() if line.startswith("Tokens")]
    assert line.split("\t") == [
        *("Tokens", "400", ""),
        "380 prompt, 20 completion, 200 a sample, reported for 2 of 6 attempts",
    ]
    await world.run("--name", "other")
    compared = await world.osmosis("compare", name, "other", "--allow-same", "--json")
    assert compared.status == 0, compared.err
    totals = json.loads(compared.out)["resource"]["baseline"]
    assert (totals["tokens"], totals["tokens_reported"]) == (400, 2)


async def test_tokens_that_nobody_reported_are_not_shown_as_zero(world: World) -> None:
    answer(world, {"one": Reply("kept", usage=False)})
    outcome = await world.osmosis("run", CONFIG, "--yes", "--plain")
    (line,) = [line for line in outcome.out.splitlines() if line.startswith("Tokens")]
    assert "unknown" in line and "reported for 0 of 1 attempt" in line


async def test_the_path_goes_before_the_query_of_a_base_url(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"{world.model.base_url}?api-version=1"
    monkeypatch.setattr(StandInModel, "base_url", address)
    answer(world, {"one": Reply("kept"), "stream two": Reply("kept")})
    outcome = await world.run()
    assert outcome.resource["metrics"]["reward_stats"]["mean"] == 1.0
    assert {request.path for request in world.model.requests} == {"/v1/chat/completions?api-version=1"}
