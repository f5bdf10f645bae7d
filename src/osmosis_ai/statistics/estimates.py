"""Estimates with confidence intervals, and the numbers of samples and rows behind them.

Every row has the same weight: its attempts are averaged first, then the rows. So a row with unscored attempts counts
as much as the others. The row is also the unit of independence. Attempts on one row are correlated, and so are
duplicate rows: each group is a cluster, since treating its samples as independent would make intervals too narrow.
If the data do not determine the variance (one row, or no variation), a mean has no interval but a reason. A rate always
has an interval (:mod:`~osmosis_ai.statistics.intervals`).

Sources:
    Miller 2024, "Adding Error Bars to Evals", section 2.2 (clustered errors), 3.1 (the mean over
        questions of the mean over attempts).
    Cameron and Miller 2015, "A Practitioner's Guide to Cluster-Robust Inference", sections II.B
        and VI.D (the factor G/(G-1), Student's t with G-1 degrees of freedom).
    Joanes and Gill 1998, "Comparing Measures of Sample Skewness and Kurtosis" (b1), and Cochran 1977,
        "Sampling Techniques", section 2.15 (how many rows a skewed mean needs).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from osmosis_ai.statistics.intervals import (
    ClusteredRate,
    Interval,
    Method,
    korn_graubard_interval,
    student_interval,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]
    Integers: TypeAlias = NDArray[np.int64]
    Values: TypeAlias = Sequence[float] | Floats
    Labels: TypeAlias = Sequence[int] | Integers

CONFIDENCE = 0.95
MOST_SKEW = 1.0
SKEWED_ROWS = 100

_HUGE = 1e100
_ROUNDING = 1e-13


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its standard error and confidence interval.

    ``at_least`` and ``at_most`` are one-sided bounds; ``reason`` explains a missing interval.
    """

    value: float
    stderr: float | None
    low: float | None
    high: float | None
    n: int
    clusters: int
    method: Method | None = None
    at_least: float | None = None
    at_most: float | None = None
    reason: str | None = None
    warning: str | None = None


@dataclass(frozen=True, slots=True)
class Description:
    """Summary of a set of values; ``std`` is the population standard deviation (divided by n)."""

    mean: float
    median: float
    std: float
    min: float
    max: float


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of ``n`` values, interpolated linearly."""

    p50: float
    p90: float
    p95: float
    p99: float
    n: int


def describe(values: Values) -> Description | None:
    """Return mean, median, population standard deviation, least and greatest; None for no values."""
    import numpy as np

    data = np.asarray(values, dtype=np.float64)
    if data.size == 0:
        return None
    scale = _scale_of(data)
    scaled = data / scale
    return Description(
        mean=float(scaled.mean()) * scale,
        median=float(np.median(scaled)) * scale,
        std=float(scaled.std()) * scale,
        min=float(data.min()),
        max=float(data.max()),
    )


def percentiles(values: Values) -> Percentiles | None:
    """Return the 50th, 90th, 95th and 99th percentiles; None for no values."""
    import numpy as np

    data = np.asarray(values, dtype=np.float64)
    if data.size == 0:
        return None
    p50, p90, p95, p99 = (float(value) for value in np.percentile(data, (50, 90, 95, 99)))
    return Percentiles(p50, p90, p95, p99, n=data.size)


def estimate_mean(
    values: Values, rows: Labels, clusters: Labels | None = None, *, confidence: float = CONFIDENCE
) -> Estimate | None:
    """Estimate a mean from samples that are clustered by row: the mean over rows of their own means."""
    import numpy as np

    means = _RowMeans.of(values, rows, clusters)
    if means is None:
        return None
    value, stderr = _clustered_mean(means.means, means.clusters)
    scale = _scale_of(means.means)
    by_cluster = np.bincount(means.clusters, weights=means.means / scale - value / scale)
    skew = skewness(by_cluster.astype(np.float64))
    interval = student_interval(value, stderr, means.cluster_count, confidence, skew=skew)
    found = _estimate(value, stderr, means, interval)
    return replace(found, warning=_skew_warning(means.means)) if interval.method else found


def estimate_rate(
    values: Values, rows: Labels, clusters: Labels | None = None, *, confidence: float = CONFIDENCE
) -> Estimate | None:
    """Estimate a rate: the mean over rows of the mean of values in [0, 1], with an interval inside it."""
    import numpy as np

    data = np.asarray(values, dtype=np.float64)
    if data.size and not (data.min() >= 0 and data.max() <= 1):
        raise ValueError("a rate is estimated from values between 0 and 1")
    means = _RowMeans.of(data, rows, clusters)
    return None if means is None else _rate(means, means.samples, confidence)


def estimate_reward(
    values: Values,
    rows: Labels,
    clusters: Labels | None = None,
    *,
    reward_range: tuple[float, float] | None = None,
    confidence: float = CONFIDENCE,
) -> Estimate | None:
    """Estimate the mean reward, as a rate if the range of rewards is known and as a mean otherwise."""
    import numpy as np

    data = np.asarray(values, dtype=np.float64)
    if reward_range is None and bool(np.all((data == 0) | (data == 1))):
        reward_range = 0.0, 1.0
    if reward_range is None:
        mean = estimate_mean(data, rows, clusters, confidence=confidence)
        if mean is None or mean.low is None or mean.high is None:
            return mean
        return replace(mean, low=max(mean.low, float(data.min())), high=min(mean.high, float(data.max())))
    least, width = reward_range[0], reward_range[1] - reward_range[0]
    rate = estimate_rate((data - least) / width, rows, clusters, confidence=confidence)
    if rate is None:
        return None

    def unscaled(share: float | None) -> float | None:
        return None if share is None else least + share * width

    return replace(
        rate,
        value=least + rate.value * width,
        stderr=None if rate.stderr is None else rate.stderr * width,
        low=unscaled(rate.low),
        high=unscaled(rate.high),
        at_least=unscaled(rate.at_least),
        at_most=unscaled(rate.at_most),
    )


def fitting_range(
    rewards: Floats, reward_range: tuple[float, float] | None
) -> tuple[tuple[float, float] | None, list[str]]:
    """Return the range if all rewards are inside, otherwise None and a warning."""
    if reward_range is None or not rewards.size:
        return reward_range, []
    (low, high), found = reward_range, (float(rewards.min()), float(rewards.max()))
    if low <= found[0] and found[1] <= high:
        return reward_range, []
    return None, [
        f"reward_range {low:g} to {high:g} is ignored: rewards range from {found[0]:g} to {found[1]:g}"
    ]


def estimate_rate_of_rows(
    by_row: Floats,
    clusters: Labels,
    *,
    samples: int,
    independent: float,
    confidence: float = CONFIDENCE,
) -> Estimate | None:
    """Estimate a rate from one number in [0, 1] for each row; None for no row."""
    import numpy as np

    means = _RowMeans.of(by_row, np.arange(by_row.size), clusters)
    return None if means is None else replace(_rate(means, independent, confidence), n=samples)


def _as_arrays(values: Values, rows: Labels) -> tuple[Floats, Integers]:
    import numpy as np

    data = np.asarray(values, dtype=np.float64)
    labels = np.asarray(rows, dtype=np.int64)
    if data.shape != labels.shape or data.ndim != 1:
        raise ValueError(f"{data.size} values cannot belong to {labels.size} rows: one row per value")
    if not np.all(np.isfinite(data)):
        raise ValueError("values must be finite numbers")
    return data, labels


@dataclass(frozen=True, slots=True)
class _RowMeans:
    """The mean of every row that has a sample, the cluster of each such row, and how many samples there are."""

    means: Floats
    clusters: Integers
    cluster_count: int
    samples: int

    @classmethod
    def of(cls, values: Values, rows: Labels, clusters: Labels | None) -> _RowMeans | None:
        """Return the means; None for no values."""
        import numpy as np

        data, labels = _as_arrays(values, rows)
        if data.size == 0:
            return None
        first, which, counts = _group_rows(labels)
        means = data[first]
        if means.size < data.size:
            # Equal values have exactly their own mean, which sums may miss.
            scale = _scale_of(data)
            scaled, base = data / scale, means / scale
            means = (base + np.bincount(which, weights=scaled - base[which]) / counts) * scale
        if clusters is None:
            return cls(means, np.arange(means.size), means.size, data.size)
        _, cluster_labels = _as_arrays(values, clusters)
        by_row = cluster_labels[first]
        if np.all(by_row[1:] > by_row[:-1]):
            return cls(means, np.arange(means.size), means.size, data.size)
        groups, within = np.unique(by_row, return_inverse=True)
        return cls(means, within.reshape(-1), groups.size, data.size)


def _group_rows(labels: Integers) -> tuple[Integers, Integers, Integers]:
    """Return (first sample of each row, position of each sample's row, samples of each row)."""
    import numpy as np

    if np.all(labels[1:] >= labels[:-1]):
        # A run's samples are sorted by row, and sorting them again would take most of the time.
        starts = np.concatenate(([True], labels[1:] != labels[:-1]))
        first = np.flatnonzero(starts)
        return first, np.cumsum(starts) - 1, np.diff(first, append=labels.size)
    _, first, which, counts = np.unique(labels, return_index=True, return_inverse=True, return_counts=True)
    return first, which.reshape(-1), counts


def _estimate(value: float, stderr: float | None, means: _RowMeans, interval: Interval) -> Estimate:
    return Estimate(
        value,
        stderr,
        interval.low,
        interval.high,
        means.samples,
        means.cluster_count,
        interval.method,
        interval.at_least,
        interval.at_most,
        interval.reason,
    )


def _rate(means: _RowMeans, max_samples: float, confidence: float) -> Estimate:
    """Return the estimate of a rate whose effective sample size is at most ``max_samples``."""
    import numpy as np

    value, stderr = _clustered_mean(means.means, means.clusters)
    sizes = np.bincount(means.clusters)
    by_cluster = np.bincount(means.clusters, weights=means.means)
    rate = ClusteredRate(
        value=value,
        stderr=stderr,
        samples=max_samples,
        clusters=means.cluster_count,
        independent=means.means.size**2 / float(np.square(sizes).sum()),
        varied=min(int((by_cluster > 0).sum()), int((by_cluster < sizes).sum())),
    )
    return _estimate(value, stderr, means, korn_graubard_interval(rate, confidence))


def skewness(data: Floats) -> float:
    """Return Fisher and Pearson's coefficient of the values; 0 if they are all equal."""
    import numpy as np

    deviations = (data - data.mean()) / _scale_of(data)
    variance = float(np.square(deviations).mean())
    return float((deviations**3).mean()) / variance**1.5 if variance > 0 else 0.0


def _skew_warning(means: Floats) -> str | None:
    """Return a warning if the rows are too skewed for Student's t."""
    skew = skewness(means) if 2 < means.size < SKEWED_ROWS else 0.0
    if abs(skew) <= MOST_SKEW:
        return None
    return f"the values are skewed ({skew:+.1f}): with {means.size} rows the interval may miss the mean"


def _clustered_mean(means: Floats, clusters: Integers) -> tuple[float, float | None]:
    """Return (mean of rows, its clustered standard error)."""
    import numpy as np

    count = int(clusters.max()) + 1
    scale = _scale_of(means)
    scaled = means / scale
    # Equal values have exactly their own mean, which rounding may miss.
    value = float(scaled[0]) if means.min() == means.max() else float(scaled.mean())
    if count < 2:
        return value * scale, None
    by_cluster = np.bincount(clusters, weights=scaled - value)
    variance = count / (count - 1) * float(np.square(by_cluster).sum()) / means.size**2
    stderr = math.sqrt(variance)
    # If deviations cancel out exactly, only rounding errors remain.
    if stderr < _ROUNDING * float(np.abs(scaled).max()):
        stderr = 0.0
    return value * scale, stderr * scale


def _scale_of(data: Floats) -> float:
    """Return a divisor of ``data`` that keeps sums of squares finite: 1 except for huge values."""
    import numpy as np

    largest = float(np.abs(data).max())
    return largest if largest > _HUGE else 1.0
