"""The difference of two runs on different rows: two independent means, each clustered by row.

Where the runs share rows this is too wide (:mod:`~osmosis_ai.evaluation.comparison.differences`).

A t interval needs rows that vary. On a scale where hardly any row of a run is away from an end, and where
only counts are known, the interval is put together from those of the two rates.

Sources:
    Miller 2024, "Adding Error Bars to Evals", section 4.1 (two independent means, clustered errors).
    Welch 1947, "The Generalization of Student's Problem"; Satterthwaite 1946, "An Approximate
        Distribution of Estimates of Variance Components" (its degrees of freedom).
    Newcombe 1998, "Interval Estimation for the Difference between Independent Proportions", method 10
        (from two Wilson intervals); Zou and Donner 2008, "Construction of Confidence Limits about
        Effect Measures" (from any two).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, TypeAlias

from osmosis_ai.evaluation.comparison.differences import mean_by_row, observed_range, workable_unit
from osmosis_ai.evaluation.comparison.numbers import Difference
from osmosis_ai.evaluation.intervals import LEAST_VARIED, NO_SPREAD, ONE_CLUSTER, Interval, wilson_interval
from osmosis_ai.evaluation.statistics import CONFIDENCE, Estimate, estimate_rate

if TYPE_CHECKING:
    from osmosis_ai.evaluation.statistics import Floats, Labels, Values

    BothRates: TypeAlias = Callable[[float], tuple["Interval | Estimate", "Interval | Estimate"]]

COUNTS_ONLY = (
    "from counts alone: a row counts once, whatever its attempts, since how alike they are is not known"
)

_LEAST_P = 1e-12


@dataclass(frozen=True, slots=True)
class PassCounts:
    """What is known of a run without its attempts."""

    passes: int
    samples: int
    rows: int

    @property
    def rate(self) -> float:
        """The share of samples that passed."""
        return self.passes / self.samples

    @property
    def observations(self) -> int:
        """As many as there are rows: however alike attempts on one row are, bounds from these hold."""
        return min(self.samples, self.rows)

    def with_more(self, samples: int, passing: float) -> PassCounts:
        """Return the counts with more samples, a share of which passes."""
        return PassCounts(self.passes + round(samples * passing), self.samples + samples, self.rows)

    def interval(self, confidence: float) -> Interval:
        """Return Wilson's interval of the rate."""
        return wilson_interval(self.rate, self.observations, confidence)


def unpaired_difference(
    values_a: Values,
    rows_a: Labels,
    values_b: Values,
    rows_b: Labels,
    *,
    confidence: float = CONFIDENCE,
    scale: tuple[float, float] | None = None,
) -> Difference | None:
    """Estimate by how much the mean of B lies above that of A, the rows of either being its own."""
    import numpy as np

    (_, a, counts_a), (_, b, counts_b) = (
        mean_by_row(values_a, rows_a, scale),
        mean_by_row(values_b, rows_b, scale),
    )
    if not a.size or not b.size:
        return None
    a, b = np.sort(a), np.sort(b)
    if scale is None and (unit := workable_unit(a, b)) != 1.0:
        found = unpaired_difference(
            np.asarray(values_a) / unit, rows_a, np.asarray(values_b) / unit, rows_b, confidence=confidence
        )
        return None if found is None else found.times(unit)
    value = float(b.mean()) - float(a.mean())
    plain = Difference(value, None, None, None, None, a.size + b.size, int(counts_a.sum() + counts_b.sum()))
    if scale is None or min(_varied(means, scale) for means in (a, b)) >= LEAST_VARIED:
        ends = scale or observed_range(values_a, values_b)
        return _welch(plain, a, b, confidence).within(ends[1] - ends[0], certain=scale is not None)
    least, width = scale[0], scale[1] - scale[0]
    parts = [(np.clip((means - least) / width, 0.0, 1.0), np.arange(means.size)) for means in (a, b)]

    def both_rates(level: float) -> tuple[Estimate, Estimate]:
        rates = [estimate_rate(*part, confidence=level) for part in parts]
        assert rates[0] is not None and rates[1] is not None
        return rates[0], rates[1]

    found = _of_two_rates(
        replace(plain, value=value / width), [float(part[0].mean()) for part in parts], both_rates, confidence
    )
    return replace(found.times(width), value=value, method="korn-graubard-mover")


def difference_of_counts(a: PassCounts, b: PassCounts, *, confidence: float = CONFIDENCE) -> Difference:
    """Estimate by how much the pass rate of B lies above that of A from counts alone: Newcombe's interval."""
    if not a.samples or not b.samples:
        raise ValueError("a rate needs samples")
    plain = Difference(
        b.rate - a.rate, None, None, None, None, a.rows + b.rows, a.samples + b.samples, method="newcombe"
    )
    many_attempts = a.samples > a.rows or b.samples > b.rows
    return _of_two_rates(
        replace(plain, warning=COUNTS_ONLY if many_attempts else None),
        [a.rate, b.rate],
        lambda level: (a.interval(level), b.interval(level)),
        confidence,
    )


def difference_of_means(
    a: float, stderr_a: float, b: float, stderr_b: float, *, confidence: float = CONFIDENCE
) -> Difference:
    """Estimate ``b - a`` from two means that were measured apart, each with its standard error.

    ``(b - a) ± z sqrt(stderr_a^2 + stderr_b^2)`` (Miller 2024, section 4.1): the rows behind either are not known.
    """
    value, stderr = b - a, math.hypot(stderr_a, stderr_b)
    plain = Difference(value, None, None, None, None, 0, 0)
    if stderr == 0 or not math.isfinite(stderr + value):
        return replace(plain, reason=NO_SPREAD)
    normal = NormalDist()
    half, one_sided = (normal.inv_cdf(level) * stderr for level in ((1 + confidence) / 2, confidence))
    return replace(
        plain,
        low=value - half,
        high=value + half,
        at_least=value - one_sided,
        at_most=value + one_sided,
        method="standard-errors",
        p=math.erfc(abs(value) / stderr / math.sqrt(2)),
    )


def _varied(means: Floats, scale: tuple[float, float]) -> int:
    """Return how many rows are away from the lower end, or from the upper, whichever are fewer."""
    return min(int((means > scale[0]).sum()), int((means < scale[1]).sum()))


def _welch(plain: Difference, a: Floats, b: Floats, confidence: float) -> Difference:
    if a.size < 2 or b.size < 2:
        return replace(plain, reason=ONE_CLUSTER)
    variances = [float(means.var(ddof=1)) / means.size for means in (a, b)]
    if not sum(variances):
        return replace(plain, reason=NO_SPREAD)
    from scipy.special import stdtr, stdtrit

    shares = [variance / sum(variances) for variance in variances]
    freedom = 1 / (shares[0] ** 2 / (a.size - 1) + shares[1] ** 2 / (b.size - 1))
    stderr = math.sqrt(sum(variances))
    half = float(stdtrit(freedom, (1 + confidence) / 2)) * stderr
    one_sided = float(stdtrit(freedom, confidence)) * stderr
    return replace(
        plain,
        low=plain.value - half,
        high=plain.value + half,
        at_least=plain.value - one_sided,
        at_most=plain.value + one_sided,
        method="welch",
        p=2 * float(stdtr(freedom, -abs(plain.value) / stderr)),
    )


def _of_two_rates(plain: Difference, rates: list[float], both: BothRates, confidence: float) -> Difference:
    """Return the difference of two rates with an interval made of theirs."""

    def bounds(level: float, *, one_sided: bool) -> tuple[float, float]:
        (low_a, high_a), (low_b, high_b) = (
            (rate.at_least, rate.at_most) if one_sided else (rate.low, rate.high) for rate in both(level)
        )
        assert low_a is not None and high_a is not None and low_b is not None and high_b is not None
        down, up = (
            math.hypot(rates[1] - low_b, high_a - rates[0]),
            math.hypot(high_b - rates[1], rates[0] - low_a),
        )
        return max(plain.value - down, -1.0), min(plain.value + up, 1.0)

    def away_from_zero(p: float) -> float:
        low, high = bounds(1 - p, one_sided=False)
        return low if plain.value > 0 else -high

    (low, high), (at_least, at_most) = (bounds(confidence, one_sided=one) for one in (False, True))
    return replace(
        plain, low=low, high=high, at_least=at_least, at_most=at_most, p=_rising_root(away_from_zero)
    )


def _rising_root(rising: Callable[[float], float]) -> float:
    """Return the p-value at which a bound crosses zero: 1 where none does, and none below 1e-12."""
    from scipy.optimize import brentq

    if rising(1 - _LEAST_P) <= 0:
        return 1.0
    if rising(_LEAST_P) > 0:
        return _LEAST_P
    return math.exp(
        brentq(lambda log_p: rising(math.exp(log_p)), math.log(_LEAST_P), math.log1p(-_LEAST_P), xtol=1e-12)
    )
