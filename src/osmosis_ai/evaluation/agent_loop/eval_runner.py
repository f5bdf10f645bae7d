"""Evaluate an agent loop in this process: ``EvalRunner`` of ``rollout.eval.evaluation``, its scores and its report.

A failed run has no scores. A function that raises, or returns no finite number, leaves its score out of ``scores`` and
its reason in ``unscored``; neither ever passes. The documented numbers count a missing score as 0.0. The estimates
count only runs that have a score.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.evaluation import pass_at_k as unbiased
from osmosis_ai.evaluation import statistics
from osmosis_ai.evaluation.agent_loop.inputs import DEFAULT_MAX_TURNS
from osmosis_ai.evaluation.agent_loop.runner import (
    LocalLLMClientProtocol,
    LocalRolloutRunner,
    format_duration,
    format_tokens,
    run_all,
)
from osmosis_ai.evaluation.statistics import Estimate

if TYPE_CHECKING:
    from osmosis_ai.rollout.loop.agent import RolloutAgentLoop
    from osmosis_ai.rollout.loop.eval_functions import EvalFnWrapper

logger = logging.getLogger(__name__)

DOCUMENTED_KS = (1, 3, 5, 10)
_ESTIMATE_FIELDS = ("value", "stderr", "low", "high", "n", "clusters")
_MISSING = "-"


@dataclass
class EvalEvalSummary:
    """The numbers of one eval function."""

    mean: float
    std: float
    min: float
    max: float
    pass_at_k: dict[int, float] = field(default_factory=dict)
    scored: int = 0
    unscored: int = 0
    estimate: Estimate | None = None
    pass_at_k_estimates: dict[int, Estimate] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the documented fields of a results file, then ours."""
        return {
            "mean": self.mean,
            "std": self.std,
            "min": self.min,
            "max": self.max,
            **{f"pass_at_{k}": value for k, value in self.pass_at_k.items()},
            "scored": self.scored,
            "unscored": self.unscored,
            "estimate": _estimate_json(self.estimate) if self.estimate is not None else None,
            "pass_at_k_estimates": {str(k): _estimate_json(e) for k, e in self.pass_at_k_estimates.items()},
        }


def _estimate_json(estimate: Estimate) -> dict[str, Any]:
    return {name: getattr(estimate, name) for name in _ESTIMATE_FIELDS}


def summarize_scores(
    rows: Sequence[Sequence[float | None]],
    *,
    n_runs: int,
    pass_threshold: float,
    ks: Collection[int] = (),
    clusters: Sequence[int] | None = None,
) -> EvalEvalSummary:
    """Return the numbers of one eval function.

    Args:
        rows: the scores of each row's runs; None for a missing one.
        n_runs: planned runs per row; with one there is no documented pass@k.
        pass_threshold: a run passes with a score of at least this.
        ks: further k to give pass@k for.
        clusters: equal numbers mark copies of a row, which count as one in intervals.
    """
    every = [score if score is not None else 0.0 for row in rows for score in row]
    scored = [(index, score) for index, row in enumerate(rows) for score in row if score is not None]
    attempts = [sum(score is not None for score in row) for row in rows]
    passes = [sum(score is not None and score >= pass_threshold for score in row) for row in rows]
    documented_ks = {k for k in (*DOCUMENTED_KS, *ks) if k <= n_runs}
    documented = {}
    if n_runs > 1 and rows:
        for k in sorted(documented_ks):
            by_row = [pass_at_k(len(row), passed, k) for row, passed in zip(rows, passes, strict=True)]
            documented[k] = sum(by_row) / len(rows)
    powers_of_two = {1 << exponent for exponent in range(n_runs.bit_length())}
    estimates = {
        k: unbiased.estimate_pass_at_k(attempts, passes, k, clusters)
        for k in sorted(documented_ks | powers_of_two)
    }
    described = statistics.describe(every)
    return EvalEvalSummary(
        mean=described.mean if described else 0.0,
        std=described.std if described else 0.0,
        min=described.min if described else 0.0,
        max=described.max if described else 0.0,
        pass_at_k=documented,
        scored=len(scored),
        unscored=len(every) - len(scored),
        estimate=statistics.estimate_reward(
            [score for _, score in scored],
            [index for index, _ in scored],
            [clusters[index] for index, _ in scored] if clusters is not None else None,
        ),
        pass_at_k_estimates={k: estimate for k, estimate in estimates.items() if estimate is not None},
    )


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the chance that one of ``k`` of ``n`` runs passes if ``c`` of the ``n`` did; 1 if ``n <= k``."""
    if c <= 0:
        return 0.0
    return 1.0 if n <= k or c >= n else unbiased.pass_at_k(n, c, k)


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
    """All rows, and the summaries of each eval function and of the agent's own reward."""

    rows: list[EvalRowResult]
    eval_summaries: dict[str, EvalEvalSummary]
    total_rows: int
    total_runs: int
    total_tokens: int
    total_duration_ms: float
    n_runs: int
    pass_threshold: float
    reward_summary: EvalEvalSummary | None = None


class InProcessEvalRunner:
    """Evaluates an agent loop on rows; runs at once need ``llm_client_factory``, since each has its own client."""

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
        from osmosis_ai.rollout.loop.eval_functions import EvalFnError, finite_score

        ran = await (runner or self._runner(self.llm_client)).run_single(
            row,
            row_index,
            max_turns,
            completion_params,
            rollout_id=f"eval-{row_index}-run-{run_index}",
            request_metadata={"execution_mode": "eval", "run_index": run_index},
        )
        run = InProcessRunResult(
            run_index, ran.success, duration_ms=ran.duration_ms, tokens=ran.total_tokens, error=ran.error
        )
        if not ran.success or ran.result is None:
            return run
        reward = getattr(ran.result, "reward", None)
        if reward is not None:
            try:
                run.reward = finite_score(reward)
            except EvalFnError as error:
                run.reward_error = error.message
        metadata = dict(row)
        for eval_fn in self.eval_fns:
            score = await eval_fn.score(ran.result.final_messages, row.get("ground_truth"), metadata)
            if score.value is not None:
                run.scores[eval_fn.name] = score.value
            else:
                run.unscored[eval_fn.name] = score.reason or "the function gave no score"
        return run

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
        """Run every row ``n_runs`` times, at most ``batch_size`` runs at once."""
        if n_runs < 1 or batch_size < 1:
            raise ValueError("n_runs and batch_size must be >= 1.")
        total = len(rows) * n_runs
        limit = max(1, min(batch_size, total))
        if limit > 1 and self.llm_client_factory is None:
            logger.warning("one run at a time: running %d at once needs an llm_client_factory", limit)
            limit = 1
        started = time.perf_counter()
        runs: dict[tuple[int, int], InProcessRunResult] = {}
        clients: list[LocalLLMClientProtocol] = []
        idle: asyncio.Queue[LocalRolloutRunner] = asyncio.Queue()

        async def run_one(attempt: tuple[int, int]) -> InProcessRunResult:
            (position, run_index), runner = attempt, idle.get_nowait()
            try:
                return await self.run_single(
                    rows[position], start_index + position, run_index, max_turns, completion_params, runner
                )
            finally:
                idle.put_nowait(runner)

        def done(_: int, attempt: tuple[int, int], run: InProcessRunResult) -> None:
            runs[attempt] = run
            if on_progress is not None:
                on_progress(len(runs), total, run)

        try:
            if limit == 1 or self.llm_client_factory is None:
                idle.put_nowait(self._runner(self.llm_client))
            else:
                for _ in range(limit):
                    clients.append(self.llm_client_factory())
                    idle.put_nowait(self._runner(clients[-1]))
            await run_all(product(range(len(rows)), range(n_runs)), run_one, limit=limit, done=done)
        finally:
            for client in clients:
                if hasattr(client, "close"):
                    await client.close()
        duration_ms = (time.perf_counter() - started) * 1000.0
        results = [
            EvalRowResult(start_index + position, [runs[position, run] for run in range(n_runs)])
            for position in range(len(rows))
        ]

        def summarize(scores: list[list[float | None]]) -> EvalEvalSummary:
            return summarize_scores(scores, n_runs=n_runs, pass_threshold=pass_threshold)

        reward = summarize([[run.reward for run in row.runs] for row in results])
        return EvalResult(
            rows=results,
            eval_summaries={
                eval_fn.name: summarize(
                    [[run.scores.get(eval_fn.name) for run in row.runs] for row in results]
                )
                for eval_fn in self.eval_fns
            },
            reward_summary=reward if reward.scored else None,
            total_rows=len(rows),
            total_runs=len(runs),
            total_tokens=sum(run.tokens for run in runs.values()),
            total_duration_ms=duration_ms,
            n_runs=n_runs,
            pass_threshold=pass_threshold,
        )

    def _runner(self, client: LocalLLMClientProtocol) -> LocalRolloutRunner:
        return LocalRolloutRunner(
            self.agent_loop, client, self.debug, self.debug_dir, rollout_id_prefix="eval"
        )


# The SDK's names.
EvalRunResult = InProcessRunResult
EvalRunner = InProcessEvalRunner


def format_eval_report(result: EvalResult, console: Any = None) -> str:
    """Return the report of an evaluation as plain text; also print it if a console is given."""
    summaries = dict(result.eval_summaries)
    if result.reward_summary is not None:
        summaries["Agent reward"] = result.reward_summary
    ks = sorted({k for summary in summaries.values() for k in summary.pass_at_k})
    table = [["Eval Function", "Mean", "Min", "Max", "Std", *(f"pass@{k}" for k in ks), "Scored", "95 % CI"]]
    for name, summary in summaries.items():
        estimate, interval = summary.estimate, _MISSING
        if estimate is not None and estimate.low is not None and estimate.high is not None:
            interval = f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"
        table.append(
            [
                name,
                *(f"{value:.3f}" for value in (summary.mean, summary.min, summary.max, summary.std)),
                *(f"{summary.pass_at_k[k] * 100:.1f}%" if k in summary.pass_at_k else _MISSING for k in ks),
                f"{summary.scored}/{summary.scored + summary.unscored}",
                interval,
            ]
        )
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "Evaluation Results:",
        f"  Rows: {result.total_rows}",
        f"  Runs per row: {result.n_runs}",
        f"  Total runs: {result.total_runs}",
        f"  Duration: {format_duration(result.total_duration_ms)}",
        f"  Total tokens: {format_tokens(result.total_tokens)}",
        "",
        *(
            "  " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        ),
    ]
    if console is not None:
        # A rich console would read `[fn=0.5]` as markup; other consoles have no such option.
        is_rich = type(console).__module__.partition(".")[0] == "rich"
        for line in lines:
            console.print(line, **({"markup": False, "highlight": False} if is_rich else {}))
    return "\n".join(lines)
