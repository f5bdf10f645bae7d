"""The difference of two runs on the rows that both have: row by row, since rows are hard for both alike.

Sources:
    Miller 2024, "Adding Error Bars to Evals", section 4.2 (paired differences of row means).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from osmosis_ai.evaluation.comparison.numbers import Difference
from osmosis_ai.evaluation.intervals import NO_SPREAD, ONE_CLUSTER, student_interval
from osmosis_ai.evaluation.statistics import CONFIDENCE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from osmosis_ai.evaluation.statistics import Labels, Values

    Floats: TypeAlias = NDArray[np.float64]
    Integers: TypeAlias = NDArray[np.int64]


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
    # Relative to its first value a row of equal values has exactly their own mean, which sums may miss.
    base = data[first]
    sums = np.add.reduceat(data - np.repeat(base, counts), first) if data.size else base
    return names, base + sums / np.maximum(counts, 1), counts


def mean_difference(pairs: Pairs, *, confidence: float = CONFIDENCE, seed: int = 0) -> Difference:  # noqa: ARG001
    """Estimate by how much the mean of B lies above that of A, every row weighing the same.

    Args:
        pairs: both runs on their common rows.
        confidence: of the interval, and of each one-sided bound.
        seed: of what is drawn at random; the same seed gives the same numbers.
    """
    import numpy as np

    by_row = np.sort(pairs.by_row)
    rows = by_row.size
    value = float(by_row.mean())
    stderr = float(by_row.std(ddof=1)) / math.sqrt(rows) if rows > 1 else None
    interval = student_interval(value, stderr, rows, confidence)
    if interval.method is None or not stderr:
        reason = ONE_CLUSTER if stderr is None else NO_SPREAD
        return Difference(value, None, None, None, None, rows, pairs.samples, reason=reason)
    from scipy.special import stdtr

    return Difference(
        value,
        interval.low,
        interval.high,
        interval.at_least,
        interval.at_most,
        rows,
        pairs.samples,
        method="paired-t",
        p=2 * float(stdtr(rows - 1, -abs(value) / stderr)),
    )
