"""Curves over steps with bands, event marks and uncertain points, and sparklines.

If a curve has more points than pixel columns, the minimum and maximum of each column are drawn, which looks the
same (Jugel et al. 2014, "M4: a visualization-oriented time series data aggregation").
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from math import isfinite

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from osmosis_ai.ui import numbers
from osmosis_ai.ui.charts.drawing import (
    ChartMark,
    ChartPoint,
    ChartSeries,
    Drawing,
    PlotScale,
    SvgChart,
    Written,
    colour,
    mark,
    ticks,
)
from osmosis_ai.ui.text import visible

Floats = NDArray[np.float64]
Places = NDArray[np.int64]

_COLUMN = 2
"""Units of the drawing."""
_ALL_DRAWN = 500
"""Of a curve with more points, those that a column needs."""
_TOP, _BOTTOM = 24, 230
_FEW = 40
"""Up to so many points of a curve have a mark each; a longer one has eight in all, so that shapes tell curves apart."""
_ROWS = 100
_EVENTS = ("m-5-8h10l-5 8Z", "m-4-8h8v8h-8Z", "m0-9l4.5 4.5l-4.5 4.5l-4.5-4.5Z")


def line(
    series: Sequence[ChartSeries],
    *,
    label: str,
    axis: str,
    smoothing: float = 0.0,
    marks: Sequence[ChartMark] = (),
    hollow: str = "",
) -> SvgChart:
    """Return curves over the same axis, each by rising ``x``."""
    curves = [_numbers(each.points) for each in series]
    first, last = _ends([*(along for along, *_ in curves), np.array([each.x for each in marks])])
    drawing = Drawing.between(first, last if last > first else first + 1)
    low, high = _ends([each[1:].ravel() for each in curves])
    if low == high == 0:
        high = 1.0  # of shares and counts that are all zero none is below it
    margin = 0.04 * (high - low) or 0.5
    x, y = drawing.x, PlotScale(low - margin, high + margin, _BOTTOM, _TOP)
    drawing.grid(y, ticks(y.low, y.high), lambda value: f"{value:g}".replace("e-0", "e-"))
    shapes = dict(zip(dict.fromkeys(each.kind for each in marks), cycle(_EVENTS), strict=False))
    for each in marks:
        drawing.path("limit", f"M{x(each.x)} {_TOP}V{_BOTTOM}")
        drawing.path("event", f"M{x(each.x)} {_TOP}{shapes[each.kind]}", each.text)
    for place, (curve, (_, points)) in enumerate(zip(curves, series, strict=True)):
        _draw(drawing, place, (_placed(curve[0], x), *_placed(curve[1:], y)), points, smoothing)
    drawing.name(series)
    for kind, shape in shapes.items():
        drawing.key(kind, f'<path class="event" d="M7 11{shape}"/>')
    if hollow and any(point.hollow for each in series for point in each.points):
        drawing.key(hollow, mark(0, 7, 7, hollow=True))
    rows, notes = _table(series, axis, hollow)
    notes += [f"{each.kind} at {axis} {each.x:g}: {each.text}" for each in marks]
    head = (axis.capitalize(), *(each.name for each in series))
    # What is counted has no halves, however few points there are.
    whole = [place for place in ticks(x.low, x.high) if place.is_integer()]
    return drawing.chart(label, axis, _BOTTOM, head, rows, notes=notes, places=whole, is_pointed_at=True)


def sparkline(
    values: Sequence[float | None], *, label: str = "trend", number: Written = numbers.number
) -> Markup:
    """Return values in the room of a word, the last with a dot; "" for fewer than two."""
    known = [(place, value) for place, value in enumerate(values) if value is not None and isfinite(value)]
    if len(known) < 2:
        return Markup("")
    heights = [value for _, value in known]
    x = PlotScale(0, len(values) - 1, 3, 77)
    y = PlotScale(min(heights), max(heights), 17, 3)
    joined = " ".join(f"{x(place)} {y(value) if y.high > y.low else '10'}" for place, value in known)
    last_x, last_y = joined.split(" ")[-2:]
    said = escape(visible(f"{label}: {', '.join(number(value) for value in values)}"))
    return Markup(
        f'<svg class="spark" viewBox="0 0 80 20" role="img" aria-label="{said}"><path class="line-1" d="M{joined}"/>'
        f'<path class="fill-1" d="M{last_x} {last_y}m-2.5 0a2.5 2.5 0 1 0 5 0a2.5 2.5 0 1 0-5 0Z"/></svg>'
    )


def _numbers(points: Sequence[ChartPoint]) -> Floats:
    """Return points' places, their numbers, and both ends of their intervals, a row each; NaN for what there is not."""
    # A float of None is NaN here; infinity has no place on a drawing either.
    found: Floats = np.array([point[:4] for point in points], dtype=np.float64).reshape(-1, 4).T
    found[~np.isfinite(found)] = np.nan
    return found


def _placed(values: Floats, scale: PlotScale) -> Floats:
    """Return where numbers lie on the drawing, in its units."""
    return np.interp(values, (scale.low, scale.high), (scale.first, scale.last))


def _ends(values: Sequence[Floats]) -> tuple[float, float]:
    known = np.concatenate([np.empty(0), *values])
    known = known[np.isfinite(known)]
    return (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)


def _draw(
    drawing: Drawing, place: int, curve: Sequence[Floats], points: Sequence[ChartPoint], smoothing: float
) -> None:
    """Add a curve in units of the drawing: its band, its raw line, the smooth one over it, and its marks."""
    along, raw, low, high = curve
    shown, runs = _smooth(raw, smoothing), _runs(raw)
    bands = [_band(along[run], low[run], high[run]) for run in _runs(low + high)]
    drawing.path(f"band-{colour(place)}", "".join(bands))
    for kind, up in ((" raw", raw), ("", shown)) if smoothing else (("", shown),):
        drawing.path(f"line-{colour(place)}{kind}", "".join(_polyline(along[run], up[run]) for run in runs))
    known = np.flatnonzero(np.isfinite(raw)).tolist()
    marked = known if len(known) <= _FEW else known[:: -(-len(known) // 8)]
    for each in sorted({*marked, *(each for each in known if points[each].hollow)}):
        drawing.mark(place, along[each], shown[each], hollow=points[each].hollow)


def _smooth(values: Floats, weight: float) -> Floats:
    """Return the exponential moving average with decay ``weight``, ignoring NaN.

    Uses the bias correction of Kingma and Ba 2015, "Adam", section 3.
    """
    smooth, total, mass = np.full_like(values, np.nan), 0.0, 0.0
    for place, value in enumerate(values.tolist()):
        if value == value:
            total, mass = total * weight + value, mass * weight + 1.0
            smooth[place] = total / mass
    return smooth


def _runs(values: Floats) -> list[Places]:
    """Return the places of values that there are, in pieces without a gap."""
    known = np.flatnonzero(np.isfinite(values))
    return [run for run in np.split(known, np.flatnonzero(np.diff(known) > 1) + 1) if run.size]


def _starts(along: Floats) -> Places:
    """Return where a new column of the drawing begins; of so few points that each is drawn all."""
    if along.size <= _ALL_DRAWN:
        return np.arange(along.size)
    return np.flatnonzero(np.diff(along // _COLUMN, prepend=-1))


def _polyline(along: Floats, up: Floats) -> str:
    starts, last = _starts(along), along.size - 1
    columns = np.searchsorted(starts, np.arange(along.size), side="right")
    order = np.lexsort((up, columns))
    ends = np.append(starts[1:] - 1, last)
    drawn = np.unique(np.concatenate([order[starts], order[ends], [0, last]]))
    # A round cap makes a dot of a point that has no neighbour.
    return _steps(along[drawn], up[drawn]) + ("h0" if drawn.size == 1 else "")


def _band(along: Floats, low: Floats, high: Floats) -> str:
    starts = _starts(along)
    columns = along[starts]
    # Down the drawing its units grow.
    lower, upper = np.maximum.reduceat(low, starts), np.minimum.reduceat(high, starts)
    return _steps(np.append(columns, columns[::-1]), np.append(upper, lower[::-1])) + "Z"


def _steps(along: Floats, up: Floats) -> str:
    """Return a path through points, each from the one before in tenths of a pixel: the shortest way to write it."""
    tenths = np.round(np.stack([along, up], axis=1) * 10)
    steps = np.diff(tenths, axis=0).astype(np.int64).ravel().tolist()
    written = "".join(_tenths(step) for step in steps)
    return "M{:g} {:g}".format(*tenths[0] / 10) + (f"l{written}" if written else "")


def _tenths(step: int) -> str:
    """Return a number of tenths as a path takes it: a sign parts it from the one before, else a blank."""
    whole, tenth = divmod(abs(step), 10)
    return ("-" if step < 0 else " ") + (f"{whole or ''}.{tenth}" if tenth else str(whole))


def _table(series: Sequence[ChartSeries], axis: str, hollow: str) -> tuple[list[list[str]], list[str]]:
    """Return a row for each place of the axis, of many a hundred, and what is left out."""
    places = sorted({point.x for each in series for point in each.points})
    listed, notes = places, []
    if len(places) > _ROWS:
        listed = [places[round(row * (len(places) - 1) / (_ROWS - 1))] for row in range(_ROWS)]
        notes = [f"The table has {_ROWS} of {len(places):,} places of {axis}."]
    found = [{point.x: point for point in each.points} for each in series]
    rows = [[f"{x:g}", *(_written(each.get(x), hollow) for each in found)] for x in listed]
    return rows, notes


def _written(point: ChartPoint | None, hollow: str) -> str:
    if point is None:
        return ""
    between = " ({} to {})".format(*map(numbers.compact, point.interval)) if point.interval else ""
    over = "" if point.over is None else f" over {point.over:,}"
    return f"{numbers.compact(point.y)}{between}{over}" + (f", {hollow}" if point.hollow and hollow else "")
