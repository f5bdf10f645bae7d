"""How much one judge's scores of one record vary from call to call."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from osmosis_ai.rubric import resampling
from osmosis_ai.rubric.estimate import TrustEstimate

if TYPE_CHECKING:
    from osmosis_ai.rubric.scores import Floats

_ONCE = "each record was scored once"
_NEVER_TWICE = "no record has two scores of this judge"
_EXACT = "every record got the same score each time"


@dataclass(frozen=True, slots=True)
class Spread:
    """The spread of repeated scores."""

    within: TrustEstimate
    unchanged: TrustEstimate
    median_range: float | None
    p95_range: float | None
    max_range: float | None


def measure_spread(scores: Floats, *, seed: int = 0) -> Spread:
    """Return how far repeated scores of a record lie apart."""
    import numpy as np

    known = ~np.isnan(scores)
    counts = known.sum(axis=1)
    repeated = counts >= 2
    scores, known, counts = scores[repeated], known[repeated], counts[repeated]
    records, total = int(repeated.sum()), int(counts.sum())
    if records == 0:
        missing = TrustEstimate.missing(_ONCE if scores.shape[1] < 2 else _NEVER_TWICE)
        return Spread(missing, missing, None, None, None)
    ranges = score_ranges(scores)
    means = np.where(known, scores, 0.0).sum(axis=1) / counts
    squares = np.square(np.where(known, scores - means[:, None], 0.0)).sum(axis=1)
    sums = np.column_stack((squares, (counts - 1).astype(np.float64)))
    within = TrustEstimate(math.sqrt(squares.sum() / sums[:, 1].sum()), records=records, scores=total)
    interval = resampling.bootstrap_interval(sums, _pooled_deviation, seed=seed)
    method, otherwise = resampling.METHOD, resampling.TOO_FEW if squares.any() else _EXACT
    return Spread(
        within.within(interval, method=method, otherwise=otherwise),
        replace(TrustEstimate.of_rate(ranges == 0), scores=total),
        *(float(value) for value in np.quantile(ranges, (0.5, 0.95, 1.0))),
    )


def score_ranges(scores: Floats) -> Floats:
    """Return the greatest minus the least score along the last axis; 0 with one, NaN without any."""
    import numpy as np

    known = ~np.isnan(scores)
    highest = np.where(known, scores, -np.inf).max(axis=-1)
    lowest = np.where(known, scores, np.inf).min(axis=-1)
    scored = known.any(axis=-1)
    ranges: Floats = np.full(scored.shape, np.nan)
    ranges[scored] = highest[scored] - lowest[scored]
    return ranges


def _pooled_deviation(totals: Floats) -> Floats:
    import numpy as np

    deviations: Floats = np.sqrt(totals[:, 0] / totals[:, 1])
    return deviations
