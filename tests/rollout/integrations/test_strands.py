"""Agents of Strands, against a model that is a real server."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from osmosis_ai.rollout import AgentWorkflowConfig, LocalBackend, RolloutContext
from tests.lazily import lazily
from tests.rollout.local_rollouts import execute, grader, request, workflow
from tests.standin_model import Reply, StandInModel

with lazily():
    import strands
    from strands.models import model as models
    from strands.types.exceptions import MaxTokensReachedException

    from osmosis_ai.rollout.integrations.agents import strands as ours

PROMPT = [{"role": "system", "content": "You can count."}, {"role": "user", "content": "6 * 7?"}]
CALL = Reply(content=None, tool_calls=[("multiply", {"a": 6, "b": 7})])


def multiply(a: int, b: int) -> str:
    """Multiply two integers."""
    return str(a * b)


def rollout(model: StandInModel) -> RolloutContext:
    return RolloutContext(model.base_url, "K2", "r1")


def calculator(**changes: Any) -> ours.OsmosisStrandsAgent:
    options = {
        "model": ours.OsmosisRolloutModel(),
        "messages": PROMPT,
        "tools": [strands.tool(multiply)],
        "callback_handler": None,
    }
    return ours.OsmosisStrandsAgent(**{**options, **changes})


def text(words: str) -> list[dict[str, str]]:
    return [{"text": words, "type": "text"}]


async def test_a_rollout_with_a_tool_call(model: StandInModel) -> None:
    model.script(CALL, Reply(content="42"))

    with rollout(model) as context:
        agent = calculator(
            model=ours.OsmosisRolloutModel(params={"temperature": 0.5}), system_prompt="Be short."
        )
        await agent.invoke_async()
        sample = await context.get_sample()

    assert sample is not None
    assert [message["role"] for message in sample.messages] == [
        *("system", "user"),
        *("assistant", "user", "assistant"),
    ]
    assert sample.messages[1]["content"] == [{"text": "6 * 7?"}]
    (use,), (result,) = sample.messages[2]["content"], sample.messages[3]["content"]
    assert use["toolUse"] == {"toolUseId": "call_0", "name": "multiply", "input": {"a": 6, "b": 7}}
    assert result["toolResult"]["content"] == [{"text": "42"}]
    assert sample.messages[-1]["content"] == [{"text": "42"}]
    called = {"name": "multiply", "arguments": '{"a": 6, "b": 7}'}
    sent = [
        {"role": "system", "content": text("Be short.")},
        {"role": "system", "content": text("You can count.")},
        {"role": "user", "content": text("6 * 7?")},
        {"role": "assistant", "tool_calls": [{"id": "call_0", "type": "function", "function": called}]},
        {"role": "tool", "tool_call_id": "call_0", "content": "42"},
    ]
    assert sample.trajectory_messages == [*sent, {"role": "assistant", "content": text("42")}]
    body = model.requests[1].body
    assert body["messages"] == sent
    assert (body["model"], body["stream"], body["temperature"]) == ("osmosis-rollout", True, 0.5)
    assert body["stream_options"] == {"include_usage": True}
    assert PROMPT[1]["content"] == "6 * 7?"


async def test_a_truncated_answer(model: StandInModel) -> None:
    model.respond = lambda body: Reply(content="the product is", finish_reason="length")

    async def run(ctx: Any) -> None:
        await calculator(messages=ctx.prompt).invoke_async()

    async def run_on(ctx: Any) -> None:
        agent = calculator(messages=ctx.prompt)
        with pytest.raises(MaxTokensReachedException):
            await agent.invoke_async()

    async def grade(ctx: Any) -> None:
        ctx.set_reward(float(ctx.sample.messages[-1]["content"] == [{"text": "the product is"}]))

    with rollout(model):
        failed, _ = await execute(LocalBackend(workflow=workflow(run)), request())
    with rollout(model):
        _, graded = await execute(
            LocalBackend(workflow=workflow(run_on), grader=grader(grade)), request("r2")
        )

    assert (failed.status, failed.err_category) == ("failure", "agent_error")
    assert "token limit" in str(failed.err_message)
    assert graded.sample is not None and graded.sample.reward == 1.0
    assert graded.sample.trajectory_messages is not None


def test_deep_copy_of_the_model() -> None:
    class Config(AgentWorkflowConfig):
        model: models.Model

    made = ours.OsmosisRolloutModel(params={"temperature": 0.5})
    copied = copy.deepcopy(Config(name="x", model=made)).model
    copied.update_config(params={"temperature": 1.0})

    assert isinstance(copied, ours.OsmosisRolloutModel)
    assert made.get_config() == {"params": {"temperature": 0.5}}


async def test_a_rollout_without_a_key_sends_no_other_key(
    model: StandInModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-judge")
    monkeypatch.delenv("OSMOSIS_API_KEY", raising=False)

    with RolloutContext(model.base_url, None, "r1"), pytest.raises(Exception, match="Incorrect API key"):
        await calculator().invoke_async()

    assert "sk-of-the-judge" not in json.dumps([sent.headers for sent in model.requests])


async def test_messages_without_a_chat_form(model: StandInModel, caplog: pytest.LogCaptureFixture) -> None:
    odd = [{"role": "user", "content": [{"of_another_world": 1}]}]
    with rollout(model) as context:
        calculator(messages=odd)
        sample = await context.get_sample()

    assert sample is not None
    assert sample.messages[0]["content"] == [{"of_another_world": 1}]
    assert sample.trajectory_messages is None
    assert "no trajectory is archived" in caplog.text
