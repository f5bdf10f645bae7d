"""Agent loops and eval functions that run in this process."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from osmosis_ai.rollout.eval.evaluation import EvalFnWrapper, EvalRunner, format_eval_report
from osmosis_ai.rollout.eval.test_mode import InteractiveLLMClient, InteractiveRunner, InteractiveStep

from osmosis_ai.evaluation.agent_loop.eval_run import imported_files
from osmosis_ai.evaluation.agent_loop.inputs import ProviderError, ToolValidationError
from osmosis_ai.evaluation.agent_loop.llm_client import ExternalLLMClient
from osmosis_ai.evaluation.agent_loop.runner import (
    LocalLLMClientProtocol,
    LocalRolloutRunner,
    LocalRunResult,
    LocalTestRunner,
    validate_tools,
)
from osmosis_ai.llm.client import ModelClient
from osmosis_ai.llm.providers import ModelEndpoint
from osmosis_ai.rollout import OpenAIFunctionParametersSchema, OpenAIFunctionSchema, OpenAIFunctionToolSchema
from tests.evaluation.agent_loop.loop_agents import ADD, Agent, ScriptedClient, answer, row
from tests.standin_model import Reply, StandInModel


async def run(agent: Agent, **options: Any) -> LocalRunResult:
    return await LocalTestRunner(agent, ScriptedClient(), **options).run_single(row(), 3)


async def test_batch_of_rows() -> None:
    agent, client = Agent(), ScriptedClient()
    assert isinstance(client, LocalLLMClientProtocol)
    runner = LocalTestRunner(agent, client)
    progress: list[tuple[int, int, int]] = []
    batch = await runner.run_batch(
        [row("a"), row("b", level=2)],
        max_turns=4,
        completion_params={"temperature": 0.5},
        on_progress=lambda current, total, result: progress.append((current, total, result.row_index)),
        start_index=5,
    )
    assert [request.rollout_id for request in agent.requests] == ["test-5", "test-6"]
    request = agent.requests[1]
    assert request.max_turns == 4
    assert request.completion_params == {"temperature": 0.5}
    expected = {"row_index": 6, "level": 2, "execution_mode": "test", "test_mode": True, "ground_truth": "2"}
    assert expected.items() <= request.metadata.items()
    assert progress == [(1, 2, 5), (2, 2, 6)]
    assert client.resets == 2
    assert (batch.total, batch.passed, batch.failed, batch.total_tokens) == (2, 2, 0, 16)
    assert batch.results[0].to_json() | {"duration_ms": 0} == {
        "row_index": 5,
        "success": True,
        "error": None,
        "duration_ms": 0,
        "token_usage": {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8, "num_llm_calls": 1},
        "reward": 0.5,
        "finish_reason": "stop",
    }


async def test_tools_are_cleared_after_success_and_error() -> None:
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


class Synchronous(Agent):
    def run(self, ctx: Any) -> Any:
        return ctx.complete([])


def raising(error: BaseException) -> Agent:
    async def fail(ctx: Any) -> Any:
        raise error

    return Agent(fail)


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        (raising(SystemExit(3)), "the code tried to exit the process (status 3)"),
        (raising(asyncio.CancelledError()), "the code cancelled its own task"),
        (raising(asyncio.TimeoutError("the search took too long")), "the search took too long"),
        (Synchronous(), "`run` must be `async def`; it returned RolloutResult"),
    ],
)
async def test_agent_failure_fails_only_its_row(agent: Agent, message: str) -> None:
    result = await run(agent, timeout_s=60)
    assert (result.success, result.error) == (False, message)


async def test_debug_event_files(tmp_path: Path) -> None:
    async def logs(ctx: Any) -> Any:
        ctx.log_event("thought", depth=2)
        return await answer(ctx)

    await run(Agent(logs), debug=True, debug_dir=tmp_path / "events")
    (line,) = (tmp_path / "events" / "test-3.jsonl").read_text().splitlines()
    assert json.loads(line) == {"event": "thought", "rollout_id": "test-3", "depth": 2}


def exact(solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    return float(solution_str.endswith(ground_truth))


async def long_enough(messages: list[Any], ground_truth: str, metadata: dict[str, Any]) -> float:
    return len(messages) / 2 + metadata.get("bonus", 0)


def broken(solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    raise KeyError("no such reference")


def not_a_number(solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    return math.nan


async def without_reward(ctx: Any) -> Any:
    result = await answer(ctx)
    result.reward = None
    return result


def evaluator(agent: Agent, *functions: Any, **options: Any) -> EvalRunner:
    return EvalRunner(
        agent, ScriptedClient(), [EvalFnWrapper(fn, fn.__name__) for fn in functions], **options
    )


async def test_eval_runs_and_scores() -> None:
    agent = Agent(without_reward)
    progress: list[tuple[int, int, int]] = []
    result = await evaluator(agent, exact, long_enough).run_eval(
        [row("is it 2"), row("is it 3", bonus=0.5)],
        n_runs=2,
        max_turns=3,
        completion_params={"temperature": 0.2},
        on_progress=lambda current, total, run: progress.append((current, total, run.run_index)),
        start_index=4,
    )
    ids = [request.rollout_id for request in agent.requests]
    assert ids == ["eval-4-run-0", "eval-4-run-1", "eval-5-run-0", "eval-5-run-1"]
    metadata = agent.requests[3].metadata
    assert {"execution_mode": "eval", "run_index": 1, "row_index": 5}.items() <= metadata.items()
    assert agent.requests[0].completion_params == {"temperature": 0.2}
    assert progress == [(1, 4, 0), (2, 4, 1), (3, 4, 0), (4, 4, 1)]
    assert [row.row_index for row in result.rows] == [4, 5]
    assert result.rows[1].runs[0].scores == {"exact": 0.0, "long_enough": 2.0}
    assert (result.total_rows, result.total_runs, result.total_tokens, result.n_runs) == (2, 4, 32, 2)
    assert set(result.eval_summaries) == {"exact", "long_enough"}
    summary = result.eval_summaries["exact"]
    assert (summary.mean, summary.std, summary.pass_at_k) == (0.5, 0.5, {1: 0.5})


async def test_missing_scores_never_pass() -> None:
    async def fails_on_three(ctx: Any) -> Any:
        if "3" in ctx.request.messages[-1]["content"]:
            raise RuntimeError("cannot count to three")
        return await without_reward(ctx)

    result = await evaluator(Agent(fails_on_three), exact, broken, not_a_number).run_eval(
        [row("is it 2"), row("is it 3")], n_runs=3, pass_threshold=-1.0
    )
    scored, failed = (each.runs[0] for each in result.rows)
    assert (scored.success, scored.scores) == (True, {"exact": 1.0})
    assert "no such reference" in scored.unscored["broken"]
    assert "finite" in scored.unscored["not_a_number"]
    assert result.eval_summaries["broken"].unscored == 6
    assert (failed.success, failed.scores, failed.error) == (False, {}, "cannot count to three")
    summary = result.eval_summaries["exact"]
    assert (summary.mean, summary.min, summary.pass_at_k) == (0.5, 0.0, {1: 0.5, 3: 0.5})
    assert summary.estimate is not None
    assert (summary.estimate.value, summary.scored, summary.unscored) == (1.0, 3, 3)


async def test_concurrent_runs() -> None:
    clients: list[ScriptedClient] = []
    together = asyncio.Event()
    waiting = 0

    def factory() -> ScriptedClient:
        clients.append(ScriptedClient())
        return clients[-1]

    async def meets_the_others(ctx: Any) -> Any:
        nonlocal waiting
        waiting += 1
        if waiting == 3:
            together.set()
        await together.wait()
        return await without_reward(ctx)

    agent = Agent(meets_the_others)
    ends: list[int] = []
    result = await evaluator(agent, exact, llm_client_factory=factory).run_eval(
        [row(f"is it {number}") for number in range(5)],
        n_runs=2,
        batch_size=3,
        on_progress=lambda current, total, run: ends.append(current),
    )
    assert len(clients) == 3
    assert all(client.closed and client.tools is None for client in clients)
    assert ends == list(range(1, 11))
    assert [each.row_index for each in result.rows] == list(range(5))
    assert [[run.run_index for run in each.runs] for each in result.rows] == [[0, 1]] * 5
    assert [each.runs[0].scores["exact"] for each in result.rows] == [0, 0, 1, 0, 0]


async def test_batches_without_client_factory_are_sequential(caplog: pytest.LogCaptureFixture) -> None:
    running = most = 0

    async def counts_the_others(ctx: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return await without_reward(ctx)

    runner = evaluator(Agent(counts_the_others), exact)
    result = await runner.run_eval([row(f"is it {number}") for number in range(3)], batch_size=2)
    assert ([each.runs[0].scores["exact"] for each in result.rows], most) == ([0, 0, 1], 1)
    assert "llm_client_factory" in caplog.text


HELLO = [{"role": "user", "content": "hello"}]


async def test_interactive_client_pauses_after_each_reply() -> None:
    steps: list[InteractiveStep] = []

    async def on_step(step: InteractiveStep) -> None:
        steps.append(step)

    model = ScriptedClient()
    client = InteractiveLLMClient(model, on_step)
    client.reset_metrics()
    client.set_tools([ADD])
    await client.chat_completions(HELLO)
    client.paused = False
    await client.chat_completions(HELLO)
    client.clear_tools()
    assert [(step.turn, step.step_type, step.finish_reason) for step in steps] == [
        (1, "llm_response", "stop")
    ]
    assert client.messages == [*HELLO, {"role": "assistant", "content": "about: hello"}]
    assert (model.tools, client.tools) == (None, [ADD])
    assert client.get_metrics().num_llm_calls == 2


async def test_interactive_session_on_stdin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter(["1", "t", "q", "0", "c", ""])
    asked: list[str] = []

    def type_in(prompt: str) -> str:
        asked.append(prompt)
        try:
            return next(answers)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", type_in)
    rows: list[Any] = [row("first"), row("second")]
    agent = Agent()
    results = await InteractiveRunner(agent, ScriptedClient()).run_session(rows.__getitem__, range(2))
    assert [(result.row_index, result.success, result.error) for result in results] == [
        (1, False, "Aborted by user"),
        (0, True, None),
    ]
    assert [result.total_tokens for result in results] == [8, 8]
    assert len(asked) == 7
    shown = capsys.readouterr().out
    assert "about: second" in shown
    assert "add-up: Add." in shown
    assert [request.rollout_id for request in agent.requests] == ["test-1", "test-0"]


async def test_chat_request_and_token_counts() -> None:
    schema = OpenAIFunctionToolSchema(
        type="function", function=OpenAIFunctionSchema(name="look", description="Look.")
    )
    async with StandInModel() as model:
        model.script(
            Reply(content="hi", usage={"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7})
        )
        async with ExternalLLMClient("org/name", api_base=model.base_url) as client:
            client.set_tools([ADD, schema])
            result = await client.chat_completions(HELLO, temperature=0.5, seed=3, stop=None, max_tokens=9)
            assert (result.content, result.finish_reason, result.token_ids) == ("hi", "stop", [])
            assert result.usage == {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
            metrics = client.get_metrics()
            assert (metrics.num_llm_calls, metrics.prompt_tokens, metrics.response_tokens) == (1, 5, 2)
            client.clear_tools()
            client.reset_metrics()
            await client.chat_completions(HELLO)
            await client.close()
            await client.close()
        assert client.get_metrics().num_llm_calls == 1
        first, second = (request.body for request in model.requests)
    assert first["model"] == "org/name"
    assert {name: first[name] for name in ("temperature", "seed", "max_tokens")} == {
        "temperature": 0.5,
        "seed": 3,
        "max_tokens": 9,
    }
    assert [tool["function"]["name"] for tool in first["tools"]] == ["add-up", "look"]
    assert first["tools"][0] == ADD
    assert "stop" not in first
    assert "tools" not in second


async def test_shared_client_in_another_event_loop() -> None:
    async with StandInModel() as model:
        endpoint = ModelEndpoint("m", "openai", "m", "openai", model.base_url, "no-key")
        async with ModelClient(endpoint) as shared:
            client = ExternalLLMClient(client=shared)
            await client.chat_completions(HELLO)
            await asyncio.to_thread(asyncio.run, client.chat_completions(HELLO))
        assert model.calls == 2


async def test_missing_api_key() -> None:
    with pytest.raises(ProviderError, match=r"Authentication failed: .*OPENAI_API_KEY"):
        await ExternalLLMClient().chat_completions(HELLO)


def test_imported_files(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path.cwd()
    own = here / "own_agent.py"
    own.write_text("")
    made, imported = ModuleType("_classes_of_a_library"), ModuleType("own_agent")
    made.__file__, imported.__file__ = "_classes.py", str(own)  # as `torch.classes` has it
    monkeypatch.setitem(sys.modules, made.__name__, made)
    monkeypatch.setitem(sys.modules, imported.__name__, imported)
    assert imported_files(here.resolve(), "own_agent:agent_loop") == (own.resolve(),)


async def test_eval_report_text() -> None:
    result = await evaluator(Agent(without_reward), exact).run_eval([row("is it 2"), row("x")], n_runs=3)
    text = format_eval_report(result)
    assert "Evaluation Results:" in text
    header, numbers = text.splitlines()[-2:]
    columns = [cell.strip() for cell in header.split("|")]
    assert columns == [
        *("Eval Function", "Mean", "Min", "Max", "Std", "pass@1", "pass@3", "Scored", "95% CI")
    ]
    assert [cell.strip() for cell in numbers.split("|")][:8] == [
        *("exact", "0.500", "0.000", "1.000", "0.500", "50.0%", "50.0%", "6/6")
    ]
    console = Mock()
    format_eval_report(result, console)
    console.print.assert_called_once_with(text)


@pytest.mark.parametrize(
    "reward, written", [(np.float32(0.5), 0.5), (float("nan"), None), ("good", None), (True, 1.0)]
)
async def test_non_finite_reward_is_null(reward: Any, written: float | None) -> None:
    async def rewarded(ctx: Any) -> Any:
        return ctx.complete([], reward=reward)

    assert json.loads(json.dumps((await run(Agent(rewarded))).to_json()))["reward"] == written


ARRAY = OpenAIFunctionSchema(
    name="add", description="", parameters=OpenAIFunctionParametersSchema(type="array")
)
INVALID_NAME = SimpleNamespace(name="1st", parameters=None)


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        (None, "get_tools returned None; it must return a list"),
        ((ADD,), "get_tools returned tuple"),
        ([SimpleNamespace()], "missing 'function'"),
        ([SimpleNamespace(function=INVALID_NAME)], "must start with letter/under"),
        ([OpenAIFunctionToolSchema(type="function", function=ARRAY)], "parameters.type must be 'object'"),
    ],
)
async def test_invalid_tools(tools: Any, message: str) -> None:
    with pytest.raises(ToolValidationError, match=message):
        validate_tools(tools)
    result = await run(Agent(tools=tools))
    assert (result.error or "").startswith("Tool validation error:")
    assert message in (result.error or "")
