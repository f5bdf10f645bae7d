"""The sample agent, as a user runs it: its own process, a scripted model, real callbacks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.samples.served_rollout import ServedRollout
from tests.standin_model import Reply, StandInModel, error_reply

REPOSITORY = Path(__file__).parents[2]

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rollout(tmp_path_factory: Any) -> AsyncIterator[ServedRollout]:
    async with ServedRollout(
        REPOSITORY / "rollouts" / "multiply", tmp_path_factory.mktemp("artifacts")
    ) as served:
        yield served


def call(arguments: str, *, function: str = "multiply", content: str | None = None) -> Reply:
    """A reply that calls a tool with exactly this text as arguments."""
    tool_call = {"id": "call_7", "type": "function", "function": {"name": function, "arguments": arguments}}
    message = {"role": "assistant", "content": content, "tool_calls": [tool_call], "refusal": None}
    return Reply(body={"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})


async def attempt(
    rollout: ServedRollout, *replies: Reply, label: str = "408", name: str
) -> tuple[dict[str, Any], StandInModel]:
    async with StandInModel(api_key="rollout-key") as model:
        model.script(*replies)
        reported = await rollout.attempt("What is 12 * 34?", label, model.base_url, name=name)
    return reported, model


@pytest.mark.integration
async def test_a_tool_call_is_executed_and_the_answer_after_it_is_rewarded(rollout: ServedRollout) -> None:
    reported, model = await attempt(
        rollout, call('{"a": 12, "b": 34}'), Reply(content="#### 408"), name="tool"
    )
    assert reported["completion"]["status"] == "success"
    assert reported["grader"]["status"] == "success"
    sample = reported["grader"]["sample"]
    assert sample["reward"] == 1.0
    assert sample["label"] == "408"
    assert [message["role"] for message in sample["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert sample["messages"][3] == {"role": "tool", "tool_call_id": "call_7", "content": "408"}
    first, second = (request.body for request in model.requests)
    assert first["temperature"] == 1.0
    assert first["tools"][0]["function"]["name"] == "multiply"
    assert first["messages"][1] == {"role": "user", "content": "What is 12 * 34?"}
    assert second["messages"] == sample["messages"][:4]
    # What a provider sends as null is not sent back to it.
    assert set(second["messages"][2]) == {"role", "tool_calls"}


async def test_a_direct_answer_is_rewarded_by_its_last_number(rollout: ServedRollout) -> None:
    answers = {
        "#### 408": 1.0,
        "so #### 4,08.0": 1.0,
        "#### 1 and then #### 408": 1.0,
        "#### 408 or #### 409": 0.0,
        "408": 0.0,
        "#### -408": 0.0,
        "": 0.0,
    }
    for number, (text, reward) in enumerate(answers.items()):
        reported, _ = await attempt(rollout, Reply(content=text), name=f"direct-{number}")
        assert reported["grader"]["sample"]["reward"] == reward, text


async def test_mistakes_in_a_tool_call_are_told_to_the_model(rollout: ServedRollout) -> None:
    mistakes = {
        "not json": "error: bad arguments",
        '{"a": 12}': "error: bad arguments",
        "[12, 34]": "error: bad arguments",
        '{"a": "12", "b": 34}': "error: a and b must be integers",
        '{"a": true, "b": 34}': "error: a and b must be integers",
        '{"a": 1.5, "b": 34}': "error: a and b must be integers",
        json.dumps({"a": 10**4000, "b": 10**4000}): "error: bad arguments",
    }
    for number, (arguments, answer) in enumerate(mistakes.items()):
        reported, _ = await attempt(
            rollout, call(arguments), Reply(content="#### 408"), name=f"mistake-{number}"
        )
        sample = reported["grader"]["sample"]
        assert sample["messages"][3]["content"].startswith(answer), arguments
        assert sample["reward"] == 1.0
    reported, _ = await attempt(
        rollout, call("{}", function="divide"), Reply(content="#### 408"), name="unknown-tool"
    )
    assert reported["grader"]["sample"]["messages"][3]["content"] == "error: there is no tool named 'divide'"


async def test_an_agent_that_only_calls_tools_stops_after_four_turns(rollout: ServedRollout) -> None:
    reported, model = await attempt(rollout, *[call('{"a": 12, "b": 34}')] * 5, name="endless")
    assert model.calls == 4
    assert reported["grader"]["sample"]["reward"] == 0.0


async def test_a_refusal_of_the_endpoint_fails_the_attempt_in_its_own_words(rollout: ServedRollout) -> None:
    reported, _ = await attempt(rollout, error_reply(500, "the model is on fire"), name="refused")
    assert reported["completion"]["status"] == "failure"
    assert reported["completion"]["err_category"] == "agent_error"
    assert "HTTP 500" in reported["completion"]["err_message"]
    assert "the model is on fire" in reported["completion"]["err_message"]


async def test_how_many_run_at_once_is_left_to_the_controller(rollout: ServedRollout) -> None:
    release = asyncio.Event()
    count = 24
    async with StandInModel(lambda _: Reply(content="#### 408", wait_for=release)) as model:
        attempts = [
            asyncio.create_task(rollout.attempt("12 * 34", "408", model.base_url, name=f"many-{number}"))
            for number in range(count)
        ]
        while model.in_flight < count:
            model.arrived.clear()
            await asyncio.wait_for(model.arrived.wait(), 300)
            await asyncio.sleep(0)
        release.set()
        reports = await asyncio.gather(*attempts)
    assert all(reported["grader"]["sample"]["reward"] == 1.0 for reported in reports)
