"""How values lie: histograms, of values and of counts that somebody else made."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from osmosis_ai.ui.charts.drawing import (
    COLOURS,
    LEFT,
    RIGHT,
    WIDTH,
    PlotScale,
    SvgChart,
    grid_rows,
    plotted,
    ticks,
    title,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_BINS = 20
_HEIGHT = 120


def histograms(
    series: Sequence[tuple[str, Floats]], *, low: float, high: float, label: str, axis: str
) -> SvgChart:
    """Return a histogram for each of ``series``, one above the other on the same scales.

    Args:
        series: names and values; NaN is left out.
        low, high: what the values can be, at least and at most.
    """
    import numpy as np

    known = [(name, values[~np.isnan(values)]) for name, values in series]
    centres, edges = bins(np.concatenate([values for _, values in known]), low=low, high=high)
    counts = [(name, np.histogram(values, bins=edges)[0].tolist()) for name, values in known]
    named = [f"{centre:g}" for centre in np.round(centres, 6).tolist()]
    return _drawn(counts, edges.tolist(), named, ends=(low, high), label=label, axis=axis)


def counted_histogram(
    edges: Sequence[float], counts: Sequence[int], *, name: str, label: str, axis: str
) -> SvgChart:
    """Return the histogram of values that are counted already: ``counts[i]`` lie from ``edges[i]`` to the next edge."""
    named = [f"{left:g} to {right:g}" for left, right in pairwise(edges)]
    return _drawn([(name, counts)], edges, named, ends=(edges[0], edges[-1]), label=label, axis=axis)


def _drawn(
    counts: Sequence[tuple[str, Sequence[int]]],
    edges: Sequence[float],
    named: Sequence[str],
    *,
    ends: tuple[float, float],
    label: str,
    axis: str,
) -> SvgChart:
    shares = [[found / max(sum(each), 1) for found in each] for _, each in counts]
    most = max(max(map(max, shares)), 1e-9)
    x = PlotScale(edges[0], edges[-1], LEFT, WIDTH - RIGHT)
    parts: list[str] = []
    for place, (name, _) in enumerate(counts):
        y = PlotScale(0.0, most, place * _HEIGHT + 108.0, place * _HEIGHT + 30.0)
        parts.append(title(name, place * _HEIGHT + 18))
        parts.append(grid_rows(y, (0.0, most), lambda share: f"{share:.0%}"))
        parts.extend(
            f'<path class="fill-{place % COLOURS + 1}" d="M{x(left + 0.04 * (right - left))} {y(0)}V{y(share)}'
            f'H{x(right - 0.04 * (right - left))}V{y(0)}Z"/>'
            for (left, right), share in zip(pairwise(edges), shares[place], strict=True)
            if share > 0
        )
    bottom = float(_HEIGHT * len(counts) - 12)
    drawn = plotted(parts, x, bottom, axis, label, places=ticks(*ends))
    rows = [[text, *(f"{each[row]:,}" for _, each in counts)] for row, text in enumerate(named)]
    head = (axis.capitalize(), *(name for name, _ in counts))
    return SvgChart(label, drawn, (), head, rows)


def even_edges(low: float, high: float, parts: int) -> Floats:
    """Return the edges of ``parts`` bars of one width, each the number that people read: 0.7, not 0.7000000000000001.

    So a value that is written like an edge lies behind it.
    """
    import numpy as np

    exact: Floats = np.linspace(low, high, parts + 1)
    digits = 9 - math.floor(math.log10(max((high - low) / parts, sys.float_info.min)))
    inner = np.array([round(edge, digits) for edge in exact[1:-1].tolist()])
    edges: Floats = np.concatenate(([low], inner, [high]))
    return edges if (np.diff(edges) > 0).all() else exact


def bins(values: Floats, *, low: float, high: float) -> tuple[Floats, Floats]:
    """Return (centres, edges): one bin for each value that was given when they are few, else twenty."""
    import numpy as np

    given = np.unique(values)
    steps = np.diff(given)
    if (
        2 <= given.size <= 2 * _BINS + 1
        and np.isclose(steps / steps.min(), np.round(steps / steps.min())).all()
    ):
        step = float(steps.min())
        parts = round((high - low) / step)
        if parts <= 2 * _BINS and np.isclose((given - low) / step % 1, 0).all():
            centres: Floats = np.linspace(low, low + parts * step, parts + 1)
            limits: Floats = np.append(centres - step / 2, centres[-1] + step / 2)
            return centres, limits
    edges = even_edges(low, high, _BINS)
    middles: Floats = (edges[:-1] + edges[1:]) / 2
    return middles, edges
