"""Histograms of values and of counts, and a waterfall of durations."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from osmosis_ai.ui import numbers
from osmosis_ai.ui.charts.drawing import Drawing, PlotScale, SvgChart, TimeSpan, colour, ticks
from osmosis_ai.ui.text import visible

Floats = NDArray[np.float64]
_BINS = 20
_HEIGHT = 120
_NAMES = 150
_ROW = 18
_MOST = 200


def histograms(
    series: Sequence[tuple[str, Floats]], *, low: float, high: float, label: str, axis: str
) -> SvgChart:
    """Return a histogram for each of ``series``, one above the other on the same scales."""
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
    drawing = Drawing.between(edges[0], edges[-1])
    x = drawing.x
    for place, (name, _) in enumerate(counts):
        top = place * _HEIGHT
        y = PlotScale(0.0, most, top + 108, top + 30)
        drawing.title(name, top + 18)
        drawing.grid(y, (0.0, most), lambda share: f"{share:.0%}")
        for (left, right), share in zip(pairwise(edges), shares[place], strict=True):
            gap = 0.04 * (right - left)
            if share > 0:
                bar = f"M{x(left + gap)} {y(0)}V{y(share)}H{x(right - gap)}V{y(0)}Z"
                drawing.path(f"fill-{colour(place)}", bar)
    rows = [[text, *(f"{each[row]:,}" for _, each in counts)] for row, text in enumerate(named)]
    head = (axis.capitalize(), *(name for name, _ in counts))
    return drawing.chart(label, axis, _HEIGHT * len(counts) - 12, head, rows, places=ticks(*ends))


def even_edges(low: float, high: float, parts: int) -> Floats:
    """Return the edges of ``parts`` equal bars, rounded for display: 0.7, not 0.7000000000000001."""
    exact: Floats = np.linspace(low, high, parts + 1)
    digits = 9 - math.floor(math.log10(max((high - low) / parts, sys.float_info.min)))
    inner = np.array([round(edge, digits) for edge in exact[1:-1].tolist()])
    edges: Floats = np.concatenate(([low], inner, [high]))
    return edges if (np.diff(edges) > 0).all() else exact


def bins(values: Floats, *, low: float, high: float) -> tuple[Floats, Floats]:
    """Return (centres, edges): one bin for each value that was given when they are few, else twenty."""
    given = np.unique(values)
    if 2 <= given.size <= 2 * _BINS + 1:
        step = float(np.diff(given).min())
        parts = round((high - low) / step)
        if parts <= 2 * _BINS and np.isclose((given - low) / step % 1, 0).all():
            centres: Floats = np.linspace(low, low + parts * step, parts + 1)
            return centres, np.append(centres - step / 2, centres[-1] + step / 2)
    edges = even_edges(low, high, _BINS)
    return (edges[:-1] + edges[1:]) / 2, edges


def waterfall(spans: Sequence[TimeSpan], *, label: str) -> SvgChart:
    """Return a row for each of ``spans``, of the first 200; one whose times are not known stands in the table alone."""
    timed = [each for each in spans if math.isfinite(each.start_ms + each.duration_ms)]
    end_s = max((each.start_ms + each.duration_ms for each in timed), default=1.0) / 1000 or 1e-3
    drawing, drawn = Drawing.between(0.0, end_s, left=_NAMES), timed[:_MOST]
    kinds = dict.fromkeys(each.kind for each in spans)
    fills = {kind: f"fill-{colour(place)}" for place, kind in enumerate(kinds)}
    for kind, fill in fills.items():
        drawing.key(kind, f'<path class="{fill}" d="M1 2h12v10h-12Z"/>')
    for row, each in enumerate(drawn):
        y = row * _ROW
        left = drawing.x.place(each.start_ms / 1000)
        # At least a pixel: what was quick happened as well.
        width = max(drawing.x.place((each.start_ms + each.duration_ms) / 1000) - left, 1.0)
        drawing.text("tick end", _NAMES - 8, y + 13, visible(each.name)[:22])
        bar = f"M{left:.1f} {y + 3}h{width:.1f}v12h{-width:.1f}Z"
        drawing.path(fills[each.kind], bar, f"{each.name}: {_written(each.duration_ms)}, {each.kind}")
    head = ("What", "Kind", "Began after", "Took")
    rows = [[each.name, each.kind, _written(each.start_ms), _written(each.duration_ms)] for each in spans]
    notes = [f"The drawing has the first {_MOST} of {len(timed):,}."] if len(timed) > _MOST else []
    return drawing.chart(label, "seconds", _ROW * len(drawn) + 4, head, rows, notes=notes)


def _written(ms: float) -> str:
    return numbers.NOT_RECORDED if math.isnan(ms) else numbers.duration(ms / 1000)
