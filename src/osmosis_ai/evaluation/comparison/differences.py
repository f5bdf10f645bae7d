"""The difference of two runs on the rows that both have: row by row, since rows are hard for both alike.

Which method makes the interval depends on the rows alone:

- no row differs: Wilson's bound of zero, or nothing where rewards have no known range;
- one binary attempt a row, fewer than 20 rows differ: McNemar's mid-p with Tango's interval;
- fewer than 20 rows differ: sign flips, with the score test beside them where hardly any row differs;
- else Student's t of the rows' differences, R-1 degrees of freedom;
- skewed rewards without a range, under 100 rows: the wider of that and the bootstrap-t, with a warning.

Sources:
    Miller 2024, "Adding Error Bars to Evals", section 4.2 (paired differences of row means).
    Johnson 1978, "Modified t Tests and Confidence Intervals for Asymmetrical Populations"; Hall 1992, "On
        the Removal of Skewness by Transformation" (one-sided bounds of what is skewed).
    The others' stand with them: :mod:`~osmosis_ai.evaluation.comparison.exact`,
    :mod:`~osmosis_ai.evaluation.comparison.bootstrap`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from osmosis_ai.evaluation.comparison.bootstrap import bootstrap_t
from osmosis_ai.evaluation.comparison.exact import Inversion, mcnemar_mid_p, score_interval, sign_flips
from osmosis_ai.evaluation.comparison.numbers import Difference
from osmosis_ai.evaluation.intervals import LEAST_VARIED, NO_SPREAD, ONE_CLUSTER
from osmosis_ai.evaluation.statistics import (
    CONFIDENCE,
    MOST_SKEW,
    SKEWED_ROWS,
    skewness,
)

if TYPE_CHECKING:
    from osmosis_ai.evaluation.statistics import Floats, Integers, Labels, Values

# With fewer rows that differ, Student's t is not relied on.
FEW_DIFFERING = 20
# With as many, sign flips are relied on by themselves.
MOST_SPARSE = 15

NO_RANGE = "how far rewards can go is not known, so neither is what a row may yet show"
TOO_FEW = "so few rows rule no difference out: how far rewards can go is not known"

_HUGE = 1e100
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Two runs on their common rows.

    Attributes:
        a, b: each row's mean over its scored attempts.
        a_counts, b_counts: how many those are.
        scale: the least and greatest value there can be; None where nobody knows.
    """

    a: Floats
    b: Floats
    a_counts: Integers
    b_counts: Integers
    scale: tuple[float, float] | None = None

    @classmethod
    def of(
        cls,
        values_a: Values,
        rows_a: Labels,
        values_b: Values,
        rows_b: Labels,
        *,
        scale: tuple[float, float] | None = None,
    ) -> Pairs | None:
        """Return the pairs of rows in which both runs have a sample; None when there is none.

        Args:
            values_a, values_b: one number per scored attempt of either run.
            rows_a, rows_b: the row of each, by labels that both share.
            scale: the least and greatest value there can be.

        Raises:
            ValueError: when the arguments differ in length, or a value is not finite or off the scale.
        """
        import numpy as np

        (in_a, means_a, counts_a), (in_b, means_b, counts_b) = (
            mean_by_row(values_a, rows_a, scale),
            mean_by_row(values_b, rows_b, scale),
        )
        common, at_a, at_b = np.intersect1d(in_a, in_b, assume_unique=True, return_indices=True)
        if common.size == 0:
            return None
        return cls(means_a[at_a], means_b[at_b], counts_a[at_a], counts_b[at_b], scale)

    @property
    def rows(self) -> int:
        """How many rows both have."""
        return int(self.a.size)

    @property
    def samples(self) -> int:
        """How many scored attempts there are on them."""
        return int(self.a_counts.sum() + self.b_counts.sum())

    @property
    def by_row(self) -> Floats:
        """How much higher B is on each row."""
        found: Floats = self.b - self.a
        return found


def scale_of_rewards(*runs: Values) -> tuple[float, float] | None:
    """Return the scale of rewards of which every one passes or fails; None where others could be, of any size."""
    import numpy as np

    return (0.0, 1.0) if all(bool(np.isin(rewards, (0.0, 1.0)).all()) for rewards in runs) else None


def mean_by_row(
    values: Values, rows: Labels, scale: tuple[float, float] | None = None
) -> tuple[Integers, Floats, Integers]:
    """Return (rows in order, mean of each, samples of each), whatever the order of the samples.

    Raises:
        ValueError: when the arguments differ in length, or a value is not finite or off the scale.
    """
    import numpy as np

    data, labels = np.asarray(values, dtype=np.float64), np.asarray(rows, dtype=np.int64)
    if data.shape != labels.shape or data.ndim != 1:
        raise ValueError(f"{data.size} values cannot belong to {labels.size} rows: one row per value")
    if not np.all(np.isfinite(data)):
        raise ValueError("values must be finite numbers")
    if scale is not None and data.size and not (scale[0] <= data.min() and data.max() <= scale[1]):
        raise ValueError(f"values must lie between {scale[0]:g} and {scale[1]:g}")
    order = np.lexsort((data, labels))
    data, labels = data[order], labels[order]
    names, first, counts = np.unique(labels, return_index=True, return_counts=True)
    if not data.size:
        return names, data, counts
    largest = float(np.abs(data).max())
    unit = largest if largest > _HUGE else 1.0
    # Relative to its first value a row of equal values has exactly their own mean, which sums may miss.
    base = data[first] / unit
    sums = np.add.reduceat(data / unit - np.repeat(base, counts), first)
    return names, (base + sums / counts) * unit, counts


def mean_difference(pairs: Pairs, *, confidence: float = CONFIDENCE, seed: int = 0) -> Difference:
    """Estimate by how much the mean of B lies above that of A, every row weighing the same.

    The method is chosen by how many rows differ, what they look like and whether there is a scale: never by
    what would come out. Swapping the runs negates all of it, and no order of rows or attempts matters.

    Args:
        pairs: both runs on their common rows.
        confidence: of the interval, and of each one-sided bound.
        seed: of what is drawn at random; the same seed gives the same numbers.
    """
    import numpy as np

    unit = _unit(pairs)
    by_row = pairs.b / unit - pairs.a / unit
    largest = max(float(np.abs(pairs.a).max()), float(np.abs(pairs.b).max())) / unit
    by_row[np.abs(by_row) <= _ROUNDING * largest] = 0.0
    by_row.sort()
    turned = _is_the_lower_of_both_ways(by_row)
    if turned:
        by_row = 0.0 - by_row[::-1]
    rows = _Rows(by_row, pairs.scale is not None, _is_one_binary_attempt(pairs), confidence, seed)
    found = _difference(rows, pairs, unit)
    return found.reversed() if turned else found


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """What a method is chosen by: sorted differences, in parts of the scale's width where there is one."""

    by_row: Floats
    bounded: bool
    one_binary_attempt: bool
    confidence: float
    seed: int

    @property
    def count(self) -> int:
        return int(self.by_row.size)

    @property
    def differing(self) -> int:
        import numpy as np

        return int(np.count_nonzero(self.by_row))

    @property
    def off_the_commonest(self) -> int:
        """How many rows have another difference than the commonest."""
        import numpy as np

        return self.count - int(np.unique(self.by_row, return_counts=True)[1].max())


def _difference(rows: _Rows, pairs: Pairs, unit: float) -> Difference:
    method, found, warning = _invert(rows)
    value = float(rows.by_row.mean()) * unit
    plain = Difference(value, None, None, None, None, rows.count, pairs.samples, warning=warning)
    if found is None:
        reason = ONE_CLUSTER if rows.count == 1 else NO_SPREAD
        return replace(plain, reason=f"{reason}; {NO_RANGE}")
    bounds = found.times(unit)
    low, high, at_least, at_most = (
        bound if math.isfinite(bound) else None
        for bound in (bounds.low, bounds.high, bounds.at_least, bounds.at_most)
    )
    if low is None or high is None:
        return replace(plain, at_least=at_least, at_most=at_most, method=method, p=found.p, reason=TOO_FEW)
    return replace(plain, low=low, high=high, at_least=at_least, at_most=at_most, method=method, p=found.p)


def _invert(rows: _Rows) -> tuple[str | None, Inversion | None, str | None]:
    """Return (method, what it says, warning) of the method that fits the rows."""
    method: str | None
    found: Inversion | None
    if rows.differing == 0 and rows.bounded:
        return "wilson-no-row-differs", score_interval(rows.by_row, confidence=rows.confidence), None
    if rows.differing < FEW_DIFFERING and rows.one_binary_attempt:
        return "mcnemar-mid-p", _mcnemar_and_tango(rows), None
    if rows.differing == 0:
        return None, None, None
    if rows.differing < FEW_DIFFERING:
        method, found = "sign-flip", _sign_flip(rows)
    else:
        method, found = _student(rows)
    skew = 0.0 if rows.bounded or rows.count >= SKEWED_ROWS else skewness(rows.by_row)
    if found is None or abs(skew) <= MOST_SKEW:
        return method, found, None
    # Symmetric differences may look skewed, and there the bootstrap alone held 88 to 92 %.
    resampled = bootstrap_t(rows.by_row, confidence=rows.confidence, seed=rows.seed).or_wider(found)
    warning = (
        f"the differences are skewed ({skew:+.1f}): with {rows.count} rows the interval may miss the mean"
    )
    return "bootstrap-t", resampled, warning


def _sign_flip(rows: _Rows) -> Inversion:
    """Invert the sign-flip test, on a scale with the score test beside it where hardly any row differs.

    Subsets of few rows that differ know nothing of the rows that might: alone they held 56 to 90 % where most
    rows of both runs pass. Where less than half of the rows differ (ten at least, fifteen at most; see
    docs/design/comparison.md), the wider of both is told.
    """
    found = sign_flips(rows.by_row, confidence=rows.confidence, seed=rows.seed)
    if not rows.bounded:
        return found
    telling = min(max(rows.count / 2, LEAST_VARIED), MOST_SPARSE, rows.count)
    if rows.differing < telling:
        found = found.or_wider(score_interval(rows.by_row, confidence=rows.confidence))
    return found.within(1.0)


def _mcnemar_and_tango(rows: _Rows) -> Inversion:
    """Return Tango's interval with McNemar's mid-p-value, widened to zero where that does not reject it.

    Four rows to none is the one case where it does not and the interval alone would.
    """
    found = score_interval(rows.by_row, confidence=rows.confidence)
    p = mcnemar_mid_p(int((rows.by_row > 0).sum()), int((rows.by_row < 0).sum()))
    level = 1 - rows.confidence
    if p < level and found.low <= 0 <= found.high:
        # Beyond 99 %, where ten rows to none are the other case.
        return found
    found = replace(found, p=p)
    if p >= level:
        found = replace(found, low=min(found.low, 0.0), high=max(found.high, 0.0))
    if p >= 2 * level:
        found = replace(found, at_least=min(found.at_least, 0.0), at_most=max(found.at_most, 0.0))
    return found


def _student(rows: _Rows) -> tuple[str | None, Inversion | None]:
    """Return the paired t, beside it the score test where nearly all rows differ by the same."""
    mean, stderr = float(rows.by_row.mean()), float(rows.by_row.std(ddof=1)) / math.sqrt(rows.count)
    if stderr <= _ROUNDING * float(rows.by_row[-1] - rows.by_row[0] + abs(mean)):
        stderr = 0.0
    score = None
    if rows.bounded and rows.off_the_commonest < FEW_DIFFERING:
        score = score_interval(rows.by_row, confidence=rows.confidence)
    if not stderr:
        return ("score" if score else None), score
    from scipy.special import stdtr, stdtrit

    half = float(stdtrit(rows.count - 1, (1 + rows.confidence) / 2)) * stderr
    down, up = (farther * stderr for farther in _one_sided_quantiles(rows))
    p = 2 * float(stdtr(rows.count - 1, -abs(mean) / stderr))
    found = Inversion(mean - half, mean + half, mean - down, mean + up, p)
    if rows.bounded:
        found = found.within(1.0)
    return "paired-t", found.or_wider(score) if score else found


def _one_sided_quantiles(rows: _Rows) -> tuple[float, float]:
    """Return how many standard errors the one-sided bounds are below and above the mean.

    Where one tail is longer, Student's bound on its side is passed more often than one says, up to 9 % of the time
    rather than 5; the two sides of an interval make up for each other, and one alone does not. With skewness ``g``
    that side is moved out by ``|g| (1 + 2 t^2) / (6 sqrt(R))``, the first term of Johnson's and Hall's
    correction, at most to the two-sided bound.
    """
    from scipy.special import stdtrit

    one_sided, two_sided = (
        float(stdtrit(rows.count - 1, level)) for level in (rows.confidence, (1 + rows.confidence) / 2)
    )
    skew = skewness(rows.by_row)
    farther = one_sided + abs(skew) * (1 + 2 * one_sided**2) / (6 * math.sqrt(rows.count))
    longer = min(farther, two_sided)
    return (longer, one_sided) if skew < 0 else (one_sided, longer)


def _unit(pairs: Pairs) -> float:
    """Return what differences are divided by: the scale's width, or what keeps squares of the values within a float."""

    if pairs.scale is not None:
        return pairs.scale[1] - pairs.scale[0]
    return workable_unit(pairs.a, pairs.b)


def workable_unit(*values: Floats) -> float:
    """Return by what to divide values so that their squares are neither infinite nor nothing."""
    import numpy as np

    largest = max(float(np.abs(part).max()) for part in values)
    return largest if largest > _HUGE or 0 < largest < 1 / _HUGE else 1.0


def _is_the_lower_of_both_ways(by_row: Floats) -> bool:
    """Tell whether sorted differences come before their negatives: of A - B and B - A one is worked with."""
    import numpy as np

    against = by_row + by_row[::-1]
    unlike = np.flatnonzero(against)
    return bool(unlike.size and against[unlike[0]] < 0)


def _is_one_binary_attempt(pairs: Pairs) -> bool:
    """Tell whether each run tried each row once, and every score is one end of the scale."""
    import numpy as np

    if pairs.scale is None or pairs.samples != 2 * pairs.rows:
        return False
    return all(bool(np.isin(scores, pairs.scale).all()) for scores in (pairs.a, pairs.b))
