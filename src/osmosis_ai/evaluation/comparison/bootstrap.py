"""Intervals of a mean whose rows are skewed and have no known range, as where a rare row pays much.

Student's t takes the tails for alike and held 23 to 41 % where one row in twenty pays. The bootstrap
learns each tail from the rows themselves; what no row has shown yet it can not know either, so a
warning belongs beside it.

Source:
    Efron and Tibshirani 1993, "An Introduction to the Bootstrap", section 12.5 (the bootstrap-t).
    Hall 1988, "Theoretical Comparison of Bootstrap Confidence Intervals" (why it, of all of them).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from osmosis_ai.evaluation.comparison.score_test import Inversion

if TYPE_CHECKING:
    from osmosis_ai.evaluation.statistics import Floats

RESAMPLES = 9_999


def bootstrap_t(by_row: Floats, *, confidence: float, seed: int) -> Inversion:
    """Return the bootstrap-t interval of a mean, rows drawn with replacement."""
    import numpy as np

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
