"""The numbers of a run, kept up to date in 72 bytes per attempt.

Every attempt counts in exactly one way, and what could not be scored is never a zero:

========  =======  ==================================================================
status    reward   counts as
========  =======  ==================================================================
success   number   scored: the only samples behind reward, pass rate and pass@k
success   none     unscored, reason ``no_reward``
failed    any      unscored, reason its error type; and one failure of its boundary
skipped   any      skipped: the grader took it out
none      none     pending
========  =======  ==================================================================

Failures at the provider, the rollout server or the platform are failures of the infrastructure;
those of the agent, its tools and the grader belong to the code being evaluated.

Beside these estimates stands the summary that the product's files and wire define, where a failed
attempt counts as one that did not pass. The two answer different questions and are never mixed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, cast

from osmosis_ai.controller.attempt import BOUNDARIES
from osmosis_ai.evaluation.headline import warnings_of
from osmosis_ai.evaluation.ledger import WorkItem
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
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.evaluation.row_behaviour import flaky_rows, variance_shares
from osmosis_ai.evaluation.sample_columns import (
    ABSENT,
    FAILED,
    JUDGES,
    LEFT_OUT,
    PENDING,
    SAMPLE,
    SKIPPED,
    STATED,
    SUCCESS,
    UNKNOWN,
    Reasons,
    SampleNumbers,
    judges_of,
    sample_of,
)
from osmosis_ai.evaluation.statistics import (
    Estimate,
    describe,
    estimate_rate,
    estimate_reward,
    fitting_range,
    percentiles,
)
from osmosis_ai.llm.finish_reasons import FLAGGED

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from osmosis_ai.controller.attempt import Status
    from osmosis_ai.evaluation.sample_columns import RecordColumns
    from osmosis_ai.evaluation.statistics import Labels

__all__ = ["Estimates", "MetricsAccumulator", "RunMetrics", "WireSummary"]

INFRASTRUCTURE = ("provider", "rollout_server", "platform")
NO_REWARD = "no_reward"

_PROVIDER = 1 + BOUNDARIES.index("provider")
_MOST_REASONS = 1000
"""A rollout that makes up words gets no table of a million lines."""


class MetricsAccumulator:
    """Takes results one by one, in any order, and works out the numbers on demand."""

    def __init__(
        self,
        rows: int,
        n: int,
        *,
        pass_threshold: float = 1.0,
        clusters: Labels | None = None,
        only: Collection[WorkItem] | None = None,
        reward_range: tuple[float, float] | None = None,
    ) -> None:
        import numpy as np

        if rows < 0 or n < 1:
            raise ValueError(f"cannot count {n} attempts on {rows} rows")
        self.rows = rows
        self.cluster(np.arange(rows) if clusters is None else clusters)
        self.n = n
        self.pass_threshold = pass_threshold
        self.reward_range = reward_range
        self._samples = np.zeros(rows * n, dtype=np.dtype(SAMPLE))
        self._sources = np.full(rows, ABSENT, dtype=np.int64)
        if only is not None:
            self._samples["status"] = LEFT_OUT
            self._samples["status"][[row * n + run for row, run in only]] = PENDING
        self._lost: dict[int, int] = {}  # few attempts ever are
        self._judges: NDArray[np.void] | None = None  # made when a grader has asked one
        self._reasons = Reasons(_MOST_REASONS)

    def cluster(self, clusters: Labels) -> None:
        """Learn which rows are copies, as ``clusters`` above, in place of what was known."""
        import numpy as np

        self._clusters = np.asarray(clusters, dtype=np.int64)
        if self._clusters.shape != (self.rows,):
            raise ValueError(f"{self._clusters.size} clusters cannot be those of {self.rows} rows")

    @property
    def memory_bytes(self) -> int:
        """Return the bytes that the samples take."""
        return int(self._samples.nbytes)

    def add(
        self,
        row_index: int,
        run_index: int,
        status: str,
        reward: float | None,
        *,
        error_type: str | None = None,
        lost_attempts: int | None = None,
        source_row_index: int | None = None,
        **numbers: Unpack[SampleNumbers],
    ) -> None:
        """Record the outcome of one attempt."""
        known = cast("dict[str, Any]", {"duration_ms": None, **numbers})
        self._put(
            TerminalRecord(
                row_index,
                run_index,
                rollout_id="",
                status=cast("Status", status),
                reward=reward,
                error_type=error_type,
                lost_attempts=lost_attempts,
                source_row_index=source_row_index,
                **known,
            )
        )

    def add_record(self, record: TerminalRecord) -> None:
        """Record the outcome of one attempt as the journal keeps it; raises as :meth:`add`."""
        self._put(record)
        self.add_judges(record)

    def _put(self, record: TerminalRecord) -> None:
        row, run = record.row_index, record.run_index
        if not (0 <= row < self.rows and 0 <= run < self.n):
            raise ValueError(f"row {row} run {run} is outside the run")
        item = row * self.n + run
        self._samples[item] = sample_of(record, reason=self._reasons.code(record.error_type))
        if record.source_row_index is not None:
            self._sources[row] = record.source_row_index
        self._lose(item, record.lost_attempts)

    def add_columns(self, columns: RecordColumns) -> None:
        """Record the outcomes of many attempts, in their order: as :meth:`add_record` of each, and faster."""
        import numpy as np

        items = columns.items(self.n)
        samples = columns["sample"].copy()
        codes = np.array([self._reasons.code(word) for word in columns.reasons], dtype=np.uint16)
        samples["reason"] = codes[samples["reason"]]
        # Of several outcomes of one attempt the last is kept: so NumPy assigns.
        self._samples[items] = samples
        known = columns["source"] != ABSENT
        self._sources[columns["row"][known]] = columns["source"][known]
        losing = set(items[columns["lost"] > 0].tolist()) | set(self._lost)
        for place in np.flatnonzero(np.isin(items, list(losing))):
            self._lose(int(items[place]), int(columns["lost"][place]))
        asked = np.flatnonzero(columns["judges"]["calls"] > 0)
        if asked.size or self._judges is not None:
            first = 0 if self._judges is not None else int(asked[0])
            self._judged()[items[first:]] = columns["judges"][first:]

    def _lose(self, item: int, attempts: int | None) -> None:
        self._lost.pop(item, None)
        if attempts:
            self._lost[item] = attempts

    def add_judges(self, record: TerminalRecord) -> None:
        """Record what the grader of an attempt asked of judges; no part of :meth:`add`."""
        if record.judge_calls or self._judges is not None:
            self._judged()[record.row_index * self.n + record.run_index] = judges_of(record)

    def _judged(self) -> NDArray[np.void]:
        import numpy as np

        if self._judges is None:
            self._judges = np.zeros(self._samples.size, dtype=np.dtype(JUDGES))
            self._judges["cost_usd"] = np.nan
        return self._judges

    def summary(self) -> RunMetrics:
        """Return the numbers of what has been recorded so far."""
        return RunMetrics(wire=self._wire_summary(), estimates=self._estimates())

    def _wire_summary(self) -> WireSummary:
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

    def _estimates(self) -> Estimates:
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
        return flaky_rows(attempts, passes, self._clusters, self._sources)

    def _counts(self) -> Counts:
        import numpy as np

        status = self._samples["status"]
        scored, failed = self._scored(), status == FAILED
        reasons = np.bincount(self._samples["reason"][failed], minlength=len(self._reasons.words))
        unscored = {name: int(n) for name, n in zip(self._reasons.words, reasons, strict=True) if n}
        no_reward = int(((status == SUCCESS) & ~scored).sum())
        if no_reward:
            unscored[NO_REWARD] = unscored.get(NO_REWARD, 0) + no_reward
        boundaries = np.bincount(self._samples["boundary"][failed], minlength=len(BOUNDARIES) + 1)
        names = (UNKNOWN, *BOUNDARIES)
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
            lost_attempts=sum(self._lost.values()),
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
        if self._judges is None:
            return None
        costs = self._judges["cost_usd"]
        known = costs[costs == costs]
        return JudgeTotals(
            calls=int(self._judges["calls"].sum()),
            outside_scale=int(self._judges["outside_scale"].sum()),
            tokens=int(self._judges["tokens"].sum()),
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
