"""A row through an agent loop in this process: whatever the agent does, the row ends with one result."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from osmosis_ai.evaluation.agent_loop.errors import ToolValidationError
from osmosis_ai.evaluation.agent_loop.row_tests import LocalTestRunner, row_result_json
from osmosis_ai.evaluation.agent_loop.runner import (
    LocalLLMClientProtocol,
    LocalRolloutRunner,
    LocalRunResult,
    run_all,
    validate_tools,
)
from osmosis_ai.rollout.loop.schemas import (
    OpenAIFunctionParametersSchema,
    OpenAIFunctionSchema,
    OpenAIFunctionToolSchema,
)
from tests.evaluation.agent_loop.loop_agents import ADD, Agent, ScriptedClient, answer, row


async def run(agent: Agent, **options: Any) -> LocalRunResult:
    return await LocalTestRunner(agent, ScriptedClient(), **options).run_single(row(), 3)


async def test_a_row_is_run_under_its_own_id_with_its_own_count_of_tokens() -> None:
    agent, client = Agent(), ScriptedClient()
    assert isinstance(client, LocalLLMClientProtocol)
    runner = LocalTestRunner(agent, client)
    told: list[tuple[int, int, int]] = []
    batch = await runner.run_batch(
        [row("a"), row("b", level=2)],
        max_turns=4,
        completion_params={"temperature": 0.5},
        on_progress=lambda current, total, result: told.append((current, total, result.row_index)),
        start_index=5,
    )
    assert [request.rollout_id for request in agent.requests] == ["test-5", "test-6"]
    request = agent.requests[1]
    assert request.max_turns == 4
    assert request.completion_params == {"temperature": 0.5}
    expected = {"row_index": 6, "level": 2, "execution_mode": "test", "test_mode": True, "ground_truth": "2"}
    assert expected.items() <= request.metadata.items()
    assert told == [(1, 2, 5), (2, 2, 6)]
    assert client.resets == 2
    assert (batch.total, batch.passed, batch.failed, batch.total_tokens) == (2, 2, 0, 16)
    assert row_result_json(batch.results[0]) | {"duration_ms": 0} == {
        "row_index": 5,
        "success": True,
        "error": None,
        "duration_ms": 0,
        "token_usage": {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8, "num_llm_calls": 1},
        "reward": 0.5,
        "finish_reason": "stop",
    }


async def test_tools_are_offered_during_the_run_and_taken_away_after_success_and_error() -> None:
    async def fail(ctx: Any) -> Any:
        await ctx.chat([{"role": "user", "content": "x"}])
        raise ValueError("boom")

    for agent in (Agent(), Agent(fail)):
        client = ScriptedClient()
        result = await LocalRolloutRunner(agent, client).run_single(row(), 0)
        assert client.offered == [[ADD]]  # a dict, its name with a hyphen
        assert client.tools is None
        assert result.token_usage["total_tokens"] == 8
    assert (result.success, result.error) == (False, "boom")
    assert result.raised is not None
    assert result.raised.startswith("ValueError: boom")


async def _says_why(ctx: Any) -> Any:
    await ctx.chat(ctx.request.messages)
    return ctx.error("the calculator is broken")


async def _returns_nothing(ctx: Any) -> Any:
    return None


async def _exits(ctx: Any) -> Any:
    sys.exit(3)


async def _cancels_itself(ctx: Any) -> Any:
    raise asyncio.CancelledError


async def _key_error(ctx: Any) -> Any:
    return {}["answer"]


@pytest.mark.parametrize(
    "run_, said, tokens",
    [
        (_says_why, "the calculator is broken", 8),
        (_returns_nothing, "run returned NoneType", 0),
        (_exits, "exit", 0),
        (_cancels_itself, "cancelled", 0),
        (_key_error, "answer", 0),
    ],
)
async def test_an_agent_that_fails_in_any_way_fails_its_row_alone(run_: Any, said: str, tokens: int) -> None:
    result = await run(Agent(run_))
    assert not result.success
    assert said in (result.error or "")
    assert result.token_usage["total_tokens"] == tokens


@pytest.mark.parametrize(
    "reward, written", [(np.float32(0.5), 0.5), (float("nan"), None), ("good", None), (True, 1.0)]
)
async def test_a_reward_that_is_no_number_is_written_as_none(reward: Any, written: float | None) -> None:
    async def rewarded(ctx: Any) -> Any:
        return ctx.complete([], reward=reward)

    assert json.loads(json.dumps(row_result_json(await run(Agent(rewarded)))))["reward"] == written


async def test_a_run_that_is_not_async_fails_the_row_and_says_so() -> None:
    class Synchronous(Agent):
        def run(self, ctx: Any) -> Any:
            return ctx.complete([])

    assert (await run(Synchronous())).error == "Synchronous.run must be `async def`."


async def test_an_agent_that_hangs_is_cut_off_and_one_in_time_is_not() -> None:
    async def hang(ctx: Any) -> Any:
        await asyncio.Event().wait()

    result = await run(Agent(hang), timeout_s=0.01)
    assert result.error == "the agent did not end within 0.01 s."
    assert (await run(Agent(), timeout_s=60)).success


async def test_an_agents_own_time_out_is_not_ours() -> None:
    async def own(ctx: Any) -> Any:
        raise asyncio.TimeoutError("the search took too long")

    assert (await run(Agent(own), timeout_s=60)).error == "the search took too long"


def _schema(name: str = "add", kind: str = "object") -> OpenAIFunctionToolSchema:
    function = OpenAIFunctionSchema(
        name=name, description="", parameters=OpenAIFunctionParametersSchema(type=kind)
    )
    return OpenAIFunctionToolSchema(type="function", function=function)


@pytest.mark.parametrize(
    "tools, said",
    [
        (None, "get_tools returned None; it must return a list"),
        ((ADD,), "get_tools returned tuple"),
        ([{"type": "function"}], "missing 'function'"),
        ([SimpleNamespace()], "missing 'function'"),
        (
            [SimpleNamespace(function=SimpleNamespace(name="1st", parameters=None))],
            "must start with letter/under",
        ),
        ([_schema(name="")], "name"),
        ([_schema(name="no spaces")], "must start with letter/underscore"),
        ([_schema(kind="array")], "parameters.type must be 'object'"),
    ],
)
async def test_tools_that_no_model_can_be_offered_fail_the_row_and_say_why(tools: Any, said: str) -> None:
    with pytest.raises(ToolValidationError, match=said):
        validate_tools(tools)
    result = await run(Agent(tools=tools))
    assert (result.error or "").startswith("Tool validation error:")
    assert said in (result.error or "")


async def test_get_tools_that_raises_fails_the_row() -> None:
    assert (await run(Agent(tools=RuntimeError("no catalogue")))).error == "no catalogue"
    assert (await run(Agent(tools=SystemExit("no catalogue")))).error == "no catalogue"


def test_good_tools_of_either_form_are_accepted() -> None:
    validate_tools([])
    validate_tools([ADD, _schema(name="add-up"), _schema(name="_x9")])


async def test_debugging_writes_an_event_file_that_no_row_leads_elsewhere(tmp_path: Path) -> None:
    async def logs(ctx: Any) -> Any:
        ctx.log_event("thought", depth=2)
        return await answer(ctx)

    await run(Agent(logs), debug=True, debug_dir=tmp_path / "events")
    (line,) = (tmp_path / "events" / "test-3.jsonl").read_text().splitlines()
    assert json.loads(line) == {"event": "thought", "rollout_id": "test-3", "depth": 2}


async def test_items_run_beside_each_other_up_to_the_limit_and_an_error_of_ours_comes_out() -> None:
    gate, running, most = asyncio.Event(), 0, 0

    async def one(item: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            gate.set()
        await gate.wait()
        running -= 1
        return item * 10

    ended: dict[int, int] = {}
    await run_all(range(7), one, limit=3, done=lambda place, _, value: ended.__setitem__(place, value))
    assert ended == {place: place * 10 for place in range(7)}
    assert most == 3

    def refuse(*_: Any) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        await run_all([1], one, limit=1, done=refuse)
