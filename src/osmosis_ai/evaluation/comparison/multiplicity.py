"""p-values of several questions asked at once.

Candidates against one baseline take Holm: the chance of any false "better" stays below the level.
Slices take Benjamini and Hochberg: at most that share of the slices called different is false.

Sources:
    Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure".
    Benjamini and Hochberg 1995, "Controlling the False Discovery Rate".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from osmosis_ai.evaluation.statistics import Floats


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Return each p-value adjusted so that any false discovery is rarer than the level; None stays None."""
    import numpy as np

    def adjusted(ordered: Floats) -> Floats:
        return np.maximum.accumulate(ordered * np.arange(ordered.size, 0, -1))

    return _adjust(ps, adjusted)


def benjamini_hochberg(ps: Sequence[float | None]) -> list[float | None]:
    """Return each p-value adjusted so that the share of false discoveries is below the level; None stays
    None."""
    import numpy as np

    def adjusted(ordered: Floats) -> Floats:
        raised = ordered * ordered.size / np.arange(1, ordered.size + 1)
        return np.minimum.accumulate(raised[::-1])[::-1]

    return _adjust(ps, adjusted)


def _adjust(ps: Sequence[float | None], by: Callable[[Floats], Floats]) -> list[float | None]:
    import numpy as np

    known = [place for place, p in enumerate(ps) if p is not None]
    found = np.array([p for p in ps if p is not None], dtype=np.float64)
    order = np.argsort(found, kind="stable")
    adjusted: list[float | None] = [None] * len(ps)
    for place, p in zip(order, np.minimum(by(found[order]), 1.0), strict=True):
        adjusted[known[place]] = float(p)
    return adjusted
