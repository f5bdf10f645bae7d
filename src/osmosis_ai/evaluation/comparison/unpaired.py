"""The difference of two runs on different rows: two independent means, each clustered by row.

Where the runs share rows this is too wide (:mod:`~osmosis_ai.evaluation.comparison.differences`).

Sources:
    Miller 2024, "Adding Error Bars to Evals", section 4.1 (two independent means, clustered errors).
    Welch 1947, "The Generalization of Student's Problem"; Satterthwaite 1946, "An Approximate
        Distribution of Estimates of Variance Components" (its degrees of freedom).
    Newcombe 1998, "Interval Estimation for the Difference between Independent Proportions", method 10.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from osmosis_ai.evaluation.comparison.differences import mean_by_row
from osmosis_ai.evaluation.comparison.numbers import Difference
from osmosis_ai.evaluation.intervals import NO_SPREAD, ONE_CLUSTER
from osmosis_ai.evaluation.statistics import CONFIDENCE

if TYPE_CHECKING:
    from osmosis_ai.evaluation.statistics import Labels, Values


def unpaired_difference(
    values_a: Values,
    rows_a: Labels,
    values_b: Values,
    rows_b: Labels,
    *,
    confidence: float = CONFIDENCE,
    scale: tuple[float, float] | None = None,
) -> Difference | None:
    """Estimate by how much the mean of B lies above that of A, the rows of either being its own.

    Each mean is that of row means with its own error ``s / sqrt(R)``; the interval is Student's with
    Satterthwaite's degrees of freedom ``(v_a + v_b)^2 / (v_a^2 / (R_a - 1) + v_b^2 / (R_b - 1))``.

    Returns:
        None when a run has no sample.

    Raises:
        ValueError: when the arguments differ in length, or a value is not finite or off the scale.
    """
    import numpy as np

    _, means_a, counts_a = mean_by_row(values_a, rows_a, scale)
    _, means_b, counts_b = mean_by_row(values_b, rows_b, scale)
    if not means_a.size or not means_b.size:
        return None
    means_a, means_b = np.sort(means_a), np.sort(means_b)
    value = float(means_b.mean()) - float(means_a.mean())
    rows, samples = means_a.size + means_b.size, int(counts_a.sum() + counts_b.sum())
    if means_a.size < 2 or means_b.size < 2:
        return Difference(value, None, None, None, None, rows, samples, reason=ONE_CLUSTER)
    variances = [float(means.var(ddof=1)) / means.size for means in (means_a, means_b)]
    if not sum(variances):
        return Difference(value, None, None, None, None, rows, samples, reason=NO_SPREAD)
    freedom = sum(variances) ** 2 / (
        variances[0] ** 2 / (means_a.size - 1) + variances[1] ** 2 / (means_b.size - 1)
    )
    from scipy.special import stdtr, stdtrit

    stderr = math.sqrt(sum(variances))
    half = float(stdtrit(freedom, (1 + confidence) / 2)) * stderr
    one_sided = float(stdtrit(freedom, confidence)) * stderr
    return Difference(
        value,
        value - half,
        value + half,
        value - one_sided,
        value + one_sided,
        rows,
        samples,
        method="welch",
        p=2 * float(stdtr(freedom, -abs(value) / stderr)),
    )
