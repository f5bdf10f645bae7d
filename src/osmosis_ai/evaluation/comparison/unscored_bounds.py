"""What a difference could be had every unscored attempt a score: the worst for B, then the best.

An attempt that failed to be scored is left out of the primary number, which takes for granted that it
would have scored like the others. Nothing in the data says so. These bounds hold whatever it would
have scored; a verdict that one of them reverses is not one.

Source:
    Manski 1990, "Nonparametric Bounds on Treatment Effects" (worst and best case of missing outcomes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from osmosis_ai.evaluation.comparison.differences import Pairs, mean_difference
from osmosis_ai.evaluation.comparison.numbers import Difference
from osmosis_ai.evaluation.statistics import CONFIDENCE

if TYPE_CHECKING:
    from osmosis_ai.evaluation.statistics import Labels, Values


@dataclass(frozen=True, slots=True)
class UnscoredBounds:
    """The difference at either extreme of what was not scored.

    Attributes:
        worst: every unscored attempt of A at the best value, every one of B at the worst.
        best: the other way round.
        unscored_a, unscored_b: how many attempts that are.
    """

    worst: Difference
    best: Difference
    unscored_a: int
    unscored_b: int


def worst_and_best(
    values_a: Values,
    rows_a: Labels,
    values_b: Values,
    rows_b: Labels,
    *,
    scale: tuple[float, float],
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> UnscoredBounds | None:
    """Return the difference with everything unscored against B, then in its favour.

    Args:
        values_a, values_b: one number per attempt of either run; NaN is unscored.
        rows_a, rows_b: the row of each, by labels that both share.
        scale: the worst and the best value.
        confidence, seed: as for the difference.

    Returns:
        None when the runs have no row in common.
    """
    import numpy as np

    a, b = np.asarray(values_a, dtype=np.float64), np.asarray(values_b, dtype=np.float64)
    missing_a, missing_b = np.isnan(a), np.isnan(b)
    least, most = scale

    def with_unscored(at_a: float, at_b: float) -> Difference | None:
        pairs = Pairs.of(
            np.where(missing_a, at_a, a), rows_a, np.where(missing_b, at_b, b), rows_b, scale=scale
        )
        return None if pairs is None else mean_difference(pairs, confidence=confidence, seed=seed)

    worst, best = with_unscored(most, least), with_unscored(least, most)
    if worst is None or best is None:
        return None
    return UnscoredBounds(worst, best, int(missing_a.sum()), int(missing_b.sum()))
