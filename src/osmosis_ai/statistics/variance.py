"""Variance between rows and between attempts on one row; only the second part shrinks with more attempts.

Both parts are estimated by one-way analysis of variance. For two runs on the same rows, it is the difference of each
row that varies between rows, and the attempts of both runs that vary within it. With one attempt per row the parts
cannot be separated. Duplicates of a row count as one row, with the attempts of all of them.

Sources:
    Donner 1986, "A Review of Inference Procedures for the Intraclass Correlation Coefficient in the One-Way
        Random Effects Model", International Statistical Review 54(1), section 2 (unequal attempts).
    Box 1953, "Non-Normality and Tests on Variances", Biometrika 40, section 2 (kurtosis and precision of a variance).
    Searle, Casella and McCulloch 1992, "Variance Components", section 3.6 (equating mean squares with their
        expectations; estimates below 0).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from osmosis_ai.statistics.estimates import Floats, Integers, Labels, Values


# Sums of squares of such numbers are finite.
_LARGEST = 1e140


@dataclass(frozen=True, slots=True)
class VarianceComponents:
    """The variance of one attempt between and within rows; ``within`` is None if every row has one attempt."""

    between: float
    within: float | None
    rows: int
    attempts: float
    negative: bool = False
    degrees: float | None = field(default=None, compare=False)

    @classmethod
    def of(cls, values: Values, rows: Labels) -> VarianceComponents | None:
        """Return the components of scored attempts; None below two rows, or if squares overflow.

        With R rows of n_i attempts, N in all: ``s2_w = MSW`` and ``s2_b = (MSB - MSW) / n_0``, where
        ``n_0 = (N - sum n_i^2 / N) / (R - 1)`` (Donner 1986).

        Args:
            values: one finite number for each attempt.
            rows: the row of each; duplicates of a row share a label.
        """
        import numpy as np

        found = _Rows.of(values, rows)
        if found is None or found.means.size < 2:
            return None
        count, total = found.means.size, int(found.counts.sum())
        offsets = found.means - found.means[0]  # so that equal rows have exactly no variance
        mean = float(found.counts @ offsets) / total
        among = float(found.counts @ np.square(offsets - mean)) / (count - 1)
        if found.within is None:
            return cls(among, None, count, 1.0, degrees=_degrees(found.means))
        attempts = (total - float(np.square(found.counts).sum()) / total) / (count - 1)
        between = (among - found.within) / attempts
        return cls(
            max(between, 0.0), found.within, count, total / count, between < 0, degrees=_degrees(found.means)
        )

    @classmethod
    def of_pairs(
        cls, values_a: Values, rows_a: Labels, values_b: Values, rows_b: Labels
    ) -> VarianceComponents | None:
        """Return the components of the difference of two runs on their common rows; None as :meth:`of`."""
        import numpy as np

        a, b = _Rows.of(values_a, rows_a), _Rows.of(values_b, rows_b)
        if a is None or b is None:
            return None
        common, at_a, at_b = np.intersect1d(a.labels, b.labels, assume_unique=True, return_indices=True)
        if common.size < 2:
            return None
        differences = b.means[at_b] - a.means[at_a]
        measured, degrees = float(np.var(differences - differences[0], ddof=1)), _degrees(differences)
        attempts = float(a.counts[at_a].mean() + b.counts[at_b].mean()) / 2
        if a.within is None or b.within is None:
            return cls(measured, None, common.size, attempts, degrees=degrees)
        noise = a.within * float((1 / a.counts[at_a]).mean()) + b.within * float((1 / b.counts[at_b]).mean())
        between, within = measured - noise, a.within + b.within
        return cls(max(between, 0.0), within, common.size, attempts, between < 0, degrees=degrees)

    @property
    def icc(self) -> float | None:
        """The share of the variance between rows (intraclass correlation); None if it is unknown."""
        if self.within is None or self.between + self.within == 0:
            return None
        return self.between / (self.between + self.within)

    def row_mean_variance(self, n: float) -> float:
        """Return the variance of a row's mean of ``n`` attempts; as measured if ``within`` is unknown."""
        return self.between if self.within is None else self.between + self.within / n

    def scaled(self, factor: float) -> VarianceComponents:
        """Return both parts times ``factor``."""
        within = None if self.within is None else self.within * factor
        return replace(self, between=self.between * factor, within=within)

    def interval(self, confidence: float = 0.95) -> tuple[VarianceComponents, VarianceComponents]:
        """Return the smallest and largest components in the confidence interval of the variance."""
        from scipy.special import chdtri

        degrees, tail = self.degrees or self.rows - 1, (1 - confidence) / 2
        low, high = (degrees / float(chdtri(degrees, p)) for p in (tail, 1 - tail))
        return self.scaled(low), self.scaled(high)


def _degrees(by_row: Floats) -> float:
    """Return the degrees of freedom of a chi-square with the uncertainty of the variance of ``by_row``.

    A variance of R numbers with excess kurtosis g has a relative variance of ``2 / (R - 1) + g / R``, a chi-square of m
    degrees one of ``2 / m`` (Box 1953). The kurtosis of few rows is itself uncertain, so at least 3 degrees remain.
    """
    import numpy as np

    largest = by_row.size - 1
    deviations = by_row - by_row.mean()
    variance = float(np.square(deviations).mean())
    if variance == 0:
        return largest
    kurtosis = float(np.square(np.square(deviations / variance**0.5)).mean()) - 3
    return float(max(min(3, largest), 2 / (2 / largest + max(kurtosis, 0) / by_row.size)))


@dataclass(frozen=True, slots=True)
class _Rows:
    """Each row's mean and number of attempts, and the mean square within rows, None if no row has two attempts."""

    labels: Integers
    means: Floats
    counts: Integers
    within: float | None

    @classmethod
    def of(cls, values: Values, rows: Labels) -> _Rows | None:
        """Return them; None for no values, or if one is too large."""
        import numpy as np

        data = np.asarray(values, dtype=np.float64)
        if not data.size or np.abs(data).max() > _LARGEST:
            return None
        labels, first, which, counts = np.unique(
            np.asarray(rows, dtype=np.int64), return_index=True, return_inverse=True, return_counts=True
        )
        which = which.reshape(-1)
        # Relative to the row's first value, so that the mean of equal values is exact.
        deviations = data - data[first][which]
        offsets = np.bincount(which, weights=deviations) / counts
        residuals: NDArray[np.float64] = deviations - offsets[which]
        degrees = data.size - labels.size
        within = float(residuals @ residuals) / degrees if degrees else None
        return cls(labels, data[first] + offsets, counts, within)


_LISTED_FLAKY_ROWS = 10


@dataclass(frozen=True, slots=True)
class VarianceShares:
    """Shares of the rewards' variance between rows and between attempts on one row."""

    between_rows: float
    between_attempts: float
    rows: int
    attempts_per_row: float
    below_zero: bool = False


@dataclass(frozen=True, slots=True)
class FlakyRow:
    """A row that passed some of its scored attempts; ``source_row_index`` is its position in the dataset."""

    row_index: int
    source_row_index: int | None
    passed: int
    scored: int


@dataclass(frozen=True, slots=True)
class FlakyRows:
    """Number of rows that passed some attempts, ``of`` those with a scored attempt, and the ``worst`` of them."""

    count: int
    of: int
    worst: list[FlakyRow] = field(default_factory=list)


def variance_shares(rewards: Floats, rows: Integers) -> VarianceShares | None:
    """Return the shares of the rewards' variance between and within rows."""
    import numpy as np

    if not rewards.size:
        return None
    # Shares do not depend on the unit, and squares of huge rewards overflow.
    largest = float(np.abs(rewards).max()) or 1.0
    found = VarianceComponents.of(rewards / largest, rows)
    share = found.icc if found is not None else None
    if found is None or share is None:
        return None
    return VarianceShares(
        between_rows=share,
        between_attempts=1 - share,
        rows=found.rows,
        attempts_per_row=found.attempts,
        below_zero=found.negative,
    )


def flaky_rows(attempts: Integers, passes: Integers, clusters: Integers, sources: Integers) -> FlakyRows:
    """Return the rows that passed some of their attempts, those with the lowest share first."""
    import numpy as np

    _, first, which = np.unique(clusters, return_index=True, return_inverse=True)
    which = which.reshape(-1)
    tried, passed = (
        np.bincount(which, weights=counts, minlength=first.size).astype(np.int64)
        for counts in (attempts, passes)
    )
    flaky = np.flatnonzero((passed > 0) & (passed < tried))
    # For equal shares, more attempts are more certain; then in the order of the rows.
    order = np.lexsort((first[flaky], -tried[flaky], passed[flaky] / tried[flaky]))
    worst = flaky[order][:_LISTED_FLAKY_ROWS]
    return FlakyRows(
        count=int(flaky.size),
        of=int((tried > 0).sum()),
        worst=[
            FlakyRow(
                row_index=int(first[row]),
                source_row_index=int(sources[first[row]]) if sources[first[row]] >= 0 else None,
                passed=int(passed[row]),
                scored=int(tried[row]),
            )
            for row in worst
        ],
    )
