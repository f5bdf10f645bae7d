"""Rows through an agent loop and its eval functions in this process."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from osmosis_ai.rollout.eval.evaluation import (
    EvalFnWrapper,
    EvalRunner,
    EvalRunResult,
    format_eval_report,
    pass_at_k,
)
from osmosis_ai.rollout.loop.eval_functions import load_eval_fns
from tests.evaluation.agent_loop.loop_agents import Agent, ScriptedClient, answer, row


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


async def test_every_run_is_scored_by_every_function_under_an_id_of_its_own() -> None:
    agent = Agent(without_reward)
    told: list[tuple[int, int, int]] = []
    result = await evaluator(agent, exact, long_enough).run_eval(
        [row("is it 2"), row("is it 3", bonus=0.5)],
        n_runs=2,
        max_turns=3,
        completion_params={"temperature": 0.2},
        on_progress=lambda current, total, run: told.append((current, total, run.run_index)),
        start_index=4,
    )
    ids = [request.rollout_id for request in agent.requests]
    assert ids == ["eval-4-run-0", "eval-4-run-1", "eval-5-run-0", "eval-5-run-1"]
    metadata = agent.requests[3].metadata
    assert {"execution_mode": "eval", "run_index": 1, "row_index": 5}.items() <= metadata.items()
    assert agent.requests[0].completion_params == {"temperature": 0.2}
    assert told == [(1, 4, 0), (2, 4, 1), (3, 4, 0), (4, 4, 1)]
    assert [row.row_index for row in result.rows] == [4, 5]
    assert result.rows[1].runs[0].scores == {"exact": 0.0, "long_enough": 2.0}
    assert (result.total_rows, result.total_runs, result.total_tokens, result.n_runs) == (2, 4, 32, 2)
    assert set(result.eval_summaries) == {"exact", "long_enough"}
    summary = result.eval_summaries["exact"]
    assert (summary.mean, summary.std, summary.pass_at_k) == (0.5, 0.5, {1: 0.5})


async def test_a_failed_run_has_no_scores_counts_as_zero_and_never_passes() -> None:
    async def fails_on_three(ctx: Any) -> Any:
        if "3" in ctx.request.messages[-1]["content"]:
            raise RuntimeError("cannot count to three")
        return await without_reward(ctx)

    result = await evaluator(Agent(fails_on_three), exact).run_eval(
        [row("is it 2"), row("is it 3")], n_runs=3, pass_threshold=-1.0
    )
    failed = result.rows[1].runs[0]
    assert (failed.success, failed.scores, failed.error) == (False, {}, "cannot count to three")
    summary = result.eval_summaries["exact"]
    assert (summary.mean, summary.min, summary.pass_at_k) == (0.5, 0.0, {1: 0.5, 3: 0.5})
    assert summary.estimate is not None
    assert (summary.estimate.value, summary.scored, summary.unscored) == (1.0, 3, 3)


async def test_a_function_without_a_finite_number_leaves_its_score_out_with_the_reason() -> None:
    result = await evaluator(Agent(without_reward), exact, broken, not_a_number).run_eval([row("is it 2")])
    (run,) = result.rows[0].runs
    assert run.success
    assert run.scores == {"exact": 1.0}
    assert "no such reference" in run.unscored["broken"]
    assert "finite" in run.unscored["not_a_number"]
    assert result.eval_summaries["broken"].unscored == 1


async def test_the_agents_own_reward_is_no_score_of_an_eval_function() -> None:
    result = await evaluator(Agent(), exact).run_eval([row("is it 2")])
    assert (result.rows[0].runs[0].scores, result.rows[0].runs[0].reward) == ({"exact": 1.0}, 0.5)
    assert set(result.eval_summaries) == {"exact"}
    assert result.reward_summary is not None and result.reward_summary.mean == 0.5
    assert "Agent reward" in format_eval_report(result)


async def test_runs_go_on_beside_each_other_on_clients_of_their_own_and_come_back_in_order() -> None:
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


async def test_without_a_factory_one_run_goes_on_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
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


async def test_one_run_can_be_made_alone() -> None:
    run = await evaluator(Agent(), exact).run_single(row("is it 2"), 7, 1)
    assert isinstance(run, EvalRunResult)
    assert (run.run_index, run.success, run.tokens) == (1, True, 8)


async def test_the_report_is_plain_text_whatever_prints_it() -> None:
    result = await evaluator(Agent(without_reward), exact).run_eval([row("is it 2"), row("x")], n_runs=3)
    text = format_eval_report(result)
    assert "Evaluation Results:" in text
    header, numbers = text.splitlines()[-2:]
    columns = [cell.strip() for cell in header.split("|")]
    assert columns == [
        *("Eval Function", "Mean", "Min", "Max", "Std", "pass@1", "pass@3", "Scored", "95 % CI")
    ]
    assert [cell.strip() for cell in numbers.split("|")][:8] == [
        *("exact", "0.500", "0.000", "1.000", "0.500", "50.0%", "50.0%", "6/6")
    ]

    class Console:
        def __init__(self) -> None:
            self.lines: list[str] = []

        def print(self, line: str) -> None:
            self.lines.append(line)

    console = Console()
    format_eval_report(result, console)
    assert "\n".join(console.lines) == text


def test_the_names_of_0_2_lead_here() -> None:
    from osmosis_ai.evaluation.agent_loop import errors, inputs, interactive, row_tests, runner
    from osmosis_ai.rollout import eval as package
    from osmosis_ai.rollout.eval import common, evaluation, test_mode
    from osmosis_ai.rollout.eval.common import cli
    from osmosis_ai.rollout.eval.common import runner as common_runner
    from osmosis_ai.rollout.eval.test_mode import cli as test_cli

    assert common_runner is runner
    assert cli is inputs
    assert test_cli is inputs
    assert common.ProviderError is errors.ProviderError is test_mode.ProviderError
    assert test_mode.LocalTestRunner is row_tests.LocalTestRunner
    assert test_mode.InteractiveRunner is interactive.InteractiveRunner
    assert evaluation.load_eval_fns is load_eval_fns
    assert evaluation.pass_at_k is pass_at_k
    for part in (common, evaluation, test_mode):
        assert [name for name in part.__all__ if getattr(part, name, None) is None] == []
        with pytest.raises(AttributeError, match="nothing_like_it"):
            getattr(part, "nothing_like_it")  # noqa: B009 - asked for as user code would
    assert package.__name__ == "osmosis_ai.rollout.eval"
