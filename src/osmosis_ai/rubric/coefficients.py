"""Coefficients of agreement and association, with confidence intervals.

Ratings are arrays (records, raters) with NaN for missing ones. Raters are judges, or runs of one judge. A record counts
if at least two raters scored it. Correlations, kappas and slopes require complete values.

Sources:
    Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability"; Krippendorff 2004, "Content
        Analysis", chapter 11.
    Zapf et al. 2016, "Measuring inter-rater reliability for nominal data - which coefficients and
        confidence intervals are appropriate?" (bootstrap of the units for alpha).
    Shrout and Fleiss 1979, "Intraclass Correlations: Uses in Assessing Rater Reliability".
    McGraw and Wong 1996, "Forming Inferences about Some Intraclass Correlation Coefficients".
    Donner 1986, "A Review of Inference Procedures for the Intraclass Correlation Coefficient in the
        One-Way Random Effects Model" (unequal numbers of ratings).
    Cohen 1960, "A Coefficient of Agreement for Nominal Scales"; Cohen 1968, "Weighted Kappa".
    Fisher 1921, "On the 'Probable Error' of a Coefficient of Correlation" (Pearson, by SciPy);
        Fisher 1924, "The Distribution of the Partial Correlation Coefficient" (one degree of
        freedom less for each variable that is held fixed).
    Bonett and Wright 2000, "Sample Size Requirements for Estimating Pearson, Kendall and Spearman
        Correlations" (the factor 1 + r^2/2 for ranks).
    MacKinnon and White 1985, "Some Heteroskedasticity-Consistent Covariance Matrix Estimators with
        Improved Finite Sample Properties" (HC3, recommended by Long and Ervin 2000).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from osmosis_ai.rubric.estimate import (
    BOOTSTRAP,
    CONFIDENCE,
    MIN_RECORDS,
    TOO_FEW,
    JudgeFigure,
    bootstrap_interval,
)

if TYPE_CHECKING:
    from osmosis_ai.rubric.scores import Booleans, Floats, Integers

ONCE = "each record was scored once; repeat calls with `-n 5`"
_FEW_RATED = "fewer than two records have two scores to compare"
_NO_VARIATION = "every score is the same, so agreement cannot be separated from chance"
_NOT_BETWEEN = "scores differ within records but not between them"
_LEAST = 4
_FEW = f"fewer than {_LEAST} records to compare"
_CONSTANT = "the compared values are the same for every record"
_PERFECT = "no interval: the records lie on one line"


@dataclass(frozen=True, slots=True)
class Intraclass:
    """Intraclass correlations of one design."""

    single: JudgeFigure
    average: JudgeFigure


def krippendorff_alpha(
    ratings: Floats, *, level: Literal["interval", "ordinal"] = "interval", seed: int = 0
) -> JudgeFigure:
    """Return Krippendorff's alpha, ``1 - observed / expected disagreement``; ratings may be missing.

    ``n`` is the number of pairable values and ``m`` the number in a record. The observed disagreement is the
    mean over records of the squared differences of all pairs, each weighted ``1/(m-1)``. The expected
    disagreement is that of all pairs of the ``n`` values. The ordinal metric's squared difference of two
    ranks, ``(sum of n_g from c to k - (n_c + n_k)/2)^2``, is that of their mid-ranks, so ordinal alpha is
    interval alpha on mid-ranks (Krippendorff 2011). The confidence interval resamples records and keeps
    the ranks of the full data.
    """
    import numpy as np

    known = ~np.isnan(ratings)
    pairable = known.sum(axis=1) >= 2
    ratings, known = ratings[pairable], known[pairable]
    records, scores = int(pairable.sum()), int(known.sum())
    if records < 2:
        return JudgeFigure.missing(
            _FEW_RATED if ratings.shape[1] > 1 else ONCE, records=records, scores=scores
        )
    values = ratings[known]
    if values.min() == values.max():
        return JudgeFigure.missing(_NO_VARIATION, records=records, scores=scores)
    if level == "ordinal":
        from scipy.stats import rankdata

        ratings = ratings.copy()
        ratings[known] = rankdata(values)
    sums = _sums_by_record(ratings, known)
    alpha = float(_alpha(sums.sum(axis=0, keepdims=True))[0])
    interval = bootstrap_interval(sums, _alpha, seed=seed)
    figure = JudgeFigure(alpha, records=records, scores=scores)
    return figure.within(interval, method=BOOTSTRAP, otherwise=TOO_FEW)


def one_way_icc(ratings: Floats, *, seed: int = 0) -> Intraclass:
    """Return ICC(1,1) and ICC(1,k) for interchangeable raters, such as runs of one judge.

    With the mean squares between and within records of a one-way analysis of variance,
    ``ICC(1,1) = (MSB - MSW) / (MSB + (k0 - 1) MSW)`` (Shrout and Fleiss 1979). With missing ratings,
    ``k0 = (N - sum m^2 / N) / (records - 1)`` (Donner 1986). ``ICC(1,k)`` is the Spearman-Brown step to
    the k requested ratings. Confidence intervals resample records. Few records without missing ratings
    use the F interval of Shrout and Fleiss.
    """
    import numpy as np

    raters = ratings.shape[1]
    known = ~np.isnan(ratings)
    counts = known.sum(axis=1)
    used = counts >= 1
    ratings, known, counts = ratings[used], known[used], counts[used]
    records, scores = int(used.sum()), int(counts.sum())
    if np.count_nonzero(counts >= 2) < 2:
        return _both_missing(_FEW_RATED if raters > 1 else ONCE, records, scores)
    if ratings[known].min() == ratings[known].max():
        return _both_missing(_NO_VARIATION, records, scores)
    sums = _sums_by_record(ratings, known)
    value = float(_one_way(sums.sum(axis=0, keepdims=True))[0])
    if not math.isfinite(value):
        return _both_missing(_NO_VARIATION, records, scores)
    interval, method = bootstrap_interval(sums, _one_way, seed=seed), BOOTSTRAP
    if records < MIN_RECORDS and counts.min() == raters:
        interval, method = _f_interval(value, records - 1, records * (raters - 1), raters), "F distribution"
    return _intraclass(JudgeFigure(value, records=records, scores=scores), interval, method, raters)


def two_way_icc(ratings: Floats, *, consistency: bool = False, seed: int = 0) -> Intraclass:
    """Return ICC(2,1) and ICC(2,k), or with ``consistency`` ICC(3,1) and ICC(3,k), for distinct raters.

    From the mean squares of records, raters and residuals of a two-way analysis of variance
    (Shrout and Fleiss 1979): ``ICC(2,1) = (MSR - MSE) / (MSR + (k-1) MSE + k (MSC - MSE) / n)`` measures
    absolute agreement. ``ICC(3,1) = (MSR - MSE) / (MSR + (k-1) MSE)`` measures consistency and ignores each
    rater's level. Only records that every rater scored are used. Few records use the F intervals of
    McGraw and Wong 1996, table 7; otherwise records are resampled.
    """
    import numpy as np

    raters = ratings.shape[1]
    complete = ratings[~np.isnan(ratings).any(axis=1)]
    records = complete.shape[0]
    if raters < 2 or records < 2:
        return _both_missing(
            "fewer than two records were scored by every one of them", records, complete.size
        )
    if complete.min() == complete.max():
        return _both_missing(_NO_VARIATION, records, complete.size)
    sums = _two_way_sums(complete)

    def statistic(totals: Floats) -> Floats:
        between, raters_ms, rest = _mean_squares(totals, raters)
        spread = 0.0 if consistency else raters * (raters_ms - rest) / totals[:, 0]
        found: Floats = (between - rest) / (between + (raters - 1) * rest + spread)
        return found

    totals = sums.sum(axis=0, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(totals)[0])
    if not math.isfinite(value):
        return _both_missing(_NO_VARIATION, records, complete.size)
    interval, method = bootstrap_interval(sums, statistic, seed=seed), BOOTSTRAP
    if records < MIN_RECORDS:
        squares = tuple(float(square[0]) for square in _mean_squares(totals, raters))
        interval = _two_way_interval(value, squares, records, raters, consistency=consistency)
        method = "F distribution"
    return _intraclass(JudgeFigure(value, records=records, scores=complete.size), interval, method, raters)


def _both_missing(reason: str, records: int, scores: int) -> Intraclass:
    missing = JudgeFigure.missing(reason, records=records, scores=scores)
    return Intraclass(missing, missing)


def _intraclass(
    single: JudgeFigure, interval: tuple[float, float] | None, method: str, raters: int
) -> Intraclass:
    """Return the correlation of one rating, and its Spearman-Brown step to ``raters`` ratings."""

    def stepped(value: float) -> float:
        below = 1 + (raters - 1) * value
        return raters * value / below if below > 0 else -math.inf

    value = stepped(single.value or 0.0)
    if not math.isfinite(value):
        known = single.within(interval, method=method, otherwise=TOO_FEW)
        return Intraclass(
            known, JudgeFigure.missing(_NOT_BETWEEN, records=single.records, scores=single.scores)
        )
    average = JudgeFigure(value, records=single.records, scores=single.scores)
    wider = None if interval is None else (stepped(interval[0]), stepped(interval[1]))
    return Intraclass(
        single.within(interval, method=method, otherwise=TOO_FEW),
        average.within(wider, method=method, otherwise=TOO_FEW),
    )


def _sums_by_record(ratings: Floats, known: Booleans) -> Floats:
    """Return (records, 8): 1, m, m^2, sum, sum of squares, sum^2/m, squares within, disagreement of pairs."""
    import numpy as np

    values = ratings[known]
    scaled = np.where(known, (ratings - values.mean()) / np.ptp(values), 0.0)
    counts = known.sum(axis=1).astype(np.float64)
    sums = scaled.sum(axis=1)
    away = np.where(known, scaled - (sums / counts)[:, None], 0.0)
    within = np.square(away).sum(axis=1)
    columns = (
        np.ones_like(counts),
        counts,
        counts**2,
        sums,
        np.square(scaled).sum(axis=1),
        sums**2 / counts,
        within,
    )
    return np.column_stack((*columns, 2 * counts * within / np.maximum(counts - 1, 1)))


def _alpha(totals: Floats) -> Floats:
    counts, sums, squares, disagreement = totals[:, 1], totals[:, 3], totals[:, 4], totals[:, 7]
    alpha: Floats = 1 - (counts - 1) * disagreement / (2 * (counts * squares - sums**2))
    return alpha


def _one_way(totals: Floats) -> Floats:
    import numpy as np

    records, counts, counts_squared, sums, _, between, within, _ = totals.T
    with np.errstate(divide="ignore", invalid="ignore"):
        inside = within / (counts - records)
        among = (between - sums**2 / counts) / (records - 1)
        typical = (counts - counts_squared / counts) / (records - 1)
        icc: Floats = (among - inside) / (among + (typical - 1) * inside)
    return icc


def _f_interval(icc: float, between: int, within: int, raters: int) -> tuple[float, float] | None:
    """Return the exact interval of ICC(1,1) or ICC(3,1) under normal errors (Shrout and Fleiss 1979)."""
    from scipy.special import fdtri

    if icc >= 1:
        return None
    ratio = (1 + (raters - 1) * icc) / (1 - icc)
    level = (1 + CONFIDENCE) / 2
    bounds = ratio / float(fdtri(between, within, level)), ratio * float(fdtri(within, between, level))
    low, high = ((bound - 1) / (bound + raters - 1) for bound in bounds)
    return low, high


def _two_way_sums(complete: Floats) -> Floats:
    """Return (records, 4 + raters): 1, sum^2/k, sum of squares, sum, and the rating of each rater."""
    import numpy as np

    scaled = (complete - complete.mean()) / np.ptp(complete)
    sums = scaled.sum(axis=1)
    ones = np.ones(complete.shape[0])
    return np.column_stack((ones, sums**2 / complete.shape[1], np.square(scaled).sum(axis=1), sums, scaled))


def _mean_squares(totals: Floats, raters: int) -> tuple[Floats, Floats, Floats]:
    """Return the mean squares (records, raters, residual) of a two-way analysis of variance."""
    import numpy as np

    records, between, squares, sums = totals[:, 0], totals[:, 1], totals[:, 2], totals[:, 3]
    grand = sums**2 / (records * raters)
    columns = np.square(totals[:, 4:]).sum(axis=1) / records
    rest = np.maximum(squares - between - columns + grand, 0.0)
    return (
        (between - grand) / (records - 1),
        (columns - grand) / (raters - 1),
        rest / ((records - 1) * (raters - 1)),
    )


def _two_way_interval(
    icc: float, squares: tuple[float, ...], records: int, raters: int, *, consistency: bool
) -> tuple[float, float] | None:
    """Return the F interval of ICC(2,1) or ICC(3,1) (McGraw and Wong 1996, table 7)."""
    from scipy.special import fdtri

    between, among, rest = squares
    if icc >= 1 or rest <= 0:
        return None
    if consistency:
        return _f_interval(icc, records - 1, (records - 1) * (raters - 1), raters)
    a = raters * icc / (records * (1 - icc))
    b = 1 + raters * icc * (records - 1) / (records * (1 - icc))
    free = (a * among + b * rest) ** 2 / (
        (a * among) ** 2 / (raters - 1) + (b * rest) ** 2 / ((records - 1) * (raters - 1))
    )
    level = (1 + CONFIDENCE) / 2
    lower, upper = float(fdtri(records - 1, free, level)), float(fdtri(free, records - 1, level))
    others = raters * among + (raters * records - raters - records) * rest
    low = records * (between - lower * rest) / (lower * others + records * between)
    high = records * (upper * between - rest) / (others + records * upper * between)
    return low, high


def cohen_kappa(a: Integers, b: Integers, size: int, *, weighted: bool = False, seed: int = 0) -> JudgeFigure:
    """Return Cohen's kappa of two ratings in ``size`` ordered categories, counted from 0.

    ``1 - observed / expected disagreement``. Every difference weighs 1 (Cohen 1960), or with ``weighted``
    its square ``(i - j)^2`` (Cohen 1968). The expected disagreement is from the product of both margins.
    """
    import numpy as np

    if a.size < 2:
        return JudgeFigure.missing("fewer than two records to compare", records=a.size, scores=a.size)
    if np.all(a == a[0]) or np.all(b == b[0]):
        return JudgeFigure.missing(
            "all scores of the judge, or of people, fall into one category", records=a.size, scores=a.size
        )
    ones = np.ones(a.size)
    if weighted:
        i, j = a.astype(np.float64), b.astype(np.float64)
        sums, statistic = np.column_stack((ones, (i - j) ** 2, i, j, i * i, j * j)), _weighted_kappa
    else:
        columns = (ones, (a != b).astype(np.float64), np.eye(size)[a], np.eye(size)[b])
        sums, statistic = np.column_stack(columns), _plain_kappa
    kappa = float(statistic(sums.sum(axis=0, keepdims=True))[0])
    interval = bootstrap_interval(sums, statistic, seed=seed)
    figure = JudgeFigure(kappa, records=a.size, scores=a.size)
    return figure.within(interval, method=BOOTSTRAP, otherwise=TOO_FEW)


def _plain_kappa(totals: Floats) -> Floats:
    size = (totals.shape[1] - 2) // 2
    records, differing = totals[:, 0], totals[:, 1]
    chance = (totals[:, 2 : 2 + size] * totals[:, 2 + size :]).sum(axis=1) / records**2
    kappa: Floats = 1 - (differing / records) / (1 - chance)
    return kappa


def _weighted_kappa(totals: Floats) -> Floats:
    records, observed, i, j, i_squared, j_squared = totals.T
    expected = (records * (i_squared + j_squared) - 2 * i * j) / records
    kappa: Floats = 1 - observed / expected
    return kappa


def pearson(x: Floats, y: Floats) -> JudgeFigure:
    """Return Pearson's correlation of two variables with Fisher's interval (``scipy.stats.pearsonr``)."""
    from scipy.stats import pearsonr

    missing = _unusable(x, y)
    if missing is not None:
        return missing
    found = pearsonr(_standardised(x), _standardised(y))
    bounds = found.confidence_interval(CONFIDENCE)
    interval = (float(bounds.low), float(bounds.high))
    figure = JudgeFigure(float(found.statistic), records=x.size, scores=x.size)
    return figure.within(
        interval if interval[0] < interval[1] else None, method="Fisher z", otherwise=_PERFECT
    )


def partial(x: Floats, y: Floats, fixed: Floats) -> JudgeFigure:
    """Return the partial correlation of two variables, controlling for a third."""
    import numpy as np

    missing = _unusable(x, y) or _unusable(x, fixed)
    if missing is not None:
        return missing
    found = np.corrcoef([_standardised(variable) for variable in (x, y, fixed)])
    left = (1 - found[0, 2] ** 2) * (1 - found[1, 2] ** 2)
    if left <= 1e-12:
        return JudgeFigure.missing("it cannot be told apart from the score given by people", records=x.size)
    r = min(1.0, max(-1.0, float((found[0, 1] - found[0, 2] * found[1, 2]) / math.sqrt(left))))
    return _estimate(r, 1.0, x, x.size - 4, "Fisher z")


def spearman(x: Floats, y: Floats) -> JudgeFigure:
    """Return Spearman's rank correlation of two variables (``scipy.stats.spearmanr``).

    The interval is ``tanh(atanh r ± z sqrt((1 + r^2/2) / (n - 3)))`` (Bonett and Wright 2000).
    """
    from scipy.stats import spearmanr

    missing = _unusable(x, y)
    if missing is not None:
        return missing
    r = min(1.0, max(-1.0, float(spearmanr(x, y).statistic)))
    return _estimate(r, 1 + r * r / 2, x, x.size - 3, "Fisher z for ranks (Bonett and Wright)")


def _estimate(r: float, factor: float, x: Floats, freedom: int, method: str) -> JudgeFigure:
    """Return ``r`` with the interval ``tanh(atanh r ± z sqrt(factor / freedom))`` and its p-value, unless ``r`` is ±1."""
    from scipy.special import ndtr, ndtri

    figure = JudgeFigure(r, records=x.size, scores=x.size)
    if freedom < 1 or abs(r) >= 1 - 1e-12:
        return figure.within(None, method=method, otherwise=_PERFECT)
    stderr = math.sqrt(factor / freedom)
    half = float(ndtri((1 + CONFIDENCE) / 2)) * stderr
    interval = math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)
    p = 2 * float(ndtr(-abs(math.atanh(r)) / stderr))
    return figure.within(interval, method=method, otherwise=_PERFECT, p=p)


def _unusable(x: Floats, y: Floats) -> JudgeFigure | None:
    if x.size < _LEAST:
        return JudgeFigure.missing(_FEW, records=x.size, scores=x.size)
    if x.min() == x.max() or y.min() == y.max():
        return JudgeFigure.missing(_CONSTANT, records=x.size, scores=x.size)
    return None


def _standardised(values: Floats) -> Floats:
    """Center the values and scale their range to 1, which preserves the digits of nearly equal values."""
    import numpy as np

    centred = values - values.mean()
    scaled: Floats = centred / np.ptp(centred)
    return scaled


def slope(y: Floats, x: Floats) -> JudgeFigure:
    """Return the least-squares slope of ``y`` on ``x``."""
    import numpy as np
    from scipy.special import stdtr, stdtrit

    if x.size < _LEAST:
        return JudgeFigure.missing(f"fewer than {_LEAST} records were scored", records=x.size, scores=x.size)
    if x.min() == x.max():
        return JudgeFigure.missing("every text has the same length", records=x.size, scores=x.size)
    away = x - x.mean()
    squares = float(np.square(away).sum())
    value = float((away * y).sum() / squares)
    residuals = y - y.mean() - value * away
    leverage = 1 / x.size + np.square(away) / squares
    # A record with leverage 1 has no residual and carries no information about the variance.
    weighted = away * residuals / np.maximum(1 - leverage, 1e-9)
    error = float(np.square(weighted).sum()) ** 0.5 / squares
    half = float(stdtrit(x.size - 2, (1 + CONFIDENCE) / 2)) * error
    figure = JudgeFigure(value, records=x.size, scores=x.size)
    method = "least squares, HC3 errors"
    if half <= 1e-12:
        return figure.within(None, method=method, otherwise=_PERFECT)
    p = 2 * float(stdtr(x.size - 2, -abs(value) / error))
    return figure.within((value - half, value + half), method=method, otherwise=_PERFECT, p=p)
