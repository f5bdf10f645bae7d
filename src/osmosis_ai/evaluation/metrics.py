"""The metrics of a run, computed from its table of results.

Every attempt counts in exactly one way, and an attempt without a score is never a zero:

========  =======  ==================================================================
status    reward   counts as
========  =======  ==================================================================
success   number   scored: the only samples behind reward, pass rate and pass@k
success   none     unscored, reason ``no_reward``
failed    any      unscored, reason its error type; and one failure of its boundary
skipped   any      skipped: the grader removed it
none      none     pending
========  =======  ==================================================================

Failures at the provider, the rollout server or the platform are failures of the infrastructure;
those of the agent, its tools and the grader belong to the code being evaluated.

The summary that the product's files and wire define is separate: there a failed attempt counts as one that did not
pass. The two answer different questions and are never mixed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from osmosis_ai.controller.outcomes import ERROR_SOURCES
from osmosis_ai.evaluation.metrics_models import (
    CostTotal,
    Counts,
    Estimates,
    FinishTotals,
    FlakyRows,
    JudgeTotals,
    Latency,
    PassAtKPoint,
    RunMetrics,
    TokenTotals,
    WireSummary,
    total_of,
)
from osmosis_ai.evaluation.pass_at_k import estimate_pass_at_k, estimate_pass_hat_k, pass_at_k_by_row
from osmosis_ai.evaluation.results import (
    ABSENT,
    FAILED,
    LEFT_OUT,
    PENDING,
    SKIPPED,
    STATED,
    SUCCESS,
    UNKNOWN,
    AttemptTable,
)
from osmosis_ai.evaluation.run_score import warnings_of
from osmosis_ai.evaluation.statistics import (
    Estimate,
    describe,
    estimate_rate,
    estimate_reward,
    fitting_range,
    percentiles,
)
from osmosis_ai.evaluation.variance import flaky_rows, variance_shares
from osmosis_ai.llm.finish_reasons import FLAGGED

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Estimates", "RunMetrics", "WireSummary", "compute_metrics"]

INFRASTRUCTURE = ("provider", "rollout_server", "platform")
NO_REWARD = "no_reward"

_PROVIDER = 1 + ERROR_SOURCES.index("provider")


def compute_metrics(
    table: AttemptTable, *, pass_threshold: float = 1.0, reward_range: tuple[float, float] | None = None
) -> RunMetrics:
    """Return the metrics of the results so far.

    Args:
        table: the run's results.
        pass_threshold: an attempt passes with a reward of at least this.
        reward_range: lowest and highest possible reward, where known; narrows the interval of the mean reward.
    """
    numbers = _Numbers(table, pass_threshold, reward_range)
    return RunMetrics(wire=numbers.wire_summary(), estimates=numbers.estimates())


class _Numbers:
    """The results, and what several of the metrics need of them."""

    def __init__(
        self, table: AttemptTable, pass_threshold: float, reward_range: tuple[float, float] | None
    ) -> None:
        self.table, self.rows, self.n = table, table.rows, table.n
        self.pass_threshold, self.reward_range = pass_threshold, reward_range
        self._samples, self._clusters = table.columns, table.clusters()

    def wire_summary(self) -> WireSummary:
        scored = self._scored()
        rewards = self._samples["reward"][scored]
        status = self._samples["status"]
        total, skipped = int(self._recorded().sum()), int((status == SKIPPED).sum())
        passed = int((rewards >= self.pass_threshold).sum())
        completed = total - skipped
        runs = self._attempts_seen()
        points = self._pass_at_k_points(runs) if runs >= 2 else []
        return WireSummary(
            total_samples=total,
            completed_samples=completed,
            graded=int(rewards.size),
            passed=passed,
            failed=int((status == FAILED).sum()),
            skipped=skipped,
            pass_rate=passed / completed if completed else 0.0,
            pass_threshold=self.pass_threshold,
            tokens_used=self._sum("tokens"),
            reward_stats=describe(rewards),
            n_runs=runs if runs >= 2 else None,
            pass_at_k=points if len(points) >= 2 else None,
        )

    def _pass_at_k_points(self, runs: int) -> list[PassAtKPoint]:
        status = self._samples["status"]
        attempts = self._by_row((status == SUCCESS) | (status == FAILED))
        passes = self._by_row(self._passed())
        points = []
        for k in _powers_of_two(runs):
            values = pass_at_k_by_row(attempts, passes, k)
            if values.size:
                points.append(PassAtKPoint(k=k, value=float(values.mean())))
        return points

    def estimates(self) -> Estimates:
        import numpy as np

        scored = self._scored()
        rewards = self._samples["reward"][scored]
        rows = np.flatnonzero(scored) // self.n
        clusters = self._clusters[rows]
        several = self.n >= 2
        reward_range, misfit = fitting_range(rewards, self.reward_range)
        reward = estimate_reward(rewards, rows, clusters, reward_range=reward_range)
        passed = estimate_rate((rewards >= self.pass_threshold).astype(np.float64), rows, clusters)
        counts, finish = self._counts(), self._finish_totals()
        return Estimates(
            pass_threshold=self.pass_threshold,
            reward=reward,
            pass_rate=passed,
            pass_at_k=self._of_k_attempts(estimate_pass_at_k) if several else {},
            pass_hat_k=self._of_k_attempts(estimate_pass_hat_k) if several else {},
            variance=variance_shares(rewards, clusters) if several else None,
            flaky=self._flaky_rows() if several else None,
            unscored=self._unscored(scored),
            counts=counts,
            tokens=self._token_totals(),
            cost_usd=self._cost_total(),
            latency=self._latency(),
            warnings=[*misfit, *warnings_of(counts, self.rows, (reward, passed), finish)],
            judges=self._judge_totals(),
            finish=finish,
        )

    def _unscored(self, scored: NDArray[np.bool_]) -> Estimate | None:
        """Return the share of finished attempts, skipped ones aside, that have no score."""
        import numpy as np

        tried = np.flatnonzero(self._recorded() & (self._samples["status"] != SKIPPED))
        rows = tried // self.n
        return estimate_rate((~scored[tried]).astype(np.float64), rows, self._clusters[rows])

    def _of_k_attempts(self, estimate: Callable[..., Estimate | None]) -> dict[int, Estimate]:
        attempts, passes = self._by_row(self._scored()), self._by_row(self._passed())
        found = {k: estimate(attempts, passes, k, self._clusters) for k in _powers_of_two(self.n)}
        return {k: each for k, each in found.items() if each is not None}

    def _flaky_rows(self) -> FlakyRows:
        attempts, passes = self._by_row(self._scored()), self._by_row(self._passed())
        return flaky_rows(attempts, passes, self._clusters, self.table.source_rows)

    def _counts(self) -> Counts:
        import numpy as np

        status = self._samples["status"]
        scored, failed = self._scored(), status == FAILED
        reasons = np.bincount(self._samples["reason"][failed], minlength=len(self.table.reasons))
        unscored = {name: int(n) for name, n in zip(self.table.reasons, reasons, strict=True) if n}
        no_reward = int(((status == SUCCESS) & ~scored).sum())
        if no_reward:
            unscored[NO_REWARD] = unscored.get(NO_REWARD, 0) + no_reward
        boundaries = np.bincount(self._samples["boundary"][failed], minlength=len(ERROR_SOURCES) + 1)
        names = (UNKNOWN, *ERROR_SOURCES)
        by_boundary = {name: int(n) for name, n in zip(names, boundaries, strict=True) if n}
        return Counts(
            planned=int((status != LEFT_OUT).sum()),
            scored=int(scored.sum()),
            unscored=dict(sorted(unscored.items(), key=lambda item: (-item[1], item[0]))),
            failed_by_boundary=by_boundary,
            infrastructure_failures=sum(by_boundary.get(name, 0) for name in INFRASTRUCTURE),
            skipped=int((status == SKIPPED).sum()),
            pending=int((status == PENDING).sum()),
            copies=int((np.diff(np.sort(self._clusters)) == 0).sum()),
            lost_attempts=int(self._samples["lost"].sum()),
        )

    def _token_totals(self) -> TokenTotals:
        absent = self._samples["tokens"] == ABSENT
        known = int((self._recorded() & ~absent).sum())
        asked = (self._samples["model_calls"] > 0) | (self._samples["boundary"] == _PROVIDER)
        unreported = self._recorded() & absent & asked
        total = self._sum("tokens")
        return TokenTotals(
            prompt=self._sum("prompt_tokens"),
            completion=self._sum("completion_tokens"),
            total=total,
            per_sample=total / known if known else None,
            known_samples=known,
            unreported_samples=int(unreported.sum()),
        )

    def _cost_total(self) -> CostTotal:
        recorded = self._recorded()
        costs = self._present("cost_usd", recorded)
        return CostTotal(
            total=total_of(costs), known_samples=int(costs.size), recorded_samples=int(recorded.sum())
        )

    def _finish_totals(self) -> FinishTotals | None:
        recorded = self._recorded()
        bits = self._samples["finish"][recorded]
        known = bits[bits >= STATED]
        if not known.size:
            return None
        truncated, filtered, refused = (
            int(((known & (1 << place)) > 0).sum()) for place in range(len(FLAGGED))
        )
        return FinishTotals(
            truncated=truncated,
            filtered=filtered,
            refused=refused,
            affected=int((known > STATED).sum()),
            known_samples=int(known.size),
            recorded_samples=int(bits.size),
        )

    def _judge_totals(self) -> JudgeTotals | None:
        judges = self.table.judges
        if judges is None:
            return None
        costs = judges["cost_usd"]
        known = costs[costs == costs]
        return JudgeTotals(
            calls=int(judges["calls"].sum()),
            outside_scale=int(judges["outside_scale"].sum()),
            tokens=int(judges["tokens"].sum()),
            cost_usd=total_of(known),
        )

    def _latency(self) -> Latency:
        recorded = self._recorded()
        waits, lasts = self._samples["model_latency_ms"], self._samples["duration_ms"]
        waited = recorded & (waits == waits)
        timed = waited & (self._samples["model_calls"] > 0)
        calls = int(self._samples["model_calls"][timed].sum())
        elsewhere = (lasts - waits)[waited & (lasts == lasts)]
        return Latency(
            rollout_ms=percentiles(self._present("duration_ms", recorded)),
            model_ms=percentiles(waits[waited]),
            elsewhere_ms=percentiles(elsewhere.clip(min=0.0)),
            model_call_mean_ms=float(waits[timed].sum()) / calls if calls else None,
        )

    def _recorded(self) -> NDArray[np.bool_]:
        status = self._samples["status"]
        recorded: NDArray[np.bool_] = (status != PENDING) & (status != LEFT_OUT)
        return recorded

    def _scored(self) -> NDArray[np.bool_]:
        rewards = self._samples["reward"]
        # NaN is the one value that differs from itself.
        scored: NDArray[np.bool_] = (self._samples["status"] == SUCCESS) & (rewards == rewards)
        return scored

    def _passed(self) -> NDArray[np.bool_]:
        passed: NDArray[np.bool_] = self._scored() & (self._samples["reward"] >= self.pass_threshold)
        return passed

    def _by_row(self, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
        import numpy as np

        counts: NDArray[np.int64] = chosen.reshape(self.rows, self.n).sum(axis=1, dtype=np.int64)
        return counts

    def _present(self, name: str, recorded: NDArray[np.bool_]) -> NDArray[np.float64]:
        values = self._samples[name]
        present: NDArray[np.float64] = values[recorded & (values == values)]
        return present

    def _sum(self, name: str) -> int:
        values = self._samples[name]
        return int(values[values > 0].sum())

    def _attempts_seen(self) -> int:
        """Return the greatest attempt recorded on any row, counted from 1."""
        import numpy as np

        used = np.flatnonzero(self._recorded().reshape(self.rows, self.n).any(axis=0))
        return int(used[-1]) + 1 if used.size else 0


def _powers_of_two(most: int) -> list[int]:
    return [1 << exponent for exponent in range(most.bit_length())]
