"""A curve on one line of text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_LEVELS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], *, width: int) -> str:
    """Return ``values`` as at most ``width`` bars, each the mean of its share of them, from least to greatest."""
    if not values:
        return ""
    count = min(width, len(values))
    edges = [position * len(values) // count for position in range(count + 1)]
    means = [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
    low, high = min(means), max(means)
    if high == low:
        return _LEVELS[0] * count
    top = len(_LEVELS) - 1
    return "".join(_LEVELS[round((mean - low) / (high - low) * top)] for mean in means)
