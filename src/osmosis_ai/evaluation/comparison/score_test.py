"""The score test of a mean difference between two ends, for runs in which few rows differ.

For each mean difference, the likeliest distribution on the differences seen and the two ends gives the standard
error. So the interval allows for rows that may yet differ by the whole range. With one binary attempt a row it is
Tango's interval; if no row differs it is Wilson's bound of zero. The interval inverts the test, so the p-value and
the interval always agree.

Sources:
    Tango 1998, "Equivalence Test and Confidence Interval for the Difference in Proportions for the
        Paired-Sample Design"; Owen 2001, "Empirical Likelihood", sections 2.4 and 3.1 (its likeliest
        distribution, for more than three values).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from osmosis_ai.evaluation.statistics import Floats


@dataclass(frozen=True, slots=True)
class Inversion:
    """What one test says: the mean differences it does not reject, and its p-value of none."""

    low: float
    high: float
    at_least: float
    at_most: float
    p: float

    def or_wider(self, other: Inversion) -> Inversion:
        """Return what neither test rejects alone: the wider bounds and the larger p-value."""
        return Inversion(
            min(self.low, other.low),
            max(self.high, other.high),
            min(self.at_least, other.at_least),
            max(self.at_most, other.at_most),
            max(self.p, other.p),
        )

    def within(self, width: float) -> Inversion:
        """Return it bounded to differences between ``-width`` and ``width``."""
        return Inversion(
            max(self.low, -width),
            min(self.high, width),
            max(self.at_least, -width),
            min(self.at_most, width),
            self.p,
        )

    def times(self, width: float) -> Inversion:
        """Return it for differences ``width`` times as large."""
        return Inversion(
            self.low * width, self.high * width, self.at_least * width, self.at_most * width, self.p
        )


def score_interval(by_row: Floats, *, confidence: float) -> Inversion:
    """Invert the score test of a mean of differences between -1 and 1."""
    from scipy.special import ndtr, ndtri

    likeliest = _Likeliest.of(by_row)
    two_sided, one_sided = float(ndtri((1 + confidence) / 2)), float(ndtri(confidence))
    return Inversion(
        likeliest.bound(two_sided, below=True),
        likeliest.bound(two_sided, below=False),
        likeliest.bound(one_sided, below=True),
        likeliest.bound(one_sided, below=False),
        2 * float(ndtr(-abs(likeliest.score_of_zero()))),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Likeliest:
    """The likeliest distributions of row differences, by their mean."""

    values: Floats
    counts: Floats
    rows: int
    mean: float

    @classmethod
    def of(cls, by_row: Floats) -> _Likeliest:
        import numpy as np

        values, counts = np.unique(np.clip(by_row, -1.0, 1.0), return_counts=True)
        found = cls(values, counts.astype(np.float64), by_row.size, 0.0)
        # As the path has it, rounding included: a sum in another order may have another sign where it is all but zero.
        return replace(found, mean=found.at(0.0)[0])

    def at(self, place: float) -> tuple[float, float]:
        """Return (mean, variance) at a place of the path."""
        beyond = max(abs(place) - 1, 0.0)
        end = math.copysign(1.0, place)
        inside = place if not beyond else end
        if abs(inside) == 1 and self.values[-1 if inside > 0 else 0] == end:
            return end, 0.0
        weights = self.counts / (1 - inside * self.values)
        weights /= weights.sum()
        inner = float(weights @ self.values)
        mean = (1 - beyond) * inner + beyond * end
        away = self.values - mean
        return mean, (1 - beyond) * float(weights @ (away * away)) + beyond * (end - mean) ** 2

    def score(self, place: float) -> float:
        """Return the score statistic of the mean at a place."""
        mean, variance = self.at(place)
        away = self.mean - mean
        if variance <= 0:
            return math.copysign(math.inf, away) if away else 0.0
        return away / math.sqrt(variance / self.rows)

    def bound(self, quantile: float, *, below: bool) -> float:
        """Return the mean below, or above, the one seen, whose score is the quantile."""
        from scipy.optimize import brentq

        if self.mean == (-1.0 if below else 1.0):
            return self.mean
        side = -1.0 if below else 1.0

        def excess(distance: float) -> float:
            return min(abs(self.score(side * distance)), 1e9) - quantile

        # At 2 all weight is on the end, whose variance is none: its score is infinite.
        place = side * float(brentq(excess, 0.0, 2.0, xtol=1e-14, rtol=1e-14))
        return self.at(place)[0]

    def score_of_zero(self) -> float:
        """Return the score statistic of no difference."""
        from scipy.optimize import brentq

        if self.mean == 0:
            return 0.0
        side = -math.copysign(1.0, self.mean)
        place = float(brentq(lambda distance: self.at(side * distance)[0], 0.0, 2.0, xtol=1e-14, rtol=1e-14))
        return self.score(side * place)
