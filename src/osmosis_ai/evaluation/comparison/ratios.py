"""How many times as much B costs, writes or takes as A: quantities that are positive and multiply.

Sources:
    Bland and Altman 1996, "Transformations, Means, and Confidence Intervals" (t on logs, turned back).
"""

from __future__ import annotations

import math
from dataclasses import replace

from osmosis_ai.evaluation.comparison.differences import Pairs
from osmosis_ai.evaluation.comparison.numbers import Difference
from osmosis_ai.evaluation.intervals import ONE_CLUSTER
from osmosis_ai.evaluation.statistics import CONFIDENCE

NOTHING_POSITIVE = "no row has more than nothing of it in both runs"
SAME_RATIO = "every row has the same ratio, so the variance cannot be estimated"
TOO_FEW = "too few and too different rows to rule out any ratio"
LARGEST_LOG = 700.0
"""Of the logarithm of a ratio; the ratio itself would be too large for a float."""


def ratio_of_means(pairs: Pairs, *, confidence: float = CONFIDENCE) -> Difference | None:
    """Return the ratio of the geometric means of B and A over rows where both are above 0."""
    import numpy as np

    positive = (pairs.a > 0) & (pairs.b > 0)
    logs = np.sort(np.log(pairs.b[positive]) - np.log(pairs.a[positive]))
    rows = int(logs.size)
    samples = int(pairs.a_counts[positive].sum() + pairs.b_counts[positive].sum())
    if not rows:
        return None
    warning = None
    if rows < pairs.rows:
        warning = f"{pairs.rows - rows} of {pairs.rows} rows have nothing of it in a run, and are left out"
    value = float(logs.mean())
    stderr = float(logs.std(ddof=1)) / math.sqrt(rows) if rows > 1 else None
    without_interval = Difference(
        math.exp(min(value, LARGEST_LOG)),
        None,
        None,
        None,
        None,
        rows,
        samples,
        warning=warning,
        kind="ratio",
    )
    if not stderr:
        return replace(without_interval, reason=ONE_CLUSTER if stderr is None else SAME_RATIO)
    from scipy.special import stdtr, stdtrit

    half = float(stdtrit(rows - 1, (1 + confidence) / 2)) * stderr
    if abs(value) + half > LARGEST_LOG:
        return replace(without_interval, reason=TOO_FEW)
    one_sided = float(stdtrit(rows - 1, confidence)) * stderr
    return Difference(
        math.exp(value),
        math.exp(value - half),
        math.exp(value + half),
        math.exp(value - one_sided),
        math.exp(value + one_sided),
        rows,
        samples,
        method="log-t",
        p=2 * float(stdtr(rows - 1, -abs(value) / stderr)),
        warning=warning,
        kind="ratio",
    )
