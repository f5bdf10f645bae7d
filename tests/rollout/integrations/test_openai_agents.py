"""Agents of the OpenAI Agents SDK, against a model that is a real server."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any

import pytest

from osmosis_ai.rollout import AgentWorkflowConfig, LocalBackend, RolloutContext, get_rollout_context
from tests.lazily import lazily
from tests.rollout.local_rollouts import execute, grader, request, workflow
from tests.standin_model import Reply, StandInModel, error_reply

with lazily():
    import agents
    from agents.models import interface

    from osmosis_ai.rollout.integrations.agents import openai_agents as ours

PROMPT: Any = [{"role": "system", "content": "You can count."}, {"role": "user", "content": "6 * 7?"}]
CALL = Reply(content=None, tool_calls=[("multiply", {"a": 6, "b": 7})])


def multiply(a: int, b: int) -> str:
    """Multiply two integers."""
    return str(a * b)


@pytest.fixture(autouse=True)
def no_traces() -> None:
    agents.set_tracing_disabled(True)


def rollout(model: StandInModel) -> RolloutContext:
    return RolloutContext(model.base_url, "K2", "r1")


def calculator(**changes: Any) -> ours.OsmosisAgent[Any]:
    return ours.OsmosisAgent(
        **{
            "name": "calculator",
            "model": ours.OsmosisRolloutModel(),
            "tools": [agents.function_tool(multiply)],
            **changes,
        }
    )


async def test_a_rollout_with_a_tool_call(model: StandInModel) -> None:
    model.script(CALL, Reply(content="42"))
    settings = agents.ModelSettings(temperature=0.5, include_usage=True)

    with rollout(model) as context:
        result = await agents.Runner.run(
            calculator(instructions="Be short.", model_settings=settings),
            PROMPT,
            session=ours.OsmosisMemorySession(),
        )
        sample = await context.get_sample()

    assert result.final_output == "42"
    assert result.context_wrapper.usage.requests == 2
    assert result.context_wrapper.usage.output_tokens == 2
    first, second = (sent.body for sent in model.requests)
    assert (first["model"], first["stream"], first["temperature"]) == ("osmosis-rollout", True, 0.5)
    assert first["messages"] == [{"role": "system", "content": "Be short."}, *PROMPT]
    assert first["tools"][0]["function"]["name"] == "multiply"
    assert second["messages"][-1] == {"role": "tool", "tool_call_id": "call_0", "content": "42"}
    assert not [name for name in model.requests[0].headers if name.lower().startswith("x-osmosis")]

    assert sample is not None
    kinds = [item.get("type", item.get("role")) for item in sample.messages]
    assert kinds == ["system", "user", "function_call", "function_call_output", "message"]
    assert sample.messages[2]["arguments"] == '{"a": 6, "b": 7}'
    assert sample.messages[-1]["content"][0]["type"] == "output_text"
    assert sample.messages[-1]["content"][0]["text"] == "42"
    called = {"name": "multiply", "arguments": '{"a": 6, "b": 7}'}
    assert sample.trajectory_messages == [
        {"role": "system", "content": "Be short."},
        *PROMPT,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_0", "type": "function", "function": called}],
        },
        {"role": "tool", "tool_call_id": "call_0", "content": "42"},
        {"role": "assistant", "content": "42"},
    ]
    assert sample.label is None and sample.reward is None


async def test_concurrent_rollouts_share_only_the_configuration(model: StandInModel) -> None:
    class Config(AgentWorkflowConfig):
        model: interface.Model

    def answer(body: dict[str, Any]) -> Reply:
        return Reply(content=f"heard {body['messages'][-1]['content']}")

    async def run(ctx: Any) -> None:
        agent = ours.OsmosisAgent(name="echo", model=ctx.config.model)
        await agents.Runner.run(agent, ctx.prompt, session=ours.OsmosisMemorySession())

    async def grade(ctx: Any) -> None:
        ctx.set_reward(float(ctx.sample.messages[-1]["content"][0]["text"] == f"heard {ctx.label}"))

    model.respond = answer
    config = Config(name="echo", model=ours.OsmosisRolloutModel(), concurrency={"max_concurrent": None})
    backend = LocalBackend(workflow=workflow(run), workflow_config=config, grader=grader(grade))

    async def attempt(word: str) -> float | None:
        with RolloutContext(model.base_url, "K2", word):
            attempted = request(word, prompt=[{"role": "user", "content": word}], label=word)
            _, graded = await execute(backend, attempted)
        assert graded.sample is not None, graded.err_message
        return graded.sample.reward

    assert await asyncio.gather(*(attempt(f"word {number}") for number in range(8))) == [1.0] * 8
    assert isinstance(config.model, ours.OsmosisRolloutModel)


def test_deep_copy_of_the_model() -> None:
    class Config(AgentWorkflowConfig):
        model: interface.Model

    made = ours.OsmosisRolloutModel(should_replay_reasoning_content=None)
    copied = copy.deepcopy(Config(name="x", model=made)).model

    assert isinstance(copied, ours.OsmosisRolloutModel) and copied is not made
    assert copied.litellm_kwargs == {"should_replay_reasoning_content": None}


async def test_a_rollout_without_a_key_sends_no_other_key(
    model: StandInModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-judge")
    monkeypatch.delenv("OSMOSIS_API_KEY", raising=False)

    with RolloutContext(model.base_url, None, "r1"), pytest.raises(Exception, match="Incorrect API key"):
        await agents.Runner.run(calculator(), "hi", session=ours.OsmosisMemorySession())

    assert "sk-of-the-judge" not in json.dumps([sent.headers for sent in model.requests])


async def test_a_model_of_another_rollout(model: StandInModel) -> None:
    with rollout(model):
        ours.OsmosisMemorySession()
        agent = calculator()
    with RolloutContext(model.base_url, "K2", "r2"), pytest.raises(RuntimeError, match="another rollout"):
        await agents.Runner.run(agent, "hi")
    assert model.calls == 0


async def test_a_second_session(model: StandInModel) -> None:
    with rollout(model) as context:
        ours.OsmosisMemorySession()
        with pytest.raises(ValueError, match="already has a sample source"):
            ours.OsmosisMemorySession()
        assert isinstance(context.sample_source, ours.SessionSampleSource)


async def test_items_without_a_chat_form(caplog: pytest.LogCaptureFixture) -> None:
    with RolloutContext("http://host/v1", "K2", "r1") as context:
        session = ours.OsmosisMemorySession()
        await session.add_items([{"type": "of_another_world", "content": "hi"}])
        sample = await context.get_sample()

    assert sample is not None
    assert sample.messages == [{"type": "of_another_world", "content": "hi"}]
    assert sample.trajectory_messages is None
    assert "no trajectory is archived" in caplog.text


async def test_an_error_of_the_model(model: StandInModel) -> None:
    model.script(error_reply(404, "no such model"))

    async def run(ctx: Any) -> None:
        await agents.Runner.run(calculator(), ctx.prompt, session=ours.OsmosisMemorySession())

    with rollout(model):
        completion, _ = await execute(LocalBackend(workflow=workflow(run)), request())

    assert completion.err_category == "agent_error"
    assert "no such model" in str(completion.err_message)


def test_an_agent_outside_of_a_rollout() -> None:
    with pytest.raises(RuntimeError, match=r"OsmosisAgent was created outside of a rollout context.*`run`"):
        calculator()
    with pytest.raises(RuntimeError, match="outside of a rollout context"):
        ours.OsmosisLitellmModel()


async def test_a_model_without_a_session(model: StandInModel) -> None:
    with rollout(model), pytest.raises(RuntimeError, match="OsmosisMemorySession"):
        await agents.Runner.run(calculator(), "hi")
    assert model.calls == 0


async def test_a_session_of_another_context(model: StandInModel) -> None:
    session = ours.OsmosisMemorySession()

    with rollout(model) as context:
        with pytest.raises(RuntimeError, match="not registered"):
            await agents.Runner.run(calculator(), PROMPT, session=session)
        for use in (session.get_items(), session.add_items([]), session.pop_item(), session.clear_session()):
            with pytest.raises(RuntimeError, match="not registered"):
                await use
        assert context.sample_source is None
    with RolloutContext(model.base_url, "K2", "r1"):
        of_one = ours.OsmosisMemorySession()
    with RolloutContext(model.base_url, "K2", "r2"), pytest.raises(RuntimeError, match="not registered"):
        await of_one.get_items()


async def test_a_session_outside_of_a_rollout() -> None:
    session = ours.OsmosisMemorySession()
    said = [{"role": "user", "content": word} for word in ("one", "two", "three")]
    await session.add_items(list(said))

    assert get_rollout_context() is None
    assert await session.get_items() == said == session.items
    assert await session.get_items(limit=2) == said[1:]
    assert await session.get_items(limit=0) == []
    assert await session.pop_item() == said[2]
    (await session.get_items())[0]["content"] = "changed"
    assert session.items == said[:2]
    await session.clear_session()
    assert (await session.get_items(), await session.pop_item()) == ([], None)
    assert session.session_id != ours.OsmosisMemorySession().session_id
