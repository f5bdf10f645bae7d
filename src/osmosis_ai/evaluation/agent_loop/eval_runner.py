"""Rows through an agent loop and its eval functions, in this process: ``EvalRunner`` of ``rollout.eval.evaluation``.

A run that failed has no scores. A function that raises, or gives no finite number, leaves its score out of the
run's ``scores`` and its reason in ``unscored``; neither ever counts as a pass.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from osmosis_ai.evaluation.agent_loop.runner import (
    DEFAULT_MAX_TURNS,
    LocalLLMClientProtocol,
    LocalRolloutRunner,
    run_all,
)
from osmosis_ai.evaluation.agent_loop.score_summary import EvalEvalSummary, pass_at_k, summarize_scores

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from osmosis_ai.rollout.loop.agent import RolloutAgentLoop, RolloutResult
    from osmosis_ai.rollout.loop.eval_functions import EvalFnWrapper

logger = logging.getLogger(__name__)

__all__ = [
    "EvalEvalSummary",
    "EvalResult",
    "EvalRowResult",
    "EvalRunResult",
    "EvalRunner",
    "pass_at_k",
    "summarize_scores",
]


@dataclass
class InProcessRunResult:
    """One run of one row."""

    run_index: int
    success: bool
    scores: dict[str, float] = field(default_factory=dict)
    duration_ms: float = 0.0
    tokens: int = 0
    error: str | None = None
    unscored: dict[str, str] = field(default_factory=dict)
    reward: float | None = None
    reward_error: str | None = None


@dataclass
class EvalRowResult:
    """The runs of one row."""

    row_index: int
    runs: list[InProcessRunResult]


@dataclass
class EvalResult:
    """All rows, and the summaries of their scores by eval function and of the agent's own reward."""

    rows: list[EvalRowResult]
    eval_summaries: dict[str, EvalEvalSummary]
    total_rows: int
    total_runs: int
    total_tokens: int
    total_duration_ms: float
    n_runs: int
    pass_threshold: float
    reward_summary: EvalEvalSummary | None = None


class _Work(NamedTuple):
    row: Mapping[str, Any]
    row_index: int
    run_index: int


class InProcessEvalRunner:
    """Evaluates an agent loop on rows."""

    def __init__(
        self,
        agent_loop: RolloutAgentLoop,
        llm_client: LocalLLMClientProtocol,
        eval_fns: Sequence[EvalFnWrapper | Callable[..., Any]],
        debug: bool = False,
        debug_dir: str | Path | None = None,
        llm_client_factory: Callable[[], LocalLLMClientProtocol] | None = None,
    ) -> None:
        from osmosis_ai.rollout.loop.eval_functions import wrap_eval_fns

        self.agent_loop = agent_loop
        self.llm_client = llm_client
        self.eval_fns = wrap_eval_fns(eval_fns)
        self.debug = debug
        self.debug_dir = debug_dir
        self.llm_client_factory = llm_client_factory

    async def run_single(
        self,
        row: Mapping[str, Any],
        row_index: int,
        run_index: int,
        max_turns: int = DEFAULT_MAX_TURNS,
        completion_params: dict[str, Any] | None = None,
        runner: LocalRolloutRunner | None = None,
    ) -> InProcessRunResult:
        """Run the agent on a row once, and score it."""
        ran = await (runner or self._runner(self.llm_client)).run_single(
            row,
            row_index,
            max_turns,
            completion_params,
            rollout_id=f"eval-{row_index}-run-{run_index}",
            request_metadata={"execution_mode": "eval", "run_index": run_index},
        )
        result = InProcessRunResult(
            run_index,
            ran.success,
            duration_ms=ran.duration_ms,
            tokens=ran.total_tokens,
            error=ran.error,
        )
        if ran.success and ran.result is not None:
            await self._score(result, ran.result, row)
        return result

    async def run_eval(
        self,
        rows: Sequence[Mapping[str, Any]],
        n_runs: int = 1,
        max_turns: int = DEFAULT_MAX_TURNS,
        completion_params: dict[str, Any] | None = None,
        pass_threshold: float = 1.0,
        on_progress: Callable[[int, int, InProcessRunResult], None] | None = None,
        start_index: int = 0,
        batch_size: int = 1,
    ) -> EvalResult:
        """Run every row ``n_runs`` times."""
        total = len(rows) * n_runs
        if n_runs < 1 or batch_size < 1:
            raise ValueError("n_runs and batch_size must be >= 1.")
        at_once = self._at_once(min(batch_size, total))
        started = time.perf_counter()
        found: dict[tuple[int, int], InProcessRunResult] = {}
        async with self._runners(at_once) as idle:

            async def run_one(work: _Work) -> InProcessRunResult:
                runner = idle.get_nowait()
                try:
                    return await self.run_single(*work, max_turns, completion_params, runner)
                finally:
                    idle.put_nowait(runner)

            def done(_: int, work: _Work, result: InProcessRunResult) -> None:
                found[work.row_index, work.run_index] = result
                if on_progress is not None:
                    on_progress(len(found), total, result)

            await run_all(_works(rows, start_index, n_runs), run_one, limit=at_once, done=done)
        results = [
            EvalRowResult(index, [found[index, run] for run in range(n_runs)])
            for index in range(start_index, start_index + len(rows))
        ]
        return self._result(results, n_runs, pass_threshold, (time.perf_counter() - started) * 1000.0)

    def _at_once(self, wanted: int) -> int:
        """Return how many runs go on beside each other."""
        if wanted > 1 and self.llm_client_factory is None:
            logger.warning("one run goes on at a time: running %d needs an llm_client_factory", wanted)
            return 1
        return max(1, wanted)

    @asynccontextmanager
    async def _runners(self, at_once: int) -> AsyncIterator[asyncio.Queue[LocalRolloutRunner]]:
        """Give as many runners as runs go on at once, each with a client of its own."""
        idle: asyncio.Queue[LocalRolloutRunner] = asyncio.Queue()
        if at_once == 1 or self.llm_client_factory is None:
            idle.put_nowait(self._runner(self.llm_client))
            yield idle
            return
        clients: list[LocalLLMClientProtocol] = []
        try:
            for _ in range(at_once):
                clients.append(self.llm_client_factory())
                idle.put_nowait(self._runner(clients[-1]))
            yield idle
        finally:
            await _close_all(clients)

    def _runner(self, client: LocalLLMClientProtocol) -> LocalRolloutRunner:
        return LocalRolloutRunner(
            self.agent_loop, client, self.debug, self.debug_dir, rollout_id_prefix="eval"
        )

    async def _score(self, run: InProcessRunResult, answer: RolloutResult, row: Mapping[str, Any]) -> None:
        from osmosis_ai.rollout.loop.eval_functions import EvalFnError, finite_score

        reward = getattr(answer, "reward", None)
        if reward is not None:
            try:
                run.reward = finite_score(reward)
            except EvalFnError as error:
                run.reward_error = error.message
        metadata = dict(row)
        for eval_fn in self.eval_fns:
            score = await eval_fn.score(answer.final_messages, row.get("ground_truth"), metadata)
            if score.value is not None:
                run.scores[eval_fn.name] = score.value
            else:
                run.unscored[eval_fn.name] = score.reason or "the function gave no score"

    def _result(
        self, rows: list[EvalRowResult], n_runs: int, pass_threshold: float, duration_ms: float
    ) -> EvalResult:
        summarize = partial(summarize_scores, n_runs=n_runs, pass_threshold=pass_threshold)
        runs = [run for row in rows for run in row.runs]
        names = [eval_fn.name for eval_fn in self.eval_fns]
        rewards = [[run.reward for run in row.runs] for row in rows]
        return EvalResult(
            rows=rows,
            eval_summaries={
                name: summarize([[run.scores.get(name) for run in row.runs] for row in rows])
                for name in names
            },
            reward_summary=summarize(rewards) if any(run.reward is not None for run in runs) else None,
            total_rows=len(rows),
            total_runs=len(runs),
            total_tokens=sum(run.tokens for run in runs),
            total_duration_ms=duration_ms,
            n_runs=n_runs,
            pass_threshold=pass_threshold,
        )


# As user code knows them.
EvalRunResult = InProcessRunResult
EvalRunner = InProcessEvalRunner


def _works(rows: Sequence[Mapping[str, Any]], start_index: int, n_runs: int) -> Iterator[_Work]:
    for (number, row), run_index in itertools.product(enumerate(rows), range(n_runs)):
        yield _Work(row, start_index + number, run_index)


async def _close_all(clients: Sequence[LocalLLMClientProtocol]) -> None:
    for client in clients:
        close = getattr(client, "close", None)
        if close is not None:
            await close()
