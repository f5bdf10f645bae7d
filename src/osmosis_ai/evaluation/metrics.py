"""The metrics of a run, computed from its table of results.

Every attempt counts in exactly one way, and an attempt without a score is never a zero:

========  =======  ==================================================================
status    reward   counts as
========  =======  ==================================================================
success   number   scored: the only samples behind reward, pass rate and pass@k
success   none     unscored, reason ``no_reward``
failed    any      unscored, reason its code; and one failure of its source
skipped   any      skipped: the grader removed it
none      none     pending
========  =======  ==================================================================

The summary in the product's files and on the wire is separate: there a failed attempt counts as one that did not pass.

Every number is finite or absent, so that it can be written as JSON. Unknown fields of stored numbers, which a later
release may have added, are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError, ValidatorFunctionWrapHandler, field_validator

from osmosis_ai.controller.outcomes import ERROR_SOURCES, LimitedBy
from osmosis_ai.datasets.selection import RowsDrawn
from osmosis_ai.evaluation.results import FAILED, PENDING, SKIPPED, STATED, SUCCESS, UNKNOWN, AttemptTable
from osmosis_ai.llm.replies import FLAGGED, FLAGGED_NAMES
from osmosis_ai.statistics.estimates import (
    Description,
    Estimate,
    Percentiles,
    describe,
    estimate_rate,
    estimate_reward,
    fitting_range,
    percentiles,
)
from osmosis_ai.statistics.pass_at_k import estimate_pass_at_k, estimate_pass_hat_k, pass_at_k_by_row
from osmosis_ai.statistics.variance import FlakyRows, VarianceShares, flaky_rows, variance_shares

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from osmosis_ai.statistics.estimates import Floats, Integers

# Failures that do not belong to the code being evaluated.
_INFRASTRUCTURE = ("provider", "rollout_server", "platform")
NO_REWARD = "no_reward"
LEAST_SCORED = 0.9
"""If fewer finished attempts are scored, the numbers may not describe the others."""
# If a larger share of attempts is truncated, filtered or refused, the results may not reflect the model.
_MAX_AFFECTED = 0.05
_PROVIDER = 1 + ERROR_SOURCES.index("provider")


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class PassAtKPoint(_Model):
    """pass@k in the product's files."""

    k: int
    value: float


class WireSummary(_Model):
    """The product's summary of a run; files do not contain absent fields."""

    total_samples: int
    completed_samples: int
    graded: int
    passed: int
    failed: int
    skipped: int
    pass_rate: float
    pass_threshold: float
    tokens_used: int
    reward_stats: Description | None = None
    n_runs: int | None = None
    pass_at_k: list[PassAtKPoint] | None = None


class Counts(_Model):
    """Numbers of attempts; scored, unscored, skipped and pending add up to planned."""

    planned: int
    scored: int
    unscored: dict[str, int]
    failed_by_boundary: dict[str, int]
    infrastructure_failures: int
    skipped: int
    pending: int
    copies: int = 0
    lost_attempts: int = 0

    @property
    def finished(self) -> int:
        """Attempts that ended with or without a score."""
        return self.planned - self.pending - self.skipped


class TokenTotals(_Model):
    """Tokens of all recorded attempts; ``per_sample`` is their mean over the ``known_samples``."""

    prompt: int
    completion: int
    total: int
    per_sample: float | None
    known_samples: int
    unreported_samples: int


class FinishTotals(_Model):
    """Numbers of attempts with a truncated, filtered or refused model reply; ``affected`` have any of these."""

    truncated: int
    filtered: int
    refused: int
    affected: int
    known_samples: int
    recorded_samples: int


class CostTotal(_Model):
    """Cost of the model calls in USD, as far as prices are known; None if none is."""

    total: float | None
    known_samples: int
    recorded_samples: int


class JudgeTotals(_Model):
    """Judge calls of graders."""

    calls: int
    tokens: int
    cost_usd: float | None
    outside_scale: int = 0


class Latency(_Model):
    """Milliseconds of attempts, of their model calls and other work, and the mean of single model calls."""

    rollout_ms: Percentiles | None
    model_ms: Percentiles | None
    elsewhere_ms: Percentiles | None
    model_call_mean_ms: float | None


class Estimates(_Model):
    """Estimates from the scored attempts, with the denominators of every number."""

    pass_threshold: float
    reward: Estimate | None
    pass_rate: Estimate | None
    pass_at_k: dict[int, Estimate]
    pass_hat_k: dict[int, Estimate] = {}
    variance: VarianceShares | None = None
    flaky: FlakyRows | None = None
    unscored: Estimate | None = None
    counts: Counts
    tokens: TokenTotals
    cost_usd: CostTotal
    latency: Latency
    warnings: list[str] = []
    limited_by: LimitedBy | None = None
    judges: JudgeTotals | None = None
    finish: FinishTotals | None = None

    @field_validator("limited_by", mode="wrap")
    @classmethod
    def _drop_unknown_limit(cls, value: Any, read: ValidatorFunctionWrapHandler) -> Any:
        """Drop a limit that only a later release knows."""
        try:
            return read(value)
        except ValidationError:
            return None

    @classmethod
    def read(cls, written: Any) -> Estimates | None:
        """Return the estimates in a file or of a platform; None if they are missing or invalid."""
        try:
            return cls.model_validate(written) if written else None
        except ValidationError:
            return None


class RunMetrics(_Model):
    """All numbers of a run: the product's summary, as the ``wire`` defines it, and our ``estimates``."""

    wire: WireSummary
    estimates: Estimates

    @property
    def summary(self) -> dict[str, Any]:
        """The product's summary as JSON values, without absent fields."""
        return self.wire.model_dump(mode="json", exclude_none=True)


class RunScore(_Model):
    """The summary of an evaluation, in files and on the wire."""

    pass_rate: float | None = None
    low: float | None = None
    high: float | None = None
    reward: float | None = None
    pass_threshold: float = 1.0
    scored: int = 0
    planned: int = 0
    pending: int = 0
    skipped: int = 0
    failed: int = 0
    failed_by_boundary: dict[str, int] = {}
    rows: RowsDrawn | None = None
    warnings: list[str] = []

    @classmethod
    def of(cls, estimates: Estimates, rows: RowsDrawn | None = None) -> RunScore:
        """Return the score of a run with these estimates."""
        rate, reward, counts = estimates.pass_rate, estimates.reward, estimates.counts
        return cls(
            pass_rate=rate.value if rate else None,
            low=rate.low if rate else None,
            high=rate.high if rate else None,
            reward=reward.value if reward else None,
            pass_threshold=estimates.pass_threshold,
            scored=counts.scored,
            planned=counts.planned,
            pending=counts.pending,
            skipped=counts.skipped,
            failed=sum(counts.failed_by_boundary.values()),
            failed_by_boundary=counts.failed_by_boundary,
            rows=rows,
            warnings=estimates.warnings,
        )

    @classmethod
    def of_results(
        cls, results: Mapping[str, Any], *, planned: int, rows: RowsDrawn | None = None
    ) -> RunScore | None:
        """Return the score in a platform's results, which may have only counts; None without results."""
        try:
            if results.get("headline"):
                known = cls.model_validate(results["headline"])
                return known.model_copy(update={"rows": rows or known.rows})
        except ValidationError:
            pass
        scored, done, passed = (results.get(name) for name in ("graded", "total_runs", "passed"))
        if scored is None:
            return None
        failed, skipped = results.get("failed") or 0, results.get("skipped") or 0
        threshold = results.get("pass_threshold")
        warning = describe_few_scored(scored, scored + failed if done is None else done - skipped)
        return cls(
            pass_rate=passed / scored if scored and passed is not None else None,
            pass_threshold=1.0 if threshold is None else threshold,
            scored=scored,
            planned=max(planned, scored),
            pending=0 if done is None else max(planned - done, 0),
            skipped=skipped,
            failed=failed,
            rows=rows,
            warnings=[warning] if warning else [],
        )

    @property
    def finished(self) -> int:
        """Attempts that ended, except skipped ones."""
        return self.planned - self.pending - self.skipped


def compute_metrics(
    table: AttemptTable, *, pass_threshold: float = 1.0, reward_range: tuple[float, float] | None = None
) -> RunMetrics:
    """Return the metrics of the results so far.

    Args:
        table: the run's results.
        pass_threshold: an attempt passes with a reward of at least this.
        reward_range: lowest and highest possible reward, if known; narrows the interval of the mean reward.
    """
    numbers = _Numbers(table, pass_threshold)
    return RunMetrics(wire=numbers.wire_summary(), estimates=numbers.estimates(reward_range))


class _Numbers:
    """The results of a run, with the masks and counts that several metrics share."""

    def __init__(self, table: AttemptTable, pass_threshold: float) -> None:
        self.table, self.n, self.columns = table, table.n, table.columns
        self.pass_threshold = pass_threshold
        self.status = self.columns["status"] * ~table.pending  # PENDING is 0
        self.recorded = self.status != PENDING
        self.failed, self.skipped = self.status == FAILED, self.status == SKIPPED
        self.scored = table.is_scored
        self.passed = self.scored & (self.columns["reward"] >= pass_threshold)
        self.clusters = table.clusters()

    def wire_summary(self) -> WireSummary:
        passed = int(self.passed.sum())
        completed = int((self.recorded & ~self.skipped).sum())
        # The greatest attempt recorded on any row, counted from 1.
        runs = max((run + 1 for run in range(self.n) if self.recorded[run :: self.n].any()), default=0)
        attempts, passes = self._by_row((self.status == SUCCESS) | self.failed), self._by_row(self.passed)
        points = []
        for k in _powers_of_two(runs):
            values = pass_at_k_by_row(attempts, passes, k)
            if values.size:
                points.append(PassAtKPoint(k=k, value=float(values.mean())))
        return WireSummary(
            total_samples=int(self.recorded.sum()),
            completed_samples=completed,
            graded=int(self.scored.sum()),
            passed=passed,
            failed=int(self.failed.sum()),
            skipped=int(self.skipped.sum()),
            pass_rate=passed / completed if completed else 0.0,
            pass_threshold=self.pass_threshold,
            tokens_used=self._sum("tokens"),
            reward_stats=describe(self.table.rewards),
            n_runs=runs if runs >= 2 else None,
            pass_at_k=points if len(points) >= 2 else None,
        )

    def estimates(self, reward_range: tuple[float, float] | None) -> Estimates:
        import numpy as np

        rewards, clusters, several = self.table.rewards, self.clusters, self.n >= 2
        rows = np.flatnonzero(self.scored) // self.n
        reward_range, misfit = fitting_range(rewards, reward_range)
        reward = estimate_reward(rewards, rows, clusters[rows], reward_range=reward_range)
        rate = estimate_rate(self.passed[self.scored].astype(np.float64), rows, clusters[rows])
        # The share of finished attempts, except skipped ones, that have no score.
        tried = np.flatnonzero(self.recorded & ~self.skipped)
        unscored = (~self.scored[tried]).astype(np.float64)
        attempts, passes = self._by_row(self.scored), self._by_row(self.passed)
        powers = _powers_of_two(self.n) if several else []
        at_k = {k: estimate_pass_at_k(attempts, passes, k, clusters) for k in powers}
        hat_k = {k: estimate_pass_hat_k(attempts, passes, k, clusters) for k in powers}
        counts, finish, costs = self._counts(), self._finish_totals(), self._known("cost_usd")
        warnings = [*misfit, *_warnings(counts, self.table.rows, finish)]
        warnings += [each.warning for each in (reward, rate) if each is not None and each.warning]
        return Estimates(
            pass_threshold=self.pass_threshold,
            reward=reward,
            pass_rate=rate,
            pass_at_k={k: each for k, each in at_k.items() if each is not None},
            pass_hat_k={k: each for k, each in hat_k.items() if each is not None},
            variance=variance_shares(rewards, clusters[rows]) if several else None,
            flaky=flaky_rows(attempts, passes, clusters, self.table.source_rows) if several else None,
            unscored=estimate_rate(unscored, tried // self.n, clusters[tried // self.n]),
            counts=counts,
            tokens=self._token_totals(),
            cost_usd=CostTotal(
                total=total_of(costs), known_samples=costs.size, recorded_samples=int(self.recorded.sum())
            ),
            latency=self._latency(),
            warnings=list(dict.fromkeys(warnings)),
            judges=self._judge_totals(),
            finish=finish,
        )

    def _counts(self) -> Counts:
        import numpy as np

        reasons = np.bincount(self.columns["reason"][self.failed], minlength=len(self.table.reasons))
        unscored = {name: int(n) for name, n in zip(self.table.reasons, reasons, strict=True) if n}
        no_reward = int(((self.status == SUCCESS) & ~self.scored).sum())
        if no_reward:
            unscored[NO_REWARD] = unscored.get(NO_REWARD, 0) + no_reward
        names = (UNKNOWN, *ERROR_SOURCES)
        sources = np.bincount(self.columns["boundary"][self.failed], minlength=len(names))
        by_source = {name: int(n) for name, n in zip(names, sources, strict=True) if n}
        return Counts(
            planned=len(self.table),
            scored=int(self.scored.sum()),
            unscored=dict(sorted(unscored.items(), key=lambda item: (-item[1], item[0]))),
            failed_by_boundary=by_source,
            infrastructure_failures=sum(by_source.get(name, 0) for name in _INFRASTRUCTURE),
            skipped=int(self.skipped.sum()),
            pending=int((self.status == PENDING).sum()),
            copies=self.table.copied_rows,
            lost_attempts=self._sum("lost_attempts"),
        )

    def _token_totals(self) -> TokenTotals:
        import numpy as np

        known, total = self._known("tokens").size, self._sum("tokens")
        called = (self.columns["model_calls"] > 0) | (self.columns["boundary"] == _PROVIDER)
        unreported = self.recorded & called & np.isnan(self.columns["tokens"])
        return TokenTotals(
            prompt=self._sum("prompt_tokens"),
            completion=self._sum("completion_tokens"),
            total=total,
            per_sample=total / known if known else None,
            known_samples=known,
            unreported_samples=int(unreported.sum()),
        )

    def _finish_totals(self) -> FinishTotals | None:
        bits = self.columns["finish"][self.recorded]
        known = bits[bits >= STATED]
        if not known.size:
            return None
        flagged = {
            FLAGGED_NAMES[reason]: int(((known & (1 << position)) > 0).sum())
            for position, reason in enumerate(FLAGGED)
        }
        affected = int((known > STATED).sum())
        return FinishTotals(
            **flagged, affected=affected, known_samples=known.size, recorded_samples=bits.size
        )

    def _judge_totals(self) -> JudgeTotals | None:
        calls = self._sum("judge_calls")
        if not calls:
            return None
        return JudgeTotals(
            calls=calls,
            tokens=self._sum("judge_tokens"),
            cost_usd=total_of(self._known("judge_cost_usd")),
            outside_scale=self._sum("judge_outside_scale"),
        )

    def _latency(self) -> Latency:
        import numpy as np

        in_model, calls = self.columns["model_latency_ms"], self.columns["model_calls"]
        outside = self.columns["duration_ms"] - in_model
        waited = self.recorded & np.isfinite(in_model)
        called = waited & (calls > 0)
        total_calls = int(calls[called].sum(dtype="f8"))
        return Latency(
            rollout_ms=percentiles(self._known("duration_ms")),
            model_ms=percentiles(in_model[waited]),
            elsewhere_ms=percentiles(outside[self.recorded & np.isfinite(outside)].clip(min=0.0)),
            model_call_mean_ms=float(in_model[called].sum()) / total_calls if total_calls else None,
        )

    def _by_row(self, chosen: NDArray[np.bool_]) -> Integers:
        counts: Integers = chosen.reshape(self.table.rows, self.n).sum(axis=1, dtype="i8")
        return counts

    def _known(self, name: str) -> Floats:
        """Return the known values of a column."""
        import numpy as np

        values = self.columns[name]
        known: Floats = values[self.recorded & np.isfinite(values)]
        return known

    def _sum(self, name: str) -> int:
        return int(self._known(name).sum(dtype="f8"))


def describe_few_scored(scored: int, finished: int) -> str | None:
    """Return a warning if too few of the finished attempts have a score."""
    if scored >= LEAST_SCORED * finished:
        return None
    share = _percent(scored, finished)
    return f"only {scored:,} of {finished:,} finished attempts have a score ({share}); the numbers exclude the rest"


def describe_copied_rows(copies: int, rows: int) -> str | None:
    """Return a warning if rows are duplicates of others."""
    if not copies:
        return None
    duplicates = "row is a duplicate" if copies == 1 else "rows are duplicates"
    return f"{copies:,} of {rows:,} {duplicates} of another and count as one row in every interval"


def _warnings(counts: Counts, rows: int, finish: FinishTotals | None) -> Iterator[str]:
    if few := describe_few_scored(counts.scored, counts.finished):
        yield few
    if finish is not None and finish.affected > _MAX_AFFECTED * finish.known_samples:
        found = [(name, getattr(finish, name)) for name in FLAGGED_NAMES.values()]
        yield (
            f"{finish.affected:,} of {finish.known_samples:,} attempts "
            f"({_percent(finish.affected, finish.known_samples)}) have a model reply that was "
            + ", ".join(f"{name} ({count:,})" for name, count in found if count)
        )
    if copies := describe_copied_rows(counts.copies, rows):
        yield copies


def _percent(part: int, whole: int) -> str:
    return f"{part / whole * 100:.1f}%"


def _powers_of_two(most: int) -> list[int]:
    return [1 << exponent for exponent in range(most.bit_length())]


def total_of(amounts: Floats) -> float | None:
    """Return the sum, which does not depend on the order; None for no amounts or an overflow."""
    try:
        return math.fsum(amounts) if amounts.size else None
    except OverflowError:
        return None
