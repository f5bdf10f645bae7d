"""What a difference could be had every unscored attempt a score: the worst for B, then the best.

An attempt that failed to be scored is left out of the primary number, which takes for granted that it
would have scored like the others. Nothing in the data says so. These bounds hold whatever it would
have scored; a verdict that one of them reverses is not one.

Source:
    Manski 1990, "Nonparametric Bounds on Treatment Effects" (worst and best case of missing outcomes).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from osmosis_ai.evaluation.comparison.numbers import Difference


@dataclass(frozen=True, slots=True)
class UnscoredBounds:
    """The difference at either extreme of what was not scored."""

    worst: Difference
    best: Difference
    unscored_a: int
    unscored_b: int


def worst_and_best(
    difference: Callable[[float, float], Difference | None],
    *,
    scale: tuple[float, float],
    unscored: tuple[int, int],
) -> UnscoredBounds | None:
    """Return the difference with everything unscored against B, then in its favour."""
    least, most = scale
    worst, best = difference(most, least), difference(least, most)
    return None if worst is None or best is None else UnscoredBounds(worst, best, *unscored)
