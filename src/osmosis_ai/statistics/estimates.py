"""Estimates of means and rates with confidence intervals, and p-values adjusted for several tests.

Every row has the same weight: its attempts are averaged first, then the rows. So a row with unscored attempts counts
as much as the others. The row is also the unit of independence. Attempts on one row are correlated, and so are
duplicate rows: each group is a cluster, since treating its samples as independent would make intervals too narrow.

A mean has Student's t interval. If the data do not determine the variance (one row, or no variation), it has a reason
instead. A rate always has an interval, that of Korn and Graubard: Clopper and Pearson's exact interval at the
effective sample size. It lies between 0 and 1, is asymmetric near either end, and has a width even if all samples are
equal. In simulations, t intervals of rates near 0 or 1 covered the true rate in as few as 57% of runs.

Holm's adjustment keeps the chance of any false discovery below the level, that of Benjamini and Hochberg the share of
false discoveries.

Sources:
    Miller 2024, "Adding Error Bars to Evals", section 2.2 (clustered errors), 3.1 (the mean over
        questions of the mean over attempts).
    Cameron and Miller 2015, "A Practitioner's Guide to Cluster-Robust Inference", sections II.B
        and VI.D (the factor G/(G-1), Student's t with G-1 degrees of freedom).
    Joanes and Gill 1998, "Comparing Measures of Sample Skewness and Kurtosis" (b1), and Cochran 1977,
        "Sampling Techniques", section 2.15 (how many rows a skewed mean needs).
    Korn and Graubard 1998, "Confidence Intervals for Proportions with Small Expected Number of
        Positive Counts Estimated from Survey Data", Survey Methodology 24(2).
    Clopper and Pearson 1934, "The Use of Confidence or Fiducial Limits Illustrated in the Case of the
        Binomial".
    Wilson 1927, "Probable Inference, the Law of Succession, and Statistical Inference".
    Kish 1965, "Survey Sampling", section 11.7 (independent units behind unequal weights).
    Johnson 1978, "Modified t Tests and Confidence Intervals for Asymmetrical Populations"; Hall 1992, "On
        the Removal of Skewness by Transformation" (one-sided bounds of skewed means).
    Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure".
    Benjamini and Hochberg 1995, "Controlling the False Discovery Rate".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]
    Integers: TypeAlias = NDArray[np.int64]
    Values: TypeAlias = Sequence[float] | Floats
    Labels: TypeAlias = Sequence[int] | Integers


Method: TypeAlias = Literal["student-t", "wilson", "korn-graubard"]

STUDENT_T: Method = "student-t"
WILSON: Method = "wilson"
KORN_GRAUBARD: Method = "korn-graubard"

# With fewer clusters above 0, or below 1, the correlation within clusters cannot be estimated.
LEAST_VARIED = 10

ONE_CLUSTER = "the variance cannot be estimated from one row"
NO_SPREAD = "all rows have the same mean, so the variance cannot be estimated"
TOO_LARGE = "the numbers are too large"


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval (``low``, ``high``), and the one-sided bounds ``at_least`` and ``at_most``."""

    low: float | None = None
    high: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    method: Method | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ClusteredRate:
    """The inputs of Korn and Graubard's interval."""

    value: float
    stderr: float | None
    samples: float
    clusters: int
    independent: float
    varied: int


def student_interval(
    value: float, stderr: float | None, clusters: int, confidence: float, *, skew: float = 0.0
) -> Interval:
    """Return Student's t interval with ``clusters - 1`` degrees of freedom, or the reason why there is none."""
    if stderr is None:
        return Interval(reason=ONE_CLUSTER)
    if stderr == 0:
        return Interval(reason=NO_SPREAD)
    from scipy.special import stdtrit

    two_sided, one_sided = (
        float(stdtrit(clusters - 1, level)) for level in ((1 + confidence) / 2, confidence)
    )
    shifted = min(one_sided + abs(skew) * (1 + 2 * one_sided**2) / (6 * math.sqrt(clusters)), two_sided)
    down, up = (shifted, one_sided) if skew < 0 else (one_sided, shifted)
    low, high = value - two_sided * stderr, value + two_sided * stderr
    if not (math.isfinite(low) and math.isfinite(high)):
        return Interval(reason=TOO_LARGE)
    return Interval(low, high, value - down * stderr, value + up * stderr, STUDENT_T)


def korn_graubard_interval(rate: ClusteredRate, confidence: float) -> Interval:
    """Return Korn and Graubard's interval of a rate."""
    tail = (1 - confidence) / 2
    two_sided, one_sided = (_effective_size(rate, level) for level in (1 - tail, confidence))
    return Interval(
        low=_lower(rate.value, two_sided, tail),
        high=_upper(rate.value, two_sided, tail),
        at_least=_lower(rate.value, one_sided, 1 - confidence),
        at_most=_upper(rate.value, one_sided, 1 - confidence),
        method=KORN_GRAUBARD,
    )


def wilson_interval(rate: float, samples: int, confidence: float) -> Interval:
    """Return Wilson's interval of a rate of independent samples: all rates that the score test accepts."""

    def bounds(level: float) -> tuple[float, float]:
        z = NormalDist().inv_cdf(level)
        middle, size = rate + z * z / (2 * samples), 1 + z * z / samples
        half = z * math.sqrt(rate * (1 - rate) / samples + z * z / (4 * samples**2))
        return max((middle - half) / size, 0.0), min((middle + half) / size, 1.0)

    low, high = bounds((1 + confidence) / 2)
    at_least, at_most = bounds(confidence)
    return Interval(low, high, at_least, at_most, WILSON)


def _effective_size(rate: ClusteredRate, level: float) -> float:
    if not rate.stderr or rate.varied < LEAST_VARIED or rate.samples <= rate.independent:
        return rate.independent
    from scipy.special import stdtrit

    size = rate.value * (1 - rate.value) / rate.stderr**2
    known = float(stdtrit(rate.samples - 1, level) / stdtrit(rate.clusters - 1, level))
    return min(max(size * known**2, rate.independent), rate.samples)


def _lower(rate: float, size: float, tail: float) -> float:
    from scipy.special import betaincinv

    hits = rate * size
    return 0.0 if hits <= 0 else float(betaincinv(hits, size - hits + 1, tail))


def _upper(rate: float, size: float, tail: float) -> float:
    from scipy.special import betaincinv

    misses = (1 - rate) * size
    return 1.0 if misses <= 0 else float(betaincinv(size - misses + 1, misses, 1 - tail))


def load_distributions() -> None:
    """Import SciPy's distributions now; the import takes most of a second."""
    from scipy import special  # noqa: F401


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
    by_row: Floats, clusters: Labels, *, samples: int, independent: float, confidence: float = CONFIDENCE
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


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Return each p-value adjusted so that any false discovery is rarer than the level; None stays None."""
    import numpy as np

    def adjusted(ordered: Floats) -> Floats:
        return np.maximum.accumulate(ordered * np.arange(ordered.size, 0, -1))

    return _adjust(ps, adjusted)


def benjamini_hochberg(ps: Sequence[float | None]) -> list[float | None]:
    """Return each p-value adjusted so that the share of false discoveries is below the level; None stays
    None."""
    import numpy as np

    def adjusted(ordered: Floats) -> Floats:
        raised = ordered * ordered.size / np.arange(1, ordered.size + 1)
        return np.minimum.accumulate(raised[::-1])[::-1]

    return _adjust(ps, adjusted)


def _adjust(ps: Sequence[float | None], by: Callable[[Floats], Floats]) -> list[float | None]:
    import numpy as np

    known = [place for place, p in enumerate(ps) if p is not None]
    found = np.array([p for p in ps if p is not None], dtype=np.float64)
    order = np.argsort(found, kind="stable")
    adjusted: list[float | None] = [None] * len(ps)
    for place, p in zip(order, np.minimum(by(found[order]), 1.0), strict=True):
        adjusted[known[place]] = float(p)
    return adjusted
