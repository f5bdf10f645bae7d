"""Curves over steps: a line with its band, what happened on the way, points that stand on too little; sparklines.

A drawing is some hundred pixels wide. Of a curve with more points than it has columns, the least and the greatest of
each column are drawn, which looks the same (Jugel et al. 2014, "M4: a visualization-oriented time series data
aggregation").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup, escape

from osmosis_ai.ui import numbers
from osmosis_ai.ui.charts.drawing import (
    COLOURS,
    LEFT,
    RIGHT,
    WIDTH,
    ChartPoint,
    ChartSeries,
    PlotScale,
    SvgChart,
    event,
    grid_rows,
    legend,
    mark,
    plotted,
    ticks,
)
from osmosis_ai.ui.text import visible

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Places = NDArray[np.int64]

_COLUMNS = 250
_TOP, _BOTTOM = 24.0, 230.0
_FEW = 40
"""Up to so many points of a curve have a mark each; a longer one has eight in all, so that shapes tell curves apart."""
_ROWS = 100


class ChartMark(NamedTuple):
    """What happened at a place of the axis; equal kinds have equal shapes."""

    x: float
    kind: str
    text: str


def line(
    series: Sequence[ChartSeries],
    *,
    label: str,
    axis: str,
    number: Callable[[float | None], str] = numbers.number,
    band: bool = True,
    smoothing: float = 0.0,
    marks: Sequence[ChartMark] = (),
    hollow: str = "",
) -> SvgChart:
    """Return curves over the same axis, each by rising ``x``.

    Args:
        axis: what ``x`` counts.
        number: how a number is written in the table.
        band: whether intervals are drawn.
        smoothing: from 0 (none) to below 1, how much of what came before a point has; the raw line stays, paler.
        marks: what happened on the way.
        hollow: what a hollow point means.
    """
    arrays = [_arrays(each.points) for each in series]
    x, y = _scales(arrays, marks, band=band)
    parts = [grid_rows(y, ticks(y.low, y.high), lambda value: f"{value:g}".replace("e-0", "e-"))]
    kinds = list(dict.fromkeys(each.kind for each in marks))
    parts += [event(kinds.index(each.kind), x.place(each.x), _TOP, _BOTTOM, each.text) for each in marks]
    for place, (found, each) in enumerate(zip(arrays, series, strict=True)):
        parts += _curve(place, found, each.points, x, y, band=band, smoothing=smoothing)
    # What is counted has no halves, however few points there are.
    whole = [place for place in ticks(x.low, x.high) if place.is_integer()]
    drawn = plotted(parts, x, _BOTTOM, axis, label, places=whole, is_pointed_at=True)
    rows, notes = _table(series, axis, number, hollow)
    notes += [f"{each.kind} at {axis} {each.x:g}: {each.text}" for each in marks]
    keys = legend(
        series, kinds, hollow if any(point.hollow for each in series for point in each.points) else ""
    )
    head = (axis.capitalize(), *(each.name for each in series))
    return SvgChart(label, drawn, keys, head, rows, notes)


def sparkline(
    values: Sequence[float | None],
    *,
    label: str = "trend",
    number: Callable[[float | None], str] = numbers.number,
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


class _Curve(NamedTuple):
    """A curve's numbers, NaN for what there is not."""

    x: Floats
    y: Floats
    low: Floats
    high: Floats


def _arrays(points: Sequence[ChartPoint]) -> _Curve:
    import numpy as np

    # A float of None is NaN here; infinity has no place on a drawing either.
    found = np.array([point[:4] for point in points], dtype=np.float64).reshape(-1, 4)
    found[~np.isfinite(found)] = np.nan
    return _Curve(*found.T)


def _scales(
    curves: Sequence[_Curve], marks: Sequence[ChartMark], *, band: bool
) -> tuple[PlotScale, PlotScale]:
    import numpy as np

    nothing = np.empty(0)
    along = np.concatenate([nothing, *(each.x for each in curves), [each.x for each in marks]])
    up = np.concatenate([nothing, *(part for each in curves for part in (each[1:] if band else each[1:2]))])
    (first, last), (low, high) = _ends(along), _ends(up)
    if low == high == 0:
        high = 1.0  # of shares and counts that are all zero none is below it
    margin = 0.04 * (high - low) or 0.5
    return (
        PlotScale(first, last if last > first else first + 1, LEFT, WIDTH - RIGHT),
        PlotScale(low - margin, high + margin, _BOTTOM, _TOP),
    )


def _ends(values: Floats) -> tuple[float, float]:
    import numpy as np

    known = values[np.isfinite(values)]
    return (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)


def _curve(
    place: int,
    curve: _Curve,
    points: Sequence[ChartPoint],
    x: PlotScale,
    y: PlotScale,
    *,
    band: bool,
    smoothing: float,
) -> Iterator[str]:
    """Yield a curve's band, its raw line, the smooth one over it, and its marks."""
    import numpy as np

    colour = place % COLOURS + 1
    shown = _smooth(curve.y, smoothing) if smoothing else curve.y
    if band:
        yield _path(f"band-{colour}", [_band(curve, run, x, y) for run in _runs(curve.low + curve.high)])
    if smoothing:
        yield _path(f"line-{colour} raw", [_polyline(curve.x, curve.y, run, x, y) for run in _runs(curve.y)])
    yield _path(f"line-{colour}", [_polyline(curve.x, shown, run, x, y) for run in _runs(curve.y)])
    known = np.flatnonzero(np.isfinite(curve.y)).tolist()
    marked = known if len(known) <= _FEW else known[:: -(-len(known) // 8)]
    for each in sorted({*marked, *(each for each in known if points[each].hollow)}):
        yield mark(place, x.place(curve.x[each]), y.place(shown[each]), hollow=points[each].hollow)


def _smooth(values: Floats, weight: float) -> Floats:
    """Return the moving average that weighs a step back ``weight`` times as much, over what there is.

    With the correction for its start at zero of Kingma and Ba 2015, "Adam", section 3. NaN is passed over.
    """
    import numpy as np

    smooth, total, mass = np.full_like(values, np.nan), 0.0, 0.0
    for place, value in enumerate(values.tolist()):
        if value == value:
            total, mass = total * weight + value, mass * weight + 1.0
            smooth[place] = total / mass
    return smooth


def _runs(values: Floats) -> list[Places]:
    """Return the places of values that there are, in pieces without a gap."""
    import numpy as np

    known = np.flatnonzero(np.isfinite(values))
    return [run for run in np.split(known, np.flatnonzero(np.diff(known) > 1) + 1) if run.size]


def _starts(along: Floats, x: PlotScale) -> Places | None:
    """Return where a new column of the drawing begins; None for so few points that each is drawn."""
    import numpy as np

    if along.size <= 2 * _COLUMNS:
        return None
    columns = ((along - x.low) / (x.high - x.low) * (_COLUMNS - 1)).astype(np.int64)
    return np.append(0, np.flatnonzero(np.diff(columns)) + 1)


def _polyline(along: Floats, up: Floats, run: Places, x: PlotScale, y: PlotScale) -> str:
    import numpy as np

    starts = _starts(along[run], x)
    if starts is not None:
        columns = np.repeat(np.arange(starts.size), np.diff(np.append(starts, run.size)))
        order = np.lexsort((up[run], columns))
        ends = np.append(starts[1:], run.size) - 1
        run = run[np.unique(np.concatenate([order[starts], order[ends], [0, run.size - 1]]))]
    # A round cap makes a dot of a point that has no neighbour.
    return _steps(along[run], up[run], x, y) + ("h0" if run.size == 1 else "")


def _band(curve: _Curve, run: Places, x: PlotScale, y: PlotScale) -> str:
    import numpy as np

    along, low, high = curve.x[run], curve.low[run], curve.high[run]
    starts = _starts(along, x)
    if starts is not None:
        along = along[starts]
        low, high = np.minimum.reduceat(low, starts), np.maximum.reduceat(high, starts)
    return _steps(np.append(along, along[::-1]), np.append(high, low[::-1]), x, y) + "Z"


def _steps(along: Floats, up: Floats, x: PlotScale, y: PlotScale) -> str:
    """Return a path through points, each from the one before in tenths of a pixel: the shortest way to write it."""
    import numpy as np

    places = [
        np.round(
            (scale.first + (values - scale.low) / (scale.high - scale.low) * (scale.last - scale.first)) * 10
        )
        for scale, values in ((x, along), (y, up))
    ]
    steps = np.diff(np.stack(places, axis=1), axis=0).astype(np.int64).ravel().tolist()
    written = "".join(_tenths(step) for step in steps)
    return f"M{places[0][0] / 10:g} {places[1][0] / 10:g}" + (f"l{written}" if written else "")


def _tenths(step: int) -> str:
    """Return a number of tenths as a path takes it: a sign parts it from the one before, else a blank."""
    whole, tenth = divmod(abs(step), 10)
    return ("-" if step < 0 else " ") + (f"{whole or ''}.{tenth}" if tenth else str(whole))


def _path(kind: str, pieces: Sequence[str]) -> str:
    return f'<path class="{kind}" d="{"".join(pieces)}"/>' if pieces else ""


def _table(
    series: Sequence[ChartSeries], axis: str, number: Callable[[float | None], str], hollow: str
) -> tuple[list[list[str]], list[str]]:
    """Return a row for each place of the axis, of many a hundred, and what is left out."""
    places = sorted({point.x for each in series for point in each.points})
    listed, notes = places, []
    if len(places) > _ROWS:
        listed = [places[round(row * (len(places) - 1) / (_ROWS - 1))] for row in range(_ROWS)]
        notes = [f"The table has {_ROWS} of {len(places):,} places of {axis}."]
    found = [{point.x: point for point in each.points} for each in series]
    rows = [[f"{x:g}", *(_written(each.get(x), number, hollow) for each in found)] for x in listed]
    return rows, notes


def _written(point: ChartPoint | None, number: Callable[[float | None], str], hollow: str) -> str:
    if point is None:
        return ""
    between = f" ({number(point.low)} to {number(point.high)})" if None not in (point.low, point.high) else ""
    over = "" if point.over is None else f" over {point.over:,}"
    return f"{number(point.y)}{between}{over}" + (f", {hollow}" if point.hollow and hollow else "")
