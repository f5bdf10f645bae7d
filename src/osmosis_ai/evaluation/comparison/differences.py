"""The difference of two runs on the rows that both have: row by row, since rows are hard for both alike.

The rows alone choose the method:

- known range, and few rows differ or all differ by the same: the score test;
- known range, and all but few rows differ by the whole range: the wider of that and Student's t;
- otherwise: Student's t of the rows' differences, R-1 degrees of freedom;
- skewed rewards without a range, under 100 rows: the wider of that and the bootstrap-t, with a warning.

Few means fewer than half of the rows; this limit is at least 8 and at most 15.

Sources:
    Miller 2024, "Adding Error Bars to Evals", section 4.2 (paired differences of row means).
    :mod:`~osmosis_ai.evaluation.comparison.score_test` and
    :mod:`~osmosis_ai.evaluation.comparison.bootstrap` name their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from osmosis_ai.evaluation.comparison.bootstrap import bootstrap_t
from osmosis_ai.evaluation.comparison.numbers import Difference
from osmosis_ai.evaluation.comparison.score_test import Inversion, score_interval
from osmosis_ai.evaluation.intervals import ONE_CLUSTER, student_interval
from osmosis_ai.evaluation.statistics import (
    CONFIDENCE,
    MOST_SKEW,
    SKEWED_ROWS,
    skewness,
)

if TYPE_CHECKING:
    from osmosis_ai.evaluation.statistics import Floats, Integers, Labels, Values

NO_RANGE = "the range of the rewards is unknown"
SAME_DIFFERENCE = "every row has the same difference, so the variance cannot be estimated"
TOO_FEW = "too few rows to rule out any difference: the range of the rewards is unknown"

_HUGE = 1e100
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Two runs on their common rows."""

    a: Floats
    b: Floats
    a_counts: Integers
    b_counts: Integers
    scale: tuple[float, float] | None = None
    observed: tuple[float, float] | None = None

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
        """Return the pairs of rows in which both runs have a sample; None when there is none."""
        import numpy as np

        (in_a, means_a, counts_a), (in_b, means_b, counts_b) = (
            mean_by_row(values_a, rows_a, scale),
            mean_by_row(values_b, rows_b, scale),
        )
        common, at_a, at_b = np.intersect1d(in_a, in_b, assume_unique=True, return_indices=True)
        if common.size == 0:
            return None
        observed = observed_range(values_a, values_b)
        return cls(means_a[at_a], means_b[at_b], counts_a[at_a], counts_b[at_b], scale, observed)

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


def observed_range(*runs: Values) -> tuple[float, float]:
    """Return the least and greatest value of several runs; each run has at least one."""
    import numpy as np

    return min(float(np.min(run)) for run in runs), max(float(np.max(run)) for run in runs)


def mean_by_row(
    values: Values, rows: Labels, scale: tuple[float, float] | None = None
) -> tuple[Integers, Floats, Integers]:
    """Return (rows in order, mean of each, samples of each), whatever the order of the samples."""
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
    """Estimate by how much the mean of B lies above that of A, every row weighing the same."""
    import numpy as np

    unit = _unit(pairs)
    by_row = pairs.b / unit - pairs.a / unit
    largest = max(float(np.abs(pairs.a).max()), float(np.abs(pairs.b).max())) / unit
    by_row[np.abs(by_row) <= _ROUNDING * largest] = 0.0
    by_row.sort()
    turned = _is_the_lower_of_both_ways(by_row)
    if turned:
        by_row = 0.0 - by_row[::-1]
    found = _difference(by_row, pairs, unit, confidence=confidence, seed=seed)
    if pairs.scale is None and pairs.observed is not None:
        found = found.within(pairs.observed[1] - pairs.observed[0], certain=False)
    return found.reversed() if turned else found


def _difference(by_row: Floats, pairs: Pairs, unit: float, *, confidence: float, seed: int) -> Difference:
    rows = by_row.size
    plain = Difference(float(by_row.mean()) * unit, None, None, None, None, rows, pairs.samples)
    method, found, warning = _interval(by_row, pairs.scale is not None, confidence, seed)
    plain = replace(plain, method=method, warning=warning)
    if found is None:
        return replace(plain, reason=f"{ONE_CLUSTER if rows == 1 else SAME_DIFFERENCE}; {NO_RANGE}")
    bounds = found.times(unit)
    if not (math.isfinite(bounds.low) and math.isfinite(bounds.high)):
        at_least, at_most = (
            bound if math.isfinite(bound) else None for bound in (bounds.at_least, bounds.at_most)
        )
        return replace(plain, at_least=at_least, at_most=at_most, p=found.p, reason=TOO_FEW)
    return replace(
        plain,
        low=bounds.low,
        high=bounds.high,
        at_least=bounds.at_least,
        at_most=bounds.at_most,
        p=found.p,
    )


def _interval(
    by_row: Floats, bounded: bool, confidence: float, seed: int
) -> tuple[str | None, Inversion | None, str | None]:
    """Return (method, interval, warning); ``by_row`` is sorted and, when bounded, lies in -1 to 1."""
    import numpy as np

    rows = by_row.size
    if bounded and rows == 1:
        # The score test of a single row is too narrow.
        return "score", Inversion(-1.0, 1.0, -1.0, 1.0, 1.0), None
    found = _student(by_row, confidence)
    if bounded:
        off_zero, off_ends = (
            min(int(np.count_nonzero(by_row != value)) for value in values) for values in ([0.0], [-1.0, 1.0])
        )
        few = fewest_differing(rows)
        if found is None or off_zero < few:
            return "score", score_interval(by_row, confidence=confidence), None
        if off_ends < few:
            # Rows that nearly all differ by the whole range vary as little as rows that do not differ.
            found = found.or_wider(score_interval(by_row, confidence=confidence))
        return "paired-t", found.within(1.0), None
    if found is None:
        return None, None, None
    skew = skewness(by_row)
    if rows >= SKEWED_ROWS or abs(skew) <= MOST_SKEW:
        return "paired-t", found, None
    # Symmetric differences may look skewed, and the bootstrap alone covers only 88% to 92% of those.
    resampled = bootstrap_t(by_row, confidence=confidence, seed=seed).or_wider(found)
    warning = f"the differences are skewed ({skew:+.1f}): with {rows} rows the interval may miss the mean"
    return "bootstrap-t", resampled, warning


def fewest_differing(rows: int) -> float:
    """Return how many rows have to differ before Student's t is used for differences with a known range."""
    return min(max(rows / 2, 8), 15, rows)


def _student(by_row: Floats, confidence: float) -> Inversion | None:
    """Return the paired t interval; None for one row, or if all rows differ by the same."""
    if by_row.size < 2:
        return None
    mean, stderr = float(by_row.mean()), float(by_row.std(ddof=1)) / math.sqrt(by_row.size)
    if stderr <= _ROUNDING * float(by_row[-1] - by_row[0] + abs(mean)):
        return None
    from scipy.special import stdtr

    t = student_interval(mean, stderr, by_row.size, confidence, skew=skewness(by_row))
    if t.low is None or t.high is None or t.at_least is None or t.at_most is None:
        return None
    p = 2 * float(stdtr(by_row.size - 1, -abs(mean) / stderr))
    return Inversion(t.low, t.high, t.at_least, t.at_most, p)


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
