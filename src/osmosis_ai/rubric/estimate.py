"""A figure about a judge: value, interval, sample sizes, or the reason for a missing value.

The bootstrap resamples records with all their scores, because scores of one record are correlated. Every statistic is a
function of sums over records, so thousands of resamples are one matrix product.

Sources:
    Efron 1987, "Better Bootstrap Confidence Intervals" (BCa); Efron and Tibshirani 1993, "An
        Introduction to the Bootstrap", chapter 14, equations 14.10, 14.14 and 14.15.
    Wolter 2007, "Introduction to Variance Estimation", chapter 2 (random groups): many records are
        assigned to random groups, which are resampled instead, so that the cost stops growing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from osmosis_ai.statistics.estimates import CONFIDENCE, estimate_mean, estimate_rate

if TYPE_CHECKING:
    import numpy as np

    from osmosis_ai.rubric.scores import Booleans, Floats, Integers

__all__ = ["BOOTSTRAP", "CONFIDENCE", "MIN_RECORDS", "TOO_FEW", "JudgeFigure", "bootstrap_interval"]

RESAMPLES = 2000
# Measured on simulated judges: with 20 records a nominal 95% interval of a reliability covers the truth in 87 to
# 93% of cases, with 60 in 93 to 95%. With fewer records the interval is too narrow to be shown.
MIN_RECORDS = 20
BOOTSTRAP = "bootstrap by record (BCa)"
TOO_FEW = f"no interval: fewer than {MIN_RECORDS} records, or no variation among them"

_STUDENT = "Student's t, clustered by record"
_EXACT = "Clopper and Pearson, by record"
# The error of a standard error from G groups is 1/sqrt(2 G): under 2%.
_MOST_GROUPS = 2048
_AT_ONCE = 200
# Resamples with an undefined statistic are dropped. If too many are, the rest no longer estimates the variance.
_LEAST_DEFINED = 0.9
_ROUNDING = 1e-12
_NO_SPREAD = "no interval: one record, or no variation among records"


@dataclass(frozen=True, slots=True)
class JudgeFigure:
    """A value with its 95% interval, sample sizes and p-value."""

    value: float | None
    low: float | None = None
    high: float | None = None
    records: int = 0
    scores: int = 0
    method: str | None = None
    reason: str | None = None
    p: float | None = None
    p_adjusted: float | None = None

    @classmethod
    def missing(cls, reason: str, *, records: int = 0, scores: int = 0) -> JudgeFigure:
        """Return a figure without a value, with the reason."""
        return cls(None, records=records, scores=scores, reason=reason)

    def within(
        self, interval: tuple[float, float] | None, *, method: str, otherwise: str, p: float | None = None
    ) -> JudgeFigure:
        """Return the figure with ``interval`` and ``p``, or with ``otherwise`` as the reason for a missing interval."""
        if interval is None or not all(math.isfinite(bound) for bound in interval):
            return replace(self, reason=otherwise)
        low, high = float(interval[0]), float(interval[1])
        if high - low <= _ROUNDING * max(abs(low), abs(high)):
            return replace(self, reason=otherwise)
        return replace(self, low=low, high=high, method=method, p=p)

    @classmethod
    def of_mean(
        cls, values: Floats, rows: Integers | None = None, *, low: float = -math.inf, high: float = math.inf
    ) -> JudgeFigure:
        """Return a mean with its Student's t interval, clustering the scores of one record."""
        import numpy as np

        found = estimate_mean(values, np.arange(values.size) if rows is None else rows)
        if found is None:
            return cls.missing("there are no scores")
        figure = cls(found.value, records=found.clusters, scores=found.n)
        interval = None if found.low is None or found.high is None else (found.low, found.high)
        return figure.within(interval, method=_STUDENT, otherwise=_NO_SPREAD)._cut(low, high)

    @classmethod
    def of_rate(cls, hits: Booleans) -> JudgeFigure:
        """Return the share of true values with its Clopper-Pearson interval."""
        import numpy as np

        found = estimate_rate(hits.astype(np.float64), np.arange(hits.size))
        if found is None:
            return cls.missing("there are no records")
        return cls(found.value, found.low, found.high, found.clusters, found.n, _EXACT)

    def _cut(self, least: float, greatest: float) -> JudgeFigure:
        if self.low is None or self.high is None:
            return self
        return replace(self, low=max(self.low, least), high=min(self.high, greatest))


def bootstrap_interval(
    sums: Floats, statistic: Callable[[Floats], Floats], *, seed: int = 0
) -> tuple[float, float] | None:
    """Return the 95% BCa interval of a statistic, resampling records."""
    import numpy as np
    from scipy.special import ndtr, ndtri

    if sums.shape[0] < MIN_RECORDS:
        return None
    rng = np.random.default_rng(seed)
    units = _grouped(sums, rng)
    total = units.sum(axis=0, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        observed = float(statistic(total)[0])
        drawn = np.concatenate([statistic(weights @ units) for weights in _draws(units.shape[0], rng)])
        left_out = statistic(total - units)
    drawn, left_out = drawn[np.isfinite(drawn)], left_out[np.isfinite(left_out)]
    if drawn.size < _LEAST_DEFINED * RESAMPLES or np.ptp(drawn) == 0 or left_out.size == 0:
        return None
    below = (np.count_nonzero(drawn < observed) + np.count_nonzero(drawn <= observed)) / (2 * drawn.size)
    bias = ndtri(below)
    if not np.isfinite(bias):
        return None
    shift = bias + ndtri(np.array([(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]))
    low, high = np.quantile(drawn, ndtr(bias + shift / (1 - _acceleration(left_out) * shift)))
    return float(low), float(high)


def _grouped(sums: Floats, rng: np.random.Generator) -> Floats:
    """Return the sums by record, or by random group of records if there are many."""
    import numpy as np

    records = sums.shape[0]
    if records <= _MOST_GROUPS:
        return sums
    starts = np.arange(_MOST_GROUPS) * records // _MOST_GROUPS
    grouped: Floats = np.add.reduceat(sums[rng.permutation(records)], starts, axis=0)
    return grouped


def _draws(units: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Yield batches of draws: how often each draw contains each unit."""
    import numpy as np

    for _ in range(RESAMPLES // _AT_ONCE):
        picked = rng.integers(0, units, size=(_AT_ONCE, units))
        picked += units * np.arange(_AT_ONCE)[:, None]
        times = np.bincount(picked.ravel(), minlength=_AT_ONCE * units)
        yield times.reshape(_AT_ONCE, units).astype(np.float64)


def _acceleration(left_out: Floats) -> float:
    """Return BCa's acceleration from the leave-one-out statistics."""
    import numpy as np

    away = left_out.mean() - left_out
    squares = float(np.square(away).sum())
    return float((away**3).sum()) / (6 * squares**1.5) if squares > 0 else 0.0
