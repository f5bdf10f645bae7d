"""What to say of a mean difference when few rows differ and Student's t can not be relied on.

Two methods that assume little, each an inversion of its own test, so that a p-value below the level and
an interval that leaves out zero are the same thing:

- *Sign flips*: were the rows' differences symmetric about the mean, their signs could be flipped at will.
  The differences that this test does not reject are bounded by means of subsets of the rows (Hartigan),
  so one pass over the subsets gives p-value, interval and one-sided bounds.
- *The score test* on a scale with two ends: for each difference that could be true, the likeliest
  distribution on the differences seen, and the two ends that were not, gives the error. It knows that
  a row may yet differ by the whole scale, which subsets of what was seen do not. One binary attempt a row
  makes it Tango's interval, and no row that differs Wilson's bound of zero.

Sources:
    Phipson and Smyth 2010, "Permutation P-values Should Never Be Zero" (the +1).
    Hartigan 1969, "Using Subsample Values as Typical Values" (means of subsets bound the interval).
    Tango 1998, "Equivalence Test and Confidence Interval for the Difference in Proportions for the
        Paired-Sample Design"; Owen 2001, "Empirical Likelihood", sections 2.4 and 3.1 (its likeliest
        distribution, for more than three values).
    Fagerland, Lydersen and Laake 2013, "The McNemar Test for Binary Matched-Pairs Data: Mid-p and
        Asymptotic Are Better than Exact Conditional".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from osmosis_ai.evaluation.statistics import Floats

MOST_ENUMERATED = 16
DRAWS = 10_000

_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Inversion:
    """What one test says: the mean differences it does not reject, and its p-value of none.

    Attributes:
        low, high: the two-sided interval; infinite where the test rejects nothing on that side.
        at_least, at_most: the one-sided bounds.
        p: two-sided, of a mean difference of zero.
    """

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


def sign_flips(by_row: Floats, *, confidence: float, seed: int) -> Inversion:
    """Invert the sign-flip test of a mean difference.

    Flipping the subset S of rows leaves a sum as large as the one seen just where the mean of S is not
    above the difference tested. Of N subsets without the empty one, which is no flip, the p-value of "not
    above ``x``" is thus ``(1 + those with a mean up to x) / (N + 1)``, and its inversion their
    ``floor(level * (N + 1))``-th smallest mean. With up to :data:`MOST_ENUMERATED` rows that differ all of
    their subsets are taken; else :data:`DRAWS` at random.

    Args:
        by_row: the difference of each row, sorted, so that what is drawn does not depend on their order.
        confidence: of the interval, and of each one-sided bound.
        seed: of the draws.
    """
    import numpy as np

    means = _subset_means(by_row, seed)
    means[np.abs(means) < _ROUNDING * float(np.abs(by_row).max(initial=0.0))] = 0.0
    outcomes = means.size + 1
    tail = (1 - confidence) / 2
    ranks = [math.floor(level * outcomes + _ROUNDING) for level in (tail, 1 - confidence)]
    places = sorted({place for rank in ranks if rank for place in (rank - 1, means.size - rank)})
    ordered = np.partition(means, places) if places else means

    def lower(rank: int) -> float:
        return float(ordered[rank - 1]) if rank else -math.inf

    def upper(rank: int) -> float:
        return float(ordered[means.size - rank]) if rank else math.inf

    fewer = min(int((means <= 0).sum()), int((means >= 0).sum()))
    return Inversion(
        lower(ranks[0]),
        upper(ranks[0]),
        lower(ranks[1]),
        upper(ranks[1]),
        min(1.0, 2 * (1 + fewer) / outcomes),
    )


def _subset_means(by_row: Floats, seed: int) -> Floats:
    """Return the means of all subsets of the rows but the empty one, or of some at random.

    Of many rows of which few differ, all subsets of those are taken, each with the rows that do not differ
    a number of times at random: what they say of a difference of zero is exact then, too.
    """
    import numpy as np

    if by_row.size <= MOST_ENUMERATED:
        sums, sizes = _all_subsets(by_row)
        every: Floats = sums[1:] / sizes[1:]
        return every
    draw = np.random.default_rng(seed)
    differing = by_row[by_row != 0]
    if differing.size <= MOST_ENUMERATED:
        sums, sizes = (np.tile(part, max(DRAWS // part.size, 1))[1:] for part in _all_subsets(differing))
    else:
        chosen = draw.integers(0, 2, (DRAWS, differing.size), dtype=np.int8).astype(np.float64)
        sums, sizes = chosen @ differing, chosen.sum(axis=1)
    alike = draw.binomial(by_row.size - differing.size, 0.5, sums.size)
    some: Floats = sums / np.maximum(sizes + alike, 1)
    return some


def _all_subsets(by_row: Floats) -> tuple[Floats, Floats]:
    """Return (sum, size) of every subset; the empty one comes first."""
    import numpy as np

    sums, sizes = np.zeros(1), np.zeros(1)
    for difference in by_row:
        sums = np.concatenate((sums, sums + difference))
        sizes = np.concatenate((sizes, sizes + 1))
    return sums, sizes


def mcnemar_mid_p(higher: int, lower: int) -> float:
    """Return McNemar's exact mid-p-value, two-sided, of ``higher`` rows for B and ``lower`` rows for A.

    Twice the chance of as few as the fewer in ``higher + lower`` fair coins, that very count taken half.
    """
    from scipy.special import bdtr

    rows, fewer = higher + lower, min(higher, lower)
    if higher == lower:
        return 1.0
    as_few: float = float(bdtr(fewer, rows, 0.5))
    exactly = math.comb(rows, fewer) / 2**rows
    return 2.0 * as_few - float(exactly)


def score_interval(by_row: Floats, *, confidence: float) -> Inversion:
    """Invert the score test of a mean of differences between -1 and 1.

    The likeliest distribution with mean ``x`` on the differences seen and the two ends has weights
    proportional to ``1 / (1 + t d_i)``, ``t`` between -1 and 1; beyond, what it lacks is put on an end that
    nobody saw (:class:`_Likeliest`). ``x`` is rejected where ``|mean - x| / sqrt(variance_x / R)`` is above
    the normal quantile.

    Args:
        by_row: the difference of each row, in parts of the scale's width.
        confidence: of the interval, and of each one-sided bound.
    """
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
    """The likeliest distributions of row differences, by their mean.

    They make one path from mean -1 over the mean seen to mean 1. Between -1 and 1 a place on it is the
    negative of the ``t`` above; from 1 to 2 it is 1 plus the weight put on the upper end, and likewise below.

    Attributes:
        values, counts: the differences seen, and how often.
        rows: of how many.
        mean: theirs.
    """

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
