"""Correlations with their intervals, on values without gaps.

Sources:
    Fisher 1921, "On the 'Probable Error' of a Coefficient of Correlation" (Pearson, by SciPy);
        Fisher 1924, "The Distribution of the Partial Correlation Coefficient" (one degree of
        freedom less for each variable that is held fixed).
    Bonett and Wright 2000, "Sample Size Requirements for Estimating Pearson, Kendall and Spearman
        Correlations" (the factor 1 + r^2/2 for ranks).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from osmosis_ai.rubric.estimate import CONFIDENCE, TrustEstimate

if TYPE_CHECKING:
    from osmosis_ai.rubric.scores import Floats

_LEAST = 4
_FEW = f"fewer than {_LEAST} records to compare"
_CONSTANT = "what is compared is the same for every record"
_PERFECT = "no interval: the records lie on one line"
_FISHER = "Fisher z"
_RANKS = "Fisher z for ranks (Bonett and Wright)"


def pearson(x: Floats, y: Floats) -> TrustEstimate:
    """Return Pearson's correlation of two variables with Fisher's interval (``scipy.stats.pearsonr``)."""
    from scipy.stats import pearsonr

    missing = _unusable(x, y)
    if missing is not None:
        return missing
    found = pearsonr(_standardised(x), _standardised(y))
    bounds = found.confidence_interval(CONFIDENCE)
    interval = (float(bounds.low), float(bounds.high))
    figure = TrustEstimate(float(found.statistic), records=x.size, scores=x.size)
    return figure.within(interval if interval[0] < interval[1] else None, method=_FISHER, otherwise=_PERFECT)


def partial(x: Floats, y: Floats, fixed: Floats) -> TrustEstimate:
    """Return the correlation of two variables with a third held fixed."""
    import numpy as np

    missing = _unusable(x, y) or _unusable(x, fixed)
    if missing is not None:
        return missing
    found = np.corrcoef([_standardised(variable) for variable in (x, y, fixed)])
    left = (1 - found[0, 2] ** 2) * (1 - found[1, 2] ** 2)
    if left <= 1e-12:
        return TrustEstimate.missing("it cannot be told apart from the score given by people", records=x.size)
    r = min(1.0, max(-1.0, float((found[0, 1] - found[0, 2] * found[1, 2]) / math.sqrt(left))))
    return _estimate(r, 1.0, x, x.size - 4, _FISHER)


def spearman(x: Floats, y: Floats) -> TrustEstimate:
    """Return Spearman's rank correlation (``scipy.stats.spearmanr``) of two variables.

    The interval is ``tanh(atanh r ± z sqrt((1 + r^2/2) / (n - 3)))`` (Bonett and Wright 2000).
    """
    from scipy.stats import spearmanr

    missing = _unusable(x, y)
    if missing is not None:
        return missing
    r = min(1.0, max(-1.0, float(spearmanr(x, y).statistic)))
    return _estimate(r, 1 + r * r / 2, x, x.size - 3, _RANKS)


def _estimate(r: float, factor: float, x: Floats, freedom: int, method: str) -> TrustEstimate:
    """Return ``r`` with the interval ``tanh(atanh r ± z sqrt(factor / freedom))`` and its p-value, unless ``r`` is ±1."""
    from scipy.special import ndtr, ndtri

    figure = TrustEstimate(r, records=x.size, scores=x.size)
    if freedom < 1 or abs(r) >= 1 - 1e-12:
        return figure.within(None, method=method, otherwise=_PERFECT)
    stderr = math.sqrt(factor / freedom)
    half = float(ndtri((1 + CONFIDENCE) / 2)) * stderr
    interval = math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)
    p = 2 * float(ndtr(-abs(math.atanh(r)) / stderr))
    return figure.within(interval, method=method, otherwise=_PERFECT, p=p)


def _unusable(x: Floats, y: Floats) -> TrustEstimate | None:
    if x.size < _LEAST:
        return TrustEstimate.missing(_FEW, records=x.size, scores=x.size)
    if x.min() == x.max() or y.min() == y.max():
        return TrustEstimate.missing(_CONSTANT, records=x.size, scores=x.size)
    return None


def _standardised(values: Floats) -> Floats:
    """Return the values centred, with a range of 1: nearly equal values keep their digits."""
    import numpy as np

    centred = values - values.mean()
    scaled: Floats = centred / np.ptp(centred)
    return scaled
