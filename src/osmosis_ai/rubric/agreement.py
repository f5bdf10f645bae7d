"""Agreement of a session's judges with themselves, with each other and with people, and their biases.

Each question has its own table. A figure that cannot be computed has a reason instead of a value; no value is NaN.

A correlation of scores with length is not necessarily a bias, because longer answers may be better. Human scores
separate the two: with them, each effect is what the judge adds. Controlling for a noisy human score leaves some of the
quality it measures, and the difference of judge and human does not, so both are reported.

Intervals resample records with all their scores, because scores of one record are correlated. Every bootstrapped
statistic is a function of sums over records, so thousands of resamples are one matrix product.

Sources:
    Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability".
    Zapf et al. 2016, "Measuring inter-rater reliability for nominal data - which coefficients and
        confidence intervals are appropriate?" (bootstrap of the units for alpha).
    Cohen 1960, "A Coefficient of Agreement for Nominal Scales"; Cohen 1968, "Weighted Kappa".
    Dawid 1982, "The Well-Calibrated Bayesian" (bins of the forecast, here of the judge's score).
    Dubois et al. 2024, "Length-Controlled AlpacaEval" (judges' preference for length).
    Wang et al. 2023, "Large Language Models are not Fair Evaluators" (order of what is quoted).
    Fisher 1924, "The Distribution of the Partial Correlation Coefficient" (one degree of
        freedom less for each variable that is held fixed).
    Bonett and Wright 2000, "Sample Size Requirements for Estimating Pearson, Kendall and Spearman
        Correlations" (the factor 1 + r^2/2 for ranks).
    MacKinnon and White 1985, "Some Heteroskedasticity-Consistent Covariance Matrix Estimators with
        Improved Finite Sample Properties" (HC3, recommended by Long and Ervin 2000).
    Efron 1987, "Better Bootstrap Confidence Intervals" (BCa); Efron and Tibshirani 1993, "An
        Introduction to the Bootstrap", chapter 14, equations 14.10, 14.14 and 14.15.
    Wolter 2007, "Introduction to Variance Estimation", chapter 2 (random groups): many records are
        assigned to random groups, which are resampled instead, so that the cost stops growing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from osmosis_ai.decisions.differences import Pairs, mean_difference
from osmosis_ai.statistics.estimates import CONFIDENCE, estimate_mean, estimate_rate, holm

if TYPE_CHECKING:
    from osmosis_ai.statistics.estimates import Floats, Integers

PANEL = "panel"
LISTED_RECORDS = 20
RESAMPLES = 2000
# Measured on simulated judges: with 20 records a nominal 95% interval of a reliability covers the truth in 87 to
# 93% of cases, with 60 in 93 to 95%. With fewer records the interval is too narrow to be shown.
MIN_RECORDS = 20
# The error of a standard error from G groups is 1/sqrt(2 G): under 2%.
_MOST_GROUPS = 2048
_AT_ONCE = 200
# Resamples with an undefined statistic are dropped. If too many are, the rest no longer estimates the variance.
_LEAST_DEFINED = 0.9
_ROUNDING = 1e-12
# Round means relative to the scale, so that the mean of 0.1 and 0.5 ties with a score of 0.3.
_DIGITS = 12
_LEAST_PAIRS = 4
_MOST_LEVELS = 11
_PARTS = 5
_ONCE = "each record was scored once; repeat calls with `-n 5`"
_TOO_FEW = f"no interval: fewer than {MIN_RECORDS} records, or no variation among them"
_NO_SPREAD = "no interval: one record, or no variation among records"
_ON_ONE_LINE = "no interval: the records lie on one line"


class Figure(msgspec.Struct, frozen=True):
    """A value with its 95% interval, sample sizes and p-value; ``reason`` says why the value or interval is missing."""

    value: float | None
    low: float | None = None
    high: float | None = None
    records: int = 0
    scores: int = 0
    method: str | None = None
    reason: str | None = None
    p: float | None = None
    p_adjusted: float | None = None

    @classmethod
    def missing(cls, reason: str, *, records: int = 0, scores: int | None = None) -> Figure:
        """Return a figure without a value."""
        return cls(None, records=records, scores=records if scores is None else scores, reason=reason)

    def within(
        self, interval: tuple[float, float] | None, *, method: str, otherwise: str, p: float | None = None
    ) -> Figure:
        """Return the figure with ``interval`` and ``p``; ``otherwise`` is the reason if the interval is missing."""
        if interval is not None:
            low, high = map(float, interval)
            if math.isfinite(low + high) and high - low > _ROUNDING * max(abs(low), abs(high)):
                return msgspec.structs.replace(self, low=low, high=high, method=method, p=p)
        return msgspec.structs.replace(self, reason=otherwise)

    @classmethod
    def of_mean(
        cls, values: Floats, rows: Integers | None = None, *, low: float = -math.inf, high: float = math.inf
    ) -> Figure:
        """Return a mean with its Student's t interval within ``low`` to ``high``, clustering scores by record."""
        found = estimate_mean(values, np.arange(values.size) if rows is None else rows)
        if found is None:
            return cls.missing("there are no scores")
        interval = None
        if found.low is not None and found.high is not None:
            interval = (max(found.low, low), min(found.high, high))
        figure = cls(found.value, records=found.clusters, scores=found.n)
        return figure.within(interval, method="Student's t, clustered by record", otherwise=_NO_SPREAD)

    @classmethod
    def of_rate(cls, hits: np.ndarray) -> Figure:
        """Return the share of true values with its Clopper-Pearson interval."""
        found = estimate_rate(hits.astype(np.float64), np.arange(hits.size))
        if found is None:
            return cls.missing("there are no records")
        method = "Clopper and Pearson, by record"
        return cls(found.value, found.low, found.high, found.clusters, found.n, method)


def krippendorff_alpha(ratings: Floats, *, seed: int = 0) -> Figure:
    """Return Krippendorff's alpha for interval data, ``1 - observed / expected disagreement``.

    ``ratings`` are (records, raters) with NaN for missing ones. A record counts if at least two raters scored it.
    ``n`` is the number of pairable values and ``m`` the number in a record. The observed disagreement is the mean over
    records of the squared differences of all pairs, each weighted ``1/(m-1)``. The expected disagreement is that of
    all pairs of the ``n`` values.
    """
    known = ~np.isnan(ratings)
    pairable = known.sum(axis=1) >= 2
    ratings, known = ratings[pairable], known[pairable]
    counts = known.sum(axis=1).astype(np.float64)
    records, scores = int(pairable.sum()), int(counts.sum())
    if records < 2:
        reason = "fewer than two records have two scores to compare" if ratings.shape[1] > 1 else _ONCE
        return Figure.missing(reason, records=records, scores=scores)
    values = ratings[known]
    if values.min() == values.max():
        reason = "every score is the same, so agreement cannot be separated from chance"
        return Figure.missing(reason, records=records, scores=scores)
    # Centered and scaled, which preserves the digits of nearly equal values.
    scaled = np.where(known, (ratings - values.mean()) / np.ptp(values), 0.0)
    sums = scaled.sum(axis=1)
    within = np.square(np.where(known, scaled - (sums / counts)[:, None], 0.0)).sum(axis=1)
    disagreement = 2 * counts * within / (counts - 1)

    def alpha(totals: Floats) -> Floats:
        n, total, squares, observed = totals.T
        found: Floats = 1 - (n - 1) * observed / (2 * (n * squares - total**2))
        return found

    columns = np.column_stack((counts, sums, np.square(scaled).sum(axis=1), disagreement))
    if disagreement.max() > _ROUNDING or records < MIN_RECORDS:
        return _bootstrapped(columns, alpha, seed=seed, scores=scores)
    # No record differs. At most this share of all records does (Clopper and Pearson), each by half of its ratings at
    # either end of the range at worst.
    share = 1 - ((1 - CONFIDENCE) / 2) ** (1 / records)
    raters = int(counts.max())
    worst = 2 * (raters // 2) * (raters - raters // 2) / (raters * (raters - 1))
    n, total, squares, _ = columns.sum(axis=0)
    expected = 2 * (n * squares - total**2) / (n * (n - 1))
    figure = Figure(1.0, records=records, scores=scores)
    interval = (1 - share * worst / expected, 1.0)
    return figure.within(interval, method="no record differs (Clopper and Pearson)", otherwise=_TOO_FEW)


def cohen_kappa(a: Integers, b: Integers, size: int, *, weighted: bool = False, seed: int = 0) -> Figure:
    """Return Cohen's kappa of two ratings in ``size`` ordered categories, counted from 0.

    ``1 - observed / expected disagreement``. Every difference weighs 1 (Cohen 1960), or with ``weighted`` its square
    ``(i - j)^2`` (Cohen 1968). The expected disagreement is from the product of both margins.
    """
    if a.size < 2:
        return Figure.missing("fewer than two records to compare", records=a.size)
    if np.all(a == a[0]) or np.all(b == b[0]):
        return Figure.missing("all scores of the judge, or of people, fall into one category", records=a.size)

    def plain(totals: Floats) -> Floats:
        records, differing = totals[:, 0], totals[:, 1]
        chance = (totals[:, 2 : 2 + size] * totals[:, 2 + size :]).sum(axis=1) / records**2
        found: Floats = 1 - (differing / records) / (1 - chance)
        return found

    def squared(totals: Floats) -> Floats:
        records, observed, i, j, i_squared, j_squared = totals.T
        found: Floats = 1 - observed / ((records * (i_squared + j_squared) - 2 * i * j) / records)
        return found

    ones = np.ones(a.size)
    if weighted:
        i, j = a.astype(np.float64), b.astype(np.float64)
        return _bootstrapped(np.column_stack((ones, (i - j) ** 2, i, j, i * i, j * j)), squared, seed=seed)
    columns = (ones, (a != b).astype(np.float64), np.eye(size)[a], np.eye(size)[b])
    return _bootstrapped(np.column_stack(columns), plain, seed=seed)


def spread_of_calls(scores: Floats, *, seed: int = 0) -> tuple[Figure, Figure]:
    """Return the standard deviation of repeated scores of a record, and the share of records with identical scores."""
    known = ~np.isnan(scores)
    repeated = known.sum(axis=1) >= 2
    scores, known = scores[repeated], known[repeated]
    counts = known.sum(axis=1)
    if not counts.size:
        reason = _ONCE if scores.shape[1] < 2 else "no record has two scores of this judge"
        return Figure.missing(reason), Figure.missing(reason)
    squares = np.square(np.where(known, scores - mean_where_known(scores)[:, None], 0.0)).sum(axis=1)
    sums = np.column_stack((squares, (counts - 1).astype(np.float64)))
    low, high = _extremes(scores)
    total, identical = int(counts.sum()), low == high
    deviation = _bootstrapped(
        sums,
        lambda totals: np.sqrt(totals[:, 0] / totals[:, 1]),
        seed=seed,
        scores=total,
        otherwise="every record got the same score each time" if identical.all() else _TOO_FEW,
    )
    return deviation, msgspec.structs.replace(Figure.of_rate(identical), scores=total)


def spearman(x: Floats, y: Floats) -> Figure:
    """Return Spearman's rank correlation, with mean ranks for ties.

    The interval is ``tanh(atanh r ± z sqrt((1 + r^2/2) / (n - 3)))`` (Bonett and Wright 2000).
    """
    if (missing := _unusable(x, y)) is not None:
        return missing
    ranks: list[Floats] = []
    for values in (x, y):
        _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(counts) - (counts - 1) / 2)[places])
    r = float(np.corrcoef(ranks[0], ranks[1])[0, 1])
    return _correlation(r, 1 + r * r / 2, x.size, x.size - 3, "Fisher z for ranks (Bonett and Wright)")


def partial_correlation(x: Floats, y: Floats, fixed: Floats) -> Figure:
    """Return the correlation of two variables, controlling for a third."""
    if (missing := _unusable(x, y) or _unusable(x, fixed)) is not None:
        return missing
    found = np.corrcoef([(values - values.mean()) / np.ptp(values) for values in (x, y, fixed)])
    left = (1 - found[0, 2] ** 2) * (1 - found[1, 2] ** 2)
    if left <= _ROUNDING:
        reason = "it is indistinguishable from the human score"
        return Figure.missing(reason, records=x.size)
    r = float((found[0, 1] - found[0, 2] * found[1, 2]) / math.sqrt(left))
    return _correlation(r, 1.0, x.size, x.size - 4, "Fisher z")


def slope(y: Floats, x: Floats) -> Figure:
    """Return the least-squares slope of ``y`` on ``x``."""
    from scipy.special import stdtr, stdtrit

    if x.size < _LEAST_PAIRS:
        return Figure.missing(f"fewer than {_LEAST_PAIRS} records were scored", records=x.size)
    if x.min() == x.max():
        return Figure.missing("every text has the same length", records=x.size)
    away = x - x.mean()
    squares = float(np.square(away).sum())
    value = float((away * y).sum() / squares)
    residuals = y - y.mean() - value * away
    leverage = 1 / x.size + np.square(away) / squares
    # A record with leverage 1 has no residual and carries no information about the variance.
    weighted = away * residuals / np.maximum(1 - leverage, 1e-9)
    error = float(np.square(weighted).sum()) ** 0.5 / squares
    half = float(stdtrit(x.size - 2, (1 + CONFIDENCE) / 2)) * error
    interval, p = None, None
    if half > _ROUNDING:
        interval, p = (value - half, value + half), 2 * float(stdtr(x.size - 2, -abs(value) / error))
    figure = Figure(value, records=x.size, scores=x.size)
    return figure.within(interval, method="least squares, HC3 errors", otherwise=_ON_ONE_LINE, p=p)


def _unusable(x: Floats, y: Floats) -> Figure | None:
    if x.size < _LEAST_PAIRS:
        return Figure.missing(f"fewer than {_LEAST_PAIRS} records to compare", records=x.size)
    if x.min() == x.max() or y.min() == y.max():
        return Figure.missing("the compared values are the same for every record", records=x.size)
    return None


def _correlation(r: float, factor: float, records: int, freedom: int, method: str) -> Figure:
    """Return ``r`` with the interval ``tanh(atanh r ± z sqrt(factor / freedom))`` and its p-value, unless ``r`` is ±1."""
    from scipy.special import ndtr, ndtri

    r = min(1.0, max(-1.0, r))
    interval, p = None, None
    if freedom >= 1 and abs(r) < 1 - _ROUNDING:
        stderr, middle = math.sqrt(factor / freedom), math.atanh(r)
        half = float(ndtri((1 + CONFIDENCE) / 2)) * stderr
        interval = (math.tanh(middle - half), math.tanh(middle + half))
        p = 2 * float(ndtr(-abs(middle) / stderr))
    return Figure(r, records=records, scores=records).within(
        interval, method=method, otherwise=_ON_ONE_LINE, p=p
    )


def _bootstrapped(
    sums: Floats,
    statistic: Callable[[Floats], Floats],
    *,
    seed: int,
    scores: int | None = None,
    otherwise: str = _TOO_FEW,
) -> Figure:
    records = len(sums)
    value = float(statistic(sums.sum(axis=0, keepdims=True))[0])
    figure = Figure(value, records=records, scores=records if scores is None else scores)
    interval = bootstrap_interval(sums, statistic, seed=seed)
    return figure.within(interval, method="bootstrap by record (BCa)", otherwise=otherwise)


def bootstrap_interval(
    sums: Floats, statistic: Callable[[Floats], Floats], *, seed: int = 0
) -> tuple[float, float] | None:
    """Return the 95% BCa interval of a statistic of ``sums`` (records, columns), resampling records."""
    from scipy.special import ndtr, ndtri

    if len(sums) < MIN_RECORDS:
        return None
    rng = np.random.default_rng(seed)
    units = sums
    if len(sums) > _MOST_GROUPS:
        starts = np.arange(_MOST_GROUPS) * len(sums) // _MOST_GROUPS
        units = np.add.reduceat(sums[rng.permutation(len(sums))], starts, axis=0)
    total = units.sum(axis=0, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        observed = float(statistic(total)[0])
        drawn = np.concatenate([statistic(weights @ units) for weights in _draws(len(units), rng)])
        left_out = statistic(total - units)
    drawn, left_out = drawn[np.isfinite(drawn)], left_out[np.isfinite(left_out)]
    if drawn.size < _LEAST_DEFINED * RESAMPLES or np.ptp(drawn) == 0 or left_out.size == 0:
        return None
    below = (np.count_nonzero(drawn < observed) + np.count_nonzero(drawn <= observed)) / (2 * drawn.size)
    bias = ndtri(below)
    if not np.isfinite(bias):
        return None
    away = left_out.mean() - left_out
    squares = float(np.square(away).sum())
    acceleration = float((away**3).sum()) / (6 * squares**1.5) if squares > 0 else 0.0
    shift = bias + ndtri(np.array([(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]))
    low, high = np.quantile(drawn, ndtr(bias + shift / (1 - acceleration * shift)))
    return float(low), float(high)


def _draws(units: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Yield batches of draws: how often each draw contains each unit."""
    for _ in range(RESAMPLES // _AT_ONCE):
        picked = rng.integers(0, units, size=(_AT_ONCE, units))
        picked += units * np.arange(_AT_ONCE)[:, None]
        times = np.bincount(picked.ravel(), minlength=_AT_ONCE * units)
        yield times.reshape(_AT_ONCE, units).astype(np.float64)


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """The scores of a session and the known properties of each record. A call without a score is never a zero.

    Attributes:
        models: Names of the judges; the second axis of ``scores``.
        labels: One name per record; the first axis of ``scores``. Numbering starts at 1.
        scores: (records, models, runs); NaN for calls without a score.
        score_min, score_max: The scale of all scores.
        human: (records,) human scores on the same scale; NaN if missing.
        lengths: (records,) characters of the scored text.
        swapped: Every other run quotes the texts in reverse order.
        copy_of: (records,) index of the first identical record, or its own; None if there are no copies.
    """

    models: Sequence[str]
    labels: Sequence[str]
    scores: Floats = field(repr=False)
    score_min: float
    score_max: float
    human: Floats = field(repr=False)
    lengths: Floats = field(repr=False)
    swapped: bool = False
    copy_of: Sequence[int] | None = None

    def __post_init__(self) -> None:
        for name in ("scores", "human"):
            object.__setattr__(self, name, self._rounded(np.asarray(getattr(self, name), dtype=np.float64)))

    def distinct(self) -> ScoreTable:
        """Return the table with one record per group of copies, preferring human scores, then most scores."""
        if self.copy_of is None:
            return self
        groups = np.asarray(self.copy_of, dtype=np.int64)
        known = (~np.isnan(self.scores)).sum(axis=(1, 2))
        # Sort by group, the best record of each group first, ties in file order.
        order = np.lexsort((-known, np.isnan(self.human), groups))
        _, first = np.unique(groups[order], return_index=True)
        kept = np.sort(order[first])
        rows = {name: getattr(self, name)[kept] for name in ("scores", "human", "lengths")}
        return replace(self, labels=[self.labels[place] for place in kept], copy_of=None, **rows)

    def model_means(self) -> Floats:
        """Return (records, models): each model's mean over its runs; NaN without a score."""
        return self._rounded(mean_where_known(self.scores))

    def consensus(self) -> Floats:
        """Return (records,): the mean of the models' means, which weighs models equally."""
        return self._rounded(mean_where_known(self.model_means()))

    def most_disputed(self, most: int) -> set[int]:
        """Return up to ``most`` records whose scores differ most from each other or from human scores."""
        low, high = _extremes(self.scores.reshape(len(self.labels), -1))
        gap = np.abs(self.consensus() - self.human)
        # A record without any score needs the most explanation.
        spread = np.nan_to_num(high - low, nan=self.score_max - self.score_min)
        return set(np.argsort(-np.fmax(spread, np.nan_to_num(gap)), kind="stable")[:most].tolist())

    def mean(self, values: Floats, rows: Integers | None = None) -> Figure:
        """Return the mean of scores."""
        return Figure.of_mean(values, rows, low=self.score_min, high=self.score_max)

    def mean_difference(self, values: Floats, *, least: float = -1.0) -> Figure:
        """Return the mean of differences of scores, which are at least ``least`` times the width of the scale."""
        widest = self.score_max - self.score_min
        return Figure.of_mean(values, low=least * widest, high=widest)

    def _rounded(self, values: Floats) -> Floats:
        """Round away floating-point errors, so that equal scores tie."""
        span = self.score_max - self.score_min
        rounded: Floats = np.round(values, _DIGITS - math.ceil(math.log10(span)))
        return rounded


def mean_where_known(values: Floats) -> Floats:
    """Return the mean over the last axis, ignoring NaN; NaN if all values are."""
    known = ~np.isnan(values)
    counts = known.sum(axis=-1)
    sums = np.where(known, values, 0.0).sum(axis=-1)
    means: Floats = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return means


def rescaled(
    values: float | Floats, low: float | Floats, high: float | Floats, *, to_low: float, to_high: float
) -> Floats:
    """Map ``values`` linearly from the scale ``low`` … ``high`` to ``to_low`` … ``to_high``."""
    # Extreme bounds in a file can give a non-finite result, which callers check.
    with np.errstate(all="ignore"):
        share = (np.asarray(values, dtype=np.float64) - low) / (np.asarray(high) - np.asarray(low))
        moved: Floats = to_low + share * (to_high - to_low)
    return moved


class SessionCounts(msgspec.Struct, frozen=True):
    """Sample sizes behind the figures."""

    records: int
    models: int
    runs: int
    calls: int
    scored_calls: int
    unscored_calls: int
    pending_calls: int
    scored_records: int
    labelled_records: int
    copied_records: int


class Bin(msgspec.Struct, frozen=True):
    """The records with the judge's score in one category: mean scores and the judge's bias."""

    name: str
    judge: float | None
    people: float | None
    bias: Figure


class JudgeAgreement(msgspec.Struct, frozen=True):
    """The figures of one judge, or of the panel's consensus, by name."""

    model: str
    unscored_calls: int
    figures: dict[str, Figure]
    bins: tuple[Bin, ...] = ()


class Disputed(msgspec.Struct, frozen=True):
    """A record with a large difference of scores."""

    between: str
    record: int
    label: str
    scores: tuple[float, float]


class AgreementReport(msgspec.Struct, frozen=True):
    """All figures of a session."""

    confidence: float
    score_min: float
    score_max: float
    seed: int
    counts: SessionCounts
    judges: tuple[JudgeAgreement, ...]
    panel: JudgeAgreement | None
    disputed: tuple[Disputed, ...]


def measure_agreement(table: ScoreTable, *, seed: int = 0, pending_calls: int = 0) -> AgreementReport:
    """Compute all agreement figures of a session."""
    # Copies are one observation: duplicated records add no evidence.
    units = table.distinct()
    known = ~np.isnan(table.scores)
    scored, (records, models, runs) = int(known.sum()), known.shape
    judges = [_judge(units, place, seed) for place in range(models)]
    _adjust_biases([judge.figures for judge in judges])
    return AgreementReport(
        confidence=CONFIDENCE,
        score_min=table.score_min,
        score_max=table.score_max,
        seed=seed,
        counts=SessionCounts(
            records=records,
            models=models,
            runs=runs,
            calls=known.size,
            scored_calls=scored,
            unscored_calls=known.size - scored - pending_calls,
            pending_calls=pending_calls,
            scored_records=int(known.any(axis=(1, 2)).sum()),
            labelled_records=int((~np.isnan(table.human)).sum()),
            copied_records=records - len(units.labels),
        ),
        judges=tuple(judges),
        panel=_panel(units, seed) if models > 1 else None,
        disputed=(
            *_disputed(table, "judges (lowest, highest)", *_extremes(table.model_means())),
            *_disputed(table, "calls of one judge (lowest, highest)", *_least_stable(table.scores)),
            *_disputed(table, "judge and people", table.consensus(), table.human),
        ),
    )


def _judge(table: ScoreTable, place: int, seed: int) -> JudgeAgreement:
    scores, means = table.scores[:, place, :], table.model_means()
    own, others = means[:, place], mean_where_known(np.delete(means, place, axis=1))
    missing = np.isnan(scores)
    rows = np.repeat(np.arange(scores.shape[0]), scores.shape[1]).reshape(scores.shape)
    figures = {"mean": table.mean(scores[~missing], rows[~missing])}
    if missing.any():
        for name, end in (("mean_at_worst", table.score_min), ("mean_at_best", table.score_max)):
            figures[name] = table.mean(np.where(missing, end, scores).ravel(), rows.ravel())
    figures["alpha"] = krippendorff_alpha(scores, seed=seed)
    figures["deviation"], figures["identical"] = spread_of_calls(scores, seed=seed)
    if len(table.models) > 1:
        both = ~np.isnan(own) & ~np.isnan(others)
        figures["others_spearman"] = spearman(own[both], others[both])
        figures["others_difference"] = table.mean_difference(own[both] - others[both])
    against_people, bins = calibrate(own, table, seed=seed)
    figures |= against_people
    figures |= biases(own, table)
    figures["position"] = position_bias(
        scores, swapped=table.swapped, scale=(table.score_min, table.score_max)
    )
    return JudgeAgreement(table.models[place], int(missing.sum()), figures, bins)


def _panel(table: ScoreTable, seed: int) -> JudgeAgreement:
    consensus = table.consensus()
    against_people, bins = calibrate(consensus, table, seed=seed)
    figures = {
        "mean": table.mean(consensus[~np.isnan(consensus)]),
        "alpha_between_judges": krippendorff_alpha(table.model_means(), seed=seed),
        **against_people,
    }
    return JudgeAgreement(PANEL, 0, figures, bins)


def calibrate(
    judge: Floats, table: ScoreTable, *, seed: int = 0
) -> tuple[dict[str, Figure], tuple[Bin, ...]]:
    """Compare the judge's scores (records,) with human scores; also return its bias by its own score."""
    both = ~np.isnan(judge) & ~np.isnan(table.human)
    if not both.any():
        names = ("spearman", "kappa", "weighted_kappa", "same_category", "mean_absolute_error", "bias")
        return dict.fromkeys(names, _unlabelled(table)), ()
    judge, people = judge[both], table.human[both]
    levels = levels_of(people, table.score_min, table.score_max)
    of_judge, of_people = levels.of(judge), levels.of(people)
    figures = {
        "spearman": spearman(judge, people),
        "kappa": cohen_kappa(of_judge, of_people, levels.size, seed=seed),
        "weighted_kappa": cohen_kappa(of_judge, of_people, levels.size, weighted=True, seed=seed),
        "same_category": Figure.of_rate(of_judge == of_people),
        "mean_absolute_error": table.mean_difference(np.abs(judge - people), least=0.0),
        "bias": table.mean_difference(judge - people),
    }
    bins = []
    for category, name in enumerate(levels.names):
        here = of_judge == category
        if here.any():
            bias = table.mean_difference(judge[here] - people[here])
            bins.append(Bin(name, float(judge[here].mean()), float(people[here].mean()), bias))
        else:
            bins.append(Bin(name, None, None, Figure.missing("no record has such a score")))
    return figures, tuple(bins)


def _unlabelled(table: ScoreTable) -> Figure:
    if np.isnan(table.human).all():
        return Figure.missing("no record has a human score (`label` or `human_score`)")
    return Figure.missing("the judge did not score any record with a human score")


@dataclass(frozen=True, slots=True)
class Levels:
    """Score categories for statistics that need them: ``parts`` of the scale, or the levels between them."""

    low: float
    high: float
    parts: int
    centred: bool

    @property
    def size(self) -> int:
        return self.parts + 1 if self.centred else self.parts

    @property
    def names(self) -> list[str]:
        edges = [self.low + (self.high - self.low) * part / self.parts for part in range(self.parts + 1)]
        shown = [f"{edge:.4g}" for edge in edges]
        return shown if self.centred else [f"{low}–{high}" for low, high in pairwise(shown)]

    def of(self, scores: Floats) -> Integers:
        """Return the category of each score, counted from 0."""
        steps = (scores - self.low) / (self.high - self.low) * self.parts
        # A mean of runs may miss its edge by a rounding error.
        found = np.floor(np.round(steps, 9) + (0.5 if self.centred else 0.0))
        return np.clip(found, 0, self.size - 1).astype(np.int64)


def levels_of(people: Floats, low: float, high: float) -> Levels:
    """Return the categories of the human scores: their even grid, or else five equal parts."""
    offsets = np.unique(np.round((people - low) / (high - low), 9))
    whole = high - low
    candidates = [*range(1, _MOST_LEVELS)]
    if float(low).is_integer() and float(whole).is_integer() and 2 <= whole < _MOST_LEVELS:
        candidates.insert(0, int(whole))
    for parts in candidates:
        if np.all(np.abs(offsets * parts - np.round(offsets * parts)) < 1e-6):
            return Levels(low, high, parts, centred=True)
    return Levels(low, high, _PARTS, centred=False)


def biases(judge: Floats, table: ScoreTable) -> dict[str, Figure]:
    """Return the relation of a judge's scores (records,) to length and to the position in the file.

    With human scores, it is the relation beyond theirs.
    """
    scored, doublings = ~np.isnan(judge), np.log2(np.maximum(table.lengths, 1.0))
    both = scored & ~np.isnan(table.human)
    found = {"length": spearman(judge[scored], doublings[scored])}
    if not both.any():
        missing = _unlabelled(table)
        found["per_doubling"] = slope(judge[scored], doublings[scored])
        return found | {"length_beyond_people": missing, "order_in_file": missing}
    beyond = judge[both] - table.human[both]
    return found | {
        "length_beyond_people": partial_correlation(judge[both], doublings[both], table.human[both]),
        "per_doubling_beyond_people": slope(beyond, doublings[both]),
        "order_in_file": spearman(beyond, np.flatnonzero(both).astype(np.float64)),
    }


def length_bias_p(figures: Mapping[str, Figure]) -> float | None:
    """Return the p-value of no length bias: both figures must differ from zero in the same direction."""
    both = [figures.get(name) for name in ("length_beyond_people", "per_doubling_beyond_people")]
    a, b = (figure or Figure(None) for figure in both)
    if a.p is None or b.p is None:
        return None
    return max(a.p, b.p) if (a.value or 0.0) * (b.value or 0.0) > 0 else 1.0


def _adjust_biases(judges: Sequence[dict[str, Figure]]) -> None:
    """Adjust the p-values of all biases of all judges jointly with Holm's method."""
    tests = [
        (figures, names, p)
        for figures in judges
        for names, p in (
            (("length_beyond_people", "per_doubling_beyond_people"), length_bias_p(figures)),
            (("order_in_file",), figures["order_in_file"].p),
            (("position",), figures["position"].p),
        )
    ]
    adjusted = holm([p for *_, p in tests])
    for (figures, names, _), p in zip(tests, adjusted, strict=True):
        for name in names:
            if name in figures:
                figures[name] = msgspec.structs.replace(figures[name], p_adjusted=p)


def position_bias(
    scores: Floats, *, swapped: bool = True, scale: tuple[float, float] | None = None
) -> Figure:
    """Return how much higher even runs score than odd ones, which quote their texts in reverse, on the same records."""
    if not swapped or scores.shape[1] < 2:
        return Figure.missing(
            "all calls quoted their texts in the same order; `--swap` reverses it in every other call"
        )
    columns: list[np.ndarray] = []
    for first in (1, 0):
        rows, runs = np.nonzero(~np.isnan(scores[:, first::2]))
        columns += [scores[:, first::2][rows, runs], rows]
    pairs = Pairs.of(*columns, scale=scale)
    if pairs is None:
        return Figure.missing("no record was scored in both orders")
    found = mean_difference(pairs)
    interval = None if found.low is None or found.high is None else (found.low, found.high)
    return Figure(found.value, records=found.rows, scores=found.samples).within(
        interval, method=f"{found.method}, by record", otherwise=f"no interval: {found.reason}", p=found.p
    )


def _disputed(table: ScoreTable, between: str, first: Floats, second: Floats) -> list[Disputed]:
    """Return the records with the largest gaps between the two scores, ordered by gap and position."""
    gaps = np.nan_to_num(np.abs(second - first), nan=0.0)
    return [
        Disputed(between, int(row) + 1, table.labels[row], (float(first[row]), float(second[row])))
        for row in np.argsort(-gaps, kind="stable")[:LISTED_RECORDS]
        if gaps[row] > 0
    ]


def _extremes(scores: Floats) -> tuple[Floats, Floats]:
    """Return the minimum and maximum along the last axis, ignoring NaN; NaN if there are no scores."""
    return np.fmin.reduce(scores, axis=-1), np.fmax.reduce(scores, axis=-1)


def _least_stable(scores: Floats) -> tuple[Floats, Floats]:
    """Return the extremes of the judge whose repeated scores of a record differ most."""
    low, high = _extremes(scores)
    widest = np.argmax(np.nan_to_num(high - low, nan=-1.0), axis=1)[:, None]
    return np.take_along_axis(low, widest, axis=1)[:, 0], np.take_along_axis(high, widest, axis=1)[:, 0]


GAP = "–"


@dataclass(frozen=True, slots=True)
class ScoreFormat:
    """Formats scores to three significant digits of the scale's width."""

    low: float
    high: float

    def points(self, value: float | None) -> str:
        return GAP if value is None else f"{self._rounded(value):.{self._digits}f}"

    def signed(self, value: float | None) -> str:
        shown = self._rounded(value or 0.0)
        return self.points(value) if not shown else f"{shown:+.{self._digits}f}"

    def coefficient(self, value: float) -> str:
        return f"{round(value, 2) + 0.0:.2f}"

    def percent(self, share: float) -> str:
        return f"{share * 100:.3g}%"

    @property
    def _digits(self) -> int:
        return min(6, max(0, 3 - max(0, math.ceil(math.log10(self.high - self.low)))))

    def _rounded(self, value: float) -> float:
        # Avoid a negative zero for a difference too small to show.
        return round(value, self._digits) + 0.0


class FigureTable(NamedTuple):
    """The figures that answer one question about the judges, as text; ``missing`` are (reason, measure) without a value."""

    anchor: str
    title: str
    note: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    missing: list[tuple[str, str]]


# Title and note of each table, by anchor.
_TABLES = {
    "scores": ("Mean scores", ""),
    "repeatability": (
        "Repeatability",
        "An alpha of 0.8 or more is reliable; 0.667 or more allows tentative conclusions (Krippendorff 2004).",
    ),
    "panel": ("Agreement between judges", ""),
    "people": ("Agreement with human scores", ""),
    "calibration": (
        "Calibration",
        "Bias is the judge's score minus the human score. Positive values mean a lenient judge.",
    ),
    "bias": ("Bias by length and order", "p-values are adjusted for all judges and biases (Holm)."),
}
# Table, name, label and format of each figure.
_MEASURES = (
    ("scores", "mean", "Mean score", "points"),
    ("repeatability", "alpha", "Krippendorff's alpha", "coefficient"),
    ("repeatability", "deviation", "Standard deviation of calls", "points"),
    ("repeatability", "identical", "Records with identical scores", "percent"),
    ("panel", "alpha_between_judges", "Krippendorff's alpha", "coefficient"),
    ("panel", "others_spearman", "Spearman with the others", "coefficient"),
    ("panel", "others_difference", "Difference from the others", "signed"),
    ("people", "spearman", "Spearman", "coefficient"),
    ("people", "kappa", "Cohen's kappa", "coefficient"),
    ("people", "weighted_kappa", "Cohen's kappa, quadratic weights", "coefficient"),
    ("people", "same_category", "Same category", "percent"),
    ("calibration", "mean_absolute_error", "Mean absolute error", "points"),
    ("calibration", "bias", "Bias", "signed"),
    ("bias", "length", "Length and score (Spearman)", "coefficient"),
    ("bias", "length_beyond_people", "Length and score, human score fixed", "coefficient"),
    ("bias", "per_doubling", "Per doubling of length", "signed"),
    ("bias", "per_doubling_beyond_people", "Per doubling of length, beyond the human score", "signed"),
    ("bias", "order_in_file", "Position in the file (Spearman)", "coefficient"),
    ("bias", "position", "Usual order of quoted texts", "signed"),
)


# Labels of the figures that answer a question at a glance.
_SUMMARY = {
    "mean": "Mean score",
    "alpha": "Repeatability (alpha)",
    "alpha_between_judges": "Agreement of judges (alpha)",
    "spearman": "Human agreement (Spearman)",
    "bias": "Bias against human scores",
    "length_beyond_people": "Length bias (correlation)",
    "position": "Position bias",
}
_HEADINGS = ("Judge", "Measure", "Value", "95% CI", "Records", "Scores", "Adjusted p")
_Found = tuple[str, str, str, str, Figure, Callable[[float | None], str]]


def _measured(report: AgreementReport) -> list[_Found]:
    """Return table, name, judge, label, figure and format of all figures, by judge."""
    scale = ScoreFormat(report.score_min, report.score_max)
    judges = [*report.judges, *([report.panel] if report.panel is not None else [])]
    return [
        (anchor, name, judge.model, label, judge.figures[name], getattr(scale, shown))
        for judge in judges
        for anchor, name, label, shown in _MEASURES
        if name in judge.figures
    ]


def summary_table(report: AgreementReport) -> FigureTable:
    """Return one table of the most important figures that have a value."""
    found = [
        _row(judge, _SUMMARY[name], figure, show)[:5]
        for _, name, judge, _, figure, show in _measured(report)
        if name in _SUMMARY and figure.value is not None
    ]
    return FigureTable("summary", "Judges", "", _HEADINGS[:5], found, [])


def agreement_tables(report: AgreementReport) -> list[FigureTable]:
    """Return the tables of a session. Only a panel has a table of agreement between judges."""
    measured, tables = _measured(report), []
    for anchor, (title, note) in _TABLES.items():
        found = [each[2:] for each in measured if each[0] == anchor]
        if anchor == "calibration":
            # Only the bins of the panel or the single judge; the chart has those of every judge.
            last = report.panel or report.judges[-1]
            scale = ScoreFormat(report.score_min, report.score_max)
            found += [
                (last.model, f"Bias at score {each.name}", each.bias, scale.signed)
                for each in last.bins
                if each.judge is not None
            ]
        if found:
            headings = _HEADINGS if anchor == "bias" else _HEADINGS[:-1]
            rows = [_row(*each)[: len(headings)] for each in found if each[2].value is not None]
            missing = [(each[2].reason or "", each[1]) for each in found if each[2].value is None]
            tables.append(FigureTable(anchor, title, note, headings, rows, missing))
    return tables


def _row(judge: str, label: str, figure: Figure, show: Callable[[float | None], str]) -> tuple[str, ...]:
    interval = GAP
    if figure.low is not None and figure.high is not None:
        low, high = show(figure.low).removesuffix("%"), show(figure.high)
        interval = f"{low}–{high}" if low[0].isdigit() and figure.low >= 0 else f"{low} to {high}"
    adjusted = GAP if figure.p_adjusted is None else f"{figure.p_adjusted:.3f}"
    counts = f"{figure.records:,}", f"{figure.scores:,}"
    return judge, label, show(figure.value), interval, *counts, adjusted


def not_measured(tables: Iterable[FigureTable]) -> list[str]:
    """Return one line for each reason for missing values."""
    names: dict[str, dict[str, None]] = {}
    for reason, name in (each for table in tables for each in table.missing):
        names.setdefault(reason, {})[name] = None
    return [f"Not measured ({reason}): {'; '.join(without)}" for reason, without in names.items()]
