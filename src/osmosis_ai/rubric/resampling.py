"""How far a statistic of records could have come out otherwise: the bootstrap, by record.

A record with all its scores is drawn or left out as one, because scores of one record resemble
each other. Every statistic here is a function of sums over records, so a resample is a weighted
sum and thousands of them are one matrix product. The same seed gives the same interval.

Sources:
    Efron 1987, "Better Bootstrap Confidence Intervals" (BCa); Efron and Tibshirani 1993, "An
        Introduction to the Bootstrap", chapter 14, equations 14.10, 14.14 and 14.15.
    Wolter 2007, "Introduction to Variance Estimation", chapter 2 (random groups): many records are
        dealt at random into groups, which are then drawn instead; cost no longer grows with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from osmosis_ai.rubric.estimate import CONFIDENCE

if TYPE_CHECKING:
    import numpy as np

    from osmosis_ai.rubric.scores import Floats

RESAMPLES = 2000
# Measured on simulated judges: at 20 records a nominal 95 % interval of a reliability holds the truth
# in 87 to 93 % of cases, at 60 in 93 to 95 %; with fewer it is too narrow to be shown.
MIN_RECORDS = 20
METHOD = "bootstrap by record (BCa)"
TOO_FEW = f"no interval: fewer than {MIN_RECORDS} records, or no variation among them"

# The error of a standard error from G groups is 1/sqrt(2 G): under 2 %.
_MOST_GROUPS = 2048
_AT_ONCE = 200
# Resamples in which the statistic is undefined are left out; too many of them, and what is left
# says nothing about the spread.
_LEAST_DEFINED = 0.9


def bootstrap_interval(
    sums: Floats, statistic: Callable[[Floats], Floats], *, seed: int = 0
) -> tuple[float, float] | None:
    """Return the 95 % BCa interval of a statistic, resampling records."""
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
    """Return the sums by record, or by random group of records when there are very many."""
    import numpy as np

    records = sums.shape[0]
    if records <= _MOST_GROUPS:
        return sums
    starts = np.arange(_MOST_GROUPS) * records // _MOST_GROUPS
    grouped: Floats = np.add.reduceat(sums[rng.permutation(records)], starts, axis=0)
    return grouped


def _draws(units: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Yield, some draws at a time, how often each unit is in each draw."""
    import numpy as np

    for _ in range(RESAMPLES // _AT_ONCE):
        picked = rng.integers(0, units, size=(_AT_ONCE, units))
        picked += units * np.arange(_AT_ONCE)[:, None]
        times = np.bincount(picked.ravel(), minlength=_AT_ONCE * units)
        yield times.reshape(_AT_ONCE, units).astype(np.float64)


def _acceleration(left_out: Floats) -> float:
    """Return BCa's acceleration from the statistic with each unit left out."""
    import numpy as np

    away = left_out.mean() - left_out
    squares = float(np.square(away).sum())
    return float((away**3).sum()) / (6 * squares**1.5) if squares > 0 else 0.0
