"""The difference of two runs with its interval: paired by row, of two independent means, or of amounts the ratio.

The interval and the p-value come from one method: p is below 0.05 exactly if the 95% interval excludes "no difference".
Rows are hard for both runs alike, so they are compared row by row. The rows alone choose the method:

- known range, and few rows differ or all differ by the same: the score test;
- known range, and all but few rows differ by the whole range: the wider of that and Student's t;
- otherwise: Student's t of the rows' differences, R-1 degrees of freedom;
- skewed rewards without a range, under 100 rows: the wider of that and the bootstrap-t, with a warning.

Few means fewer than half of the rows; this limit is at least 8 and at most 15.

The score test: for each mean difference, the likeliest distribution on the differences seen and the two ends gives the
standard error. So the interval allows for rows that may yet differ by the whole range. With one binary attempt a row it is
Tango's interval; if no row differs it is Wilson's bound of zero.

The bootstrap-t learns each tail from the rows: Student's t takes them for alike and covered 23 to 41% where one row in
twenty pays.

Unpaired: a t interval needs rows that vary. On a scale where hardly any row of a run differs from an end, and where only
counts are known, the interval combines those of the two rates.

Sources:
    Miller 2024, "Adding Error Bars to Evals", sections 4.1 (two independent means, clustered errors)
        and 4.2 (paired differences of row means).
    Tango 1998, "Equivalence Test and Confidence Interval for the Difference in Proportions for the
        Paired-Sample Design"; Owen 2001, "Empirical Likelihood", sections 2.4 and 3.1 (its likeliest
        distribution, for more than three values).
    Efron and Tibshirani 1993, "An Introduction to the Bootstrap", section 12.5 (the bootstrap-t).
    Hall 1988, "Theoretical Comparison of Bootstrap Confidence Intervals" (why it, of all of them).
    Welch 1947, "The Generalization of Student's Problem"; Satterthwaite 1946, "An Approximate
        Distribution of Estimates of Variance Components" (its degrees of freedom).
    Newcombe 1998, "Interval Estimation for the Difference between Independent Proportions", method 10
        (from two Wilson intervals); Zou and Donner 2008, "Construction of Confidence Limits about
        Effect Measures" (from any two).
    Bland and Altman 1996, "Transformations, Means, and Confidence Intervals" (ratios: t on logs, turned back).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from osmosis_ai.statistics.estimates import (
    CONFIDENCE,
    LEAST_VARIED,
    MOST_SKEW,
    NO_SPREAD,
    ONE_CLUSTER,
    SKEWED_ROWS,
    Estimate,
    Interval,
    estimate_rate,
    skewness,
    student_interval,
    wilson_interval,
)
from osmosis_ai.statistics.power import fewest_differing

if TYPE_CHECKING:
    from osmosis_ai.statistics.estimates import Floats, Integers, Labels, Values

    BothRates: TypeAlias = Callable[[float], tuple["Interval | Estimate", "Interval | Estimate"]]


NumberData: TypeAlias = dict[str, float | int | str | None]
NUMBER_KEYS = ("value", "low", "high", "rows", "samples", "method", "p", "p_adjusted", "reason")
_BOUNDS = ("low", "high", "at_least", "at_most")


@dataclass(frozen=True, slots=True)
class Difference:
    """By how much B lies above A, or how many times A it is, and how far that can be trusted."""

    value: float
    low: float | None = None
    high: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    rows: int = 0
    samples: int = 0
    method: str | None = None
    p: float | None = None
    p_adjusted: float | None = None
    reason: str | None = None
    warning: str | None = None
    kind: Literal["difference", "ratio"] = "difference"

    @property
    def none(self) -> float:
        """The value of no difference: 0, or 1 for a ratio."""
        return 0.0 if self.kind == "difference" else 1.0

    @property
    def excludes_none(self) -> bool:
        """Whether there is an interval and it leaves out no difference."""
        if self.low is None or self.high is None:
            return False
        return self.low > self.none or self.high < self.none

    def bounded(self, half: float, one_sided: float, *, method: str, p: float) -> Difference:
        """Return the difference with symmetric bounds, given as distances from the value."""
        return replace(
            self,
            low=self.value - half,
            high=self.value + half,
            at_least=self.value - one_sided,
            at_most=self.value + one_sided,
            method=method,
            p=p,
        )

    def mapped(
        self, change: Callable[[float], float], names: Sequence[str] = ("value", *_BOUNDS)
    ) -> Difference:
        """Return the difference with its value and bounds, or those named, changed by a function."""
        numbers = {name: getattr(self, name) for name in names}
        changed: dict[str, Any] = {name: None if n is None else change(n) for name, n in numbers.items()}
        return replace(self, **changed)

    def within(self, width: float, *, certain: bool) -> Difference:
        """Return the difference with its interval limited to ``-width`` and ``width``."""
        return self.mapped(lambda bound: min(max(bound, -width), width), _BOUNDS if certain else _BOUNDS[:2])

    def times(self, factor: float) -> Difference:
        """Return the difference of values ``factor`` times as large."""
        return self.mapped(lambda number: number * factor)

    def reversed(self) -> Difference:
        """Return A against B."""

        def turned(number: float | None) -> float | None:
            return None if number is None else 0.0 - number  # 0.0 - 0.0 is 0.0, where -0.0 would print a sign

        return replace(
            self,
            value=0.0 - self.value,
            low=turned(self.high),
            high=turned(self.low),
            at_least=turned(self.at_most),
            at_most=turned(self.at_least),
        )


def number_data(found: Estimate | Difference | None) -> NumberData:
    """Return a number as documents show it: the same nine keys for every one."""
    if isinstance(found, Difference):
        return {name: getattr(found, name) for name in NUMBER_KEYS}
    unknown: NumberData = dict.fromkeys(NUMBER_KEYS)
    if found is None:
        return unknown | {"rows": 0, "samples": 0, "reason": "nothing to compare"}
    known = {name: getattr(found, name) for name in ("value", "low", "high", "method", "reason")}
    return unknown | known | {"rows": found.clusters, "samples": found.n}


class Inversion(NamedTuple):
    """The result of one test: the mean differences that it does not reject, and the p-value of no difference."""

    low: float
    high: float
    at_least: float
    at_most: float
    p: float

    def or_wider(self, other: Inversion) -> Inversion:
        """Return what neither test rejects alone: the wider bounds and the larger p-value."""
        ends = (min, max, min, max, max)
        return Inversion(*(end(pair) for end, pair in zip(ends, zip(self, other, strict=True), strict=True)))

    def within(self, width: float) -> Inversion:
        """Return it bounded to differences between ``-width`` and ``width``."""
        return Inversion._make([*(min(max(bound, -width), width) for bound in self[:4]), self.p])

    def times(self, width: float) -> Inversion:
        """Return it for differences ``width`` times as large."""
        return Inversion._make([*(bound * width for bound in self[:4]), self.p])


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
        values, counts = np.unique(np.clip(by_row, -1.0, 1.0), return_counts=True)
        found = cls(values, counts.astype(np.float64), by_row.size, 0.0)
        # Computed like the path, including its rounding: a sum in another order may differ in sign near zero.
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


RESAMPLES = 9_999


def bootstrap_t(by_row: Floats, *, confidence: float, seed: int) -> Inversion:
    """Return the bootstrap-t interval of a mean, rows drawn with replacement."""
    rows = by_row.size
    mean, stderr = float(by_row.mean()), float(by_row.std(ddof=1)) / math.sqrt(rows)
    drawn = by_row[np.random.default_rng(seed).integers(0, rows, (RESAMPLES, rows), dtype=np.int32)]
    away, errors = drawn.mean(axis=1) - mean, drawn.std(axis=1, ddof=1) / math.sqrt(rows)
    # Resamples of one row over and over leave rounding errors, not a spread.
    flat = errors <= 1e-12 * float(np.abs(by_row).max())
    t = np.where(flat, np.copysign(np.inf, away), away / np.where(flat, 1.0, errors))
    t.sort()
    outcomes = RESAMPLES + 1
    tail = (1 - confidence) / 2
    two_sided, one_sided = (max(math.floor(level * outcomes), 1) for level in (tail, 1 - confidence))
    seen = mean / stderr
    fewer = min(int((t >= seen).sum()), int((t <= seen).sum()))
    return Inversion(
        mean - float(t[-two_sided]) * stderr,
        mean - float(t[two_sided - 1]) * stderr,
        mean - float(t[-one_sided]) * stderr,
        mean - float(t[one_sided - 1]) * stderr,
        min(1.0, 2 * (1 + fewer) / outcomes),
    )


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
        return int(self.a.size)

    @property
    def samples(self) -> int:
        return int(self.a_counts.sum() + self.b_counts.sum())

    @property
    def by_row(self) -> Floats:
        found: Floats = self.b - self.a
        return found


def scale_of_rewards(*runs: Values) -> tuple[float, float] | None:
    """Return the scale of rewards of which every one passes or fails; None where others could be, of any size."""
    return (0.0, 1.0) if all(bool(np.isin(rewards, (0.0, 1.0)).all()) for rewards in runs) else None


def observed_range(*runs: Values) -> tuple[float, float]:
    """Return the least and greatest value of several runs; each run has at least one."""
    return min(float(np.min(run)) for run in runs), max(float(np.max(run)) for run in runs)


def mean_by_row(
    values: Values, rows: Labels, scale: tuple[float, float] | None = None
) -> tuple[Integers, Floats, Integers]:
    """Return (rows in order, mean of each, samples of each), whatever the order of the samples."""
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
    if pairs.scale is not None:
        unit = pairs.scale[1] - pairs.scale[0]
    else:
        unit = workable_unit(pairs.a, pairs.b)
    by_row = pairs.b / unit - pairs.a / unit
    largest = max(float(np.abs(pairs.a).max()), float(np.abs(pairs.b).max())) / unit
    by_row[np.abs(by_row) <= _ROUNDING * largest] = 0.0
    by_row.sort()
    # A - B and B - A must give the same numbers, so the lower one is estimated.
    unlike = np.flatnonzero(by_row + by_row[::-1])
    turned = bool(unlike.size and (by_row + by_row[::-1])[unlike[0]] < 0)
    if turned:
        by_row = 0.0 - by_row[::-1]
    method, bounds, warning = _interval(by_row, pairs.scale is not None, confidence, seed)
    value = float(by_row.mean()) * unit
    found = Difference(value, rows=by_row.size, samples=pairs.samples, method=method, warning=warning)
    if bounds is None:
        same = "every row has the same difference, so the variance cannot be estimated"
        reason = f"{ONE_CLUSTER if by_row.size == 1 else same}; the range of the rewards is unknown"
        found = replace(found, reason=reason)
    elif all(math.isfinite(bound * unit) for bound in bounds[:2]):
        found = replace(found, **bounds.times(unit)._asdict())
    else:
        at_least, at_most = (bound * unit for bound in (bounds.at_least, bounds.at_most))
        found = replace(
            found,
            at_least=at_least if math.isfinite(at_least) else None,
            at_most=at_most if math.isfinite(at_most) else None,
            p=bounds.p,
            reason="too few rows to rule out any difference: the range of the rewards is unknown",
        )
    if pairs.scale is None and pairs.observed is not None:
        found = found.within(pairs.observed[1] - pairs.observed[0], certain=False)
    return found.reversed() if turned else found


def rewards_difference(
    a: Mapping[Any, float], b: Mapping[Any, float], *, confidence: float = CONFIDENCE
) -> Difference | None:
    """Compare rewards by the keys of their rows; None if no row is in both."""
    place = {key: number for number, key in enumerate(sorted({*a, *b}))}
    values = [list(rewards.values()) for rewards in (a, b)]
    rows = [[place[key] for key in rewards] for rewards in (a, b)]
    pairs = Pairs.of(values[0], rows[0], values[1], rows[1], scale=scale_of_rewards(*values))
    return None if pairs is None else mean_difference(pairs, confidence=confidence)


def _interval(
    by_row: Floats, bounded: bool, confidence: float, seed: int
) -> tuple[str | None, Inversion | None, str | None]:
    """Return (method, interval, warning); ``by_row`` is sorted and, when bounded, lies in -1 to 1."""
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


def workable_unit(*values: Floats) -> float:
    """Return by what to divide values so that their squares are neither infinite nor nothing."""
    largest = max(float(np.abs(part).max()) for part in values)
    return largest if largest > _HUGE or 0 < largest < 1 / _HUGE else 1.0


_LEAST_P = 1e-12


@dataclass(frozen=True, slots=True)
class PassCounts:
    """The counts of a run whose attempts are unknown."""

    passes: int
    samples: int
    rows: int

    @property
    def rate(self) -> float:
        return self.passes / self.samples

    def with_more(self, samples: int, passing: float) -> PassCounts:
        """Return the counts with more samples, a share of which passes."""
        return PassCounts(self.passes + round(samples * passing), self.samples + samples, self.rows)

    def interval(self, confidence: float) -> Interval:
        # With at most one observation per row, the bounds hold however alike the attempts on a row are.
        return wilson_interval(self.rate, min(self.samples, self.rows), confidence)


def unpaired_difference(
    values_a: Values,
    rows_a: Labels,
    values_b: Values,
    rows_b: Labels,
    *,
    confidence: float = CONFIDENCE,
    scale: tuple[float, float] | None = None,
) -> Difference | None:
    """Estimate the mean of B minus the mean of A, for runs on different rows."""
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
    plain = Difference(value, rows=a.size + b.size, samples=int(counts_a.sum() + counts_b.sum()))
    ends = scale or observed_range(values_a, values_b)
    # In each run, the rows away from the lower end of the scale, or from the upper, whichever are fewer.
    varied = min(min((means > ends[0]).sum(), (means < ends[1]).sum()) for means in (a, b))
    if scale is None or varied >= LEAST_VARIED:
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
        raise ValueError("a rate needs attempts")
    warning = None
    if a.samples > a.rows or b.samples > b.rows:
        warning = "from counts alone: each row counts once, regardless of its attempts"
    rows, samples = a.rows + b.rows, a.samples + b.samples
    return _of_two_rates(
        Difference(b.rate - a.rate, rows=rows, samples=samples, method="newcombe", warning=warning),
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
    if stderr == 0 or not math.isfinite(stderr + value):
        return Difference(value, reason=NO_SPREAD)
    normal = NormalDist()
    half, one_sided = (normal.inv_cdf(level) * stderr for level in ((1 + confidence) / 2, confidence))
    p = math.erfc(abs(value) / stderr / math.sqrt(2))
    return Difference(value).bounded(half, one_sided, method="standard-errors", p=p)


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
    p = 2 * float(stdtr(freedom, -abs(plain.value) / stderr))
    return plain.bounded(half, one_sided, method="welch", p=p)


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
    """Return the p-value at which a bound crosses zero: 1 if no bound crosses zero, and at least 1e-12."""
    from scipy.optimize import brentq

    if rising(1 - _LEAST_P) <= 0:
        return 1.0
    if rising(_LEAST_P) > 0:
        return _LEAST_P
    return math.exp(
        brentq(lambda log_p: rising(math.exp(log_p)), math.log(_LEAST_P), math.log1p(-_LEAST_P), xtol=1e-12)
    )


LARGEST_LOG = 700.0
"""Of the logarithm of a ratio; the ratio itself would be too large for a float."""


def ratio_of_means(pairs: Pairs, *, confidence: float = CONFIDENCE) -> Difference | None:
    """Return the ratio of the geometric means of B and A over rows where both are above 0."""
    positive = (pairs.a > 0) & (pairs.b > 0)
    logs = np.sort(np.log(pairs.b[positive]) - np.log(pairs.a[positive]))
    rows = int(logs.size)
    samples = int(pairs.a_counts[positive].sum() + pairs.b_counts[positive].sum())
    if not rows:
        return None
    warning = None
    if rows < pairs.rows:
        warning = f"{pairs.rows - rows} of {pairs.rows} rows are left out: their value is zero in a run"
    value = float(logs.mean())
    stderr = float(logs.std(ddof=1)) / math.sqrt(rows) if rows > 1 else None
    logs_only = Difference(value, rows=rows, samples=samples, warning=warning, kind="ratio")
    without_interval = replace(logs_only, value=math.exp(min(value, LARGEST_LOG)))
    if not stderr:
        same = "every row has the same ratio, so the variance cannot be estimated"
        return replace(without_interval, reason=ONE_CLUSTER if stderr is None else same)
    from scipy.special import stdtr, stdtrit

    half = float(stdtrit(rows - 1, (1 + confidence) / 2)) * stderr
    if abs(value) + half > LARGEST_LOG:
        return replace(without_interval, reason="too few and too different rows to rule out any ratio")
    one_sided = float(stdtrit(rows - 1, confidence)) * stderr
    p = 2 * float(stdtr(rows - 1, -abs(value) / stderr))
    return logs_only.bounded(half, one_sided, method="log-t", p=p).mapped(math.exp)
