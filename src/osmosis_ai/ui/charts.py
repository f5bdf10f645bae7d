"""SVG charts without scripts or ``style`` attributes, each with a table of its numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import cycle, pairwise
from math import ceil, floor, isfinite, isnan, log10, sqrt
from typing import NamedTuple

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from osmosis_ai.training.runs.curves import CurveMark, CurveValue, ViewedCurve
from osmosis_ai.ui import numbers
from osmosis_ai.ui.text import visible

WIDTH, LEFT, RIGHT = 560, 60, 14
_COLOURS = 7
"""Number of colours in the style sheet; the eighth series repeats the first with another shape."""

_LONGEST = 52
"""Longest title, in characters; titles are larger in a small window."""
Written = Callable[[float | None], str]


class ChartPoint(NamedTuple):
    x: float
    y: float
    low: float | None = None
    high: float | None = None
    over: int | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)


class ChartSeries(NamedTuple):
    name: str
    points: Sequence[ChartPoint]


class TimeSpan(NamedTuple):
    name: str
    kind: str
    start_ms: float
    duration_ms: float


class SvgChart(NamedTuple):
    label: str
    svg: Markup
    legend: Sequence[tuple[str, Markup]]
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


class PlotScale(NamedTuple):
    low: float
    high: float
    first: float
    last: float

    def __call__(self, value: float) -> str:
        return f"{self.place(value):.1f}"

    def place(self, value: float) -> float:
        inside = min(max(value, self.low), self.high) - self.low
        return self.first + inside / (self.high - self.low or 1.0) * (self.last - self.first)


class Drawing:
    def __init__(self, low: float, high: float, *, left: float = LEFT) -> None:
        self.x = PlotScale(low, high, left, WIDTH - RIGHT)
        self._parts: list[str] = []
        self._legend: list[tuple[str, Markup]] = []

    def path(self, kind: str, d: str, said: str = "") -> None:
        inside = f"><title>{escape(visible(said))}</title></path>" if said else "/>"
        if d:
            self._parts.append(f'<path class="{kind}" d="{d}"{inside}')

    def text(self, kind: str, x: float | str, y: float | str, said: str) -> None:
        self._parts.append(f'<text class="{kind}" x="{x}" y="{y}">{escape(visible(said))}</text>')

    def title(self, name: str, y: int) -> None:
        """Add a title; one that is too long keeps its end, which distinguishes models."""
        shown = visible(name)
        self.text("title", LEFT, y, shown if len(shown) <= _LONGEST else f"…{shown[-_LONGEST:]}")

    def grid(self, y: PlotScale, values: Sequence[float], written: Callable[[float], str]) -> None:
        for value in values:
            self.path("grid", f"M{LEFT} {y(value)}H{WIDTH - RIGHT}")
            self.text("tick end", LEFT - 6, f"{y.place(value) + 4:.1f}", written(value))

    def mark(self, place: int, x: float, y: float, *, hollow: bool = False, size: float = 1) -> None:
        self._parts.append(mark(place, x, y, hollow=hollow, size=size))

    def key(self, name: str, drawn: str) -> None:
        shown = Markup(f'<svg viewBox="0 0 14 14" aria-hidden="true">{drawn}</svg>')
        self._legend.append((name, shown))

    def chart(
        self,
        label: str,
        axis: str,
        bottom: int,
        head: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        notes: Sequence[str] = (),
        places: Sequence[float] | None = None,
        is_pointed_at: bool = False,
    ) -> SvgChart:
        x = self.x
        places = ticks(x.low, x.high) if places is None else places
        ends = "".join(f"M{x(place)} {bottom}v5" for place in places)
        self.path("grid", f"M{LEFT} {bottom}H{WIDTH - RIGHT}{ends}")
        for place in places:
            self.text("tick middle", x(place), bottom + 18, f"{place:g}")
        self.text("axis middle", (LEFT + WIDTH - RIGHT) // 2, bottom + 36, axis)
        along = f' data-x="{x.low:g} {x.high:g} {x.first:g} {x.last:g}"' if is_pointed_at else ""
        svg = Markup(
            f'<svg viewBox="0 0 {WIDTH} {bottom + 42}" role="img" aria-label="{escape(visible(label))}"{along}>'
            f"{''.join(self._parts)}</svg>"
        )
        return SvgChart(label, svg, self._legend, head, rows, notes)


def ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers from ``low`` to ``high``: steps of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / 5 or 1.0
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    # The sum takes the sign from a zero.
    return [round(place * step, 12) + 0.0 for place in range(first, last + 1)]


_OUTLINES = (
    "m-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0Z",
    "m0-6l6 6l-6 6l-6-6Z",
    "m-4.5-4.5h9v9h-9Z",
    "m0-6l5.5 10h-11Z",
    "m-2-6h4v4h4v4h-4v4h-4v-4h-4v-4h4Z",
)


def colour(place: int) -> int:
    return place % _COLOURS + 1


def mark(place: int, x: float, y: float, *, hollow: bool = False, size: float = 1) -> str:
    filled = f"line-{colour(place)} hollow" if hollow else f"fill-{colour(place)}"
    if size > 1:
        r = 4.5 * size
        circle = f"m-{r:.1f} 0a{r:.1f} {r:.1f} 0 1 0 {2 * r:.1f} 0a{r:.1f} {r:.1f} 0 1 0-{2 * r:.1f} 0Z"
        return f'<path class="{filled}" fill-opacity=".6" d="M{x:.1f} {y:.1f}{circle}"/>'
    return f'<path class="{filled}" d="M{x:.1f} {y:.1f}{_OUTLINES[place % len(_OUTLINES)]}"/>'


_BINS = 20
_HEIGHT = 120
_NAMES = 150
_ROW = 18
_MOST = 200


def histograms(
    series: Sequence[tuple[str, Floats]], *, low: float, high: float, label: str, axis: str
) -> SvgChart:
    known = [(name, values[~np.isnan(values)]) for name, values in series]
    centres, edges = bins(np.concatenate([values for _, values in known]), low=low, high=high)
    counts = [(name, np.histogram(values, bins=edges)[0].tolist()) for name, values in known]
    named = [f"{centre:g}" for centre in np.round(centres, 6).tolist()]
    return _drawn(counts, edges.tolist(), named, ends=(low, high), label=label, axis=axis)


def counted_histogram(
    edges: Sequence[float], counts: Sequence[int], *, name: str, label: str, axis: str
) -> SvgChart:
    """Return a histogram of counts: ``counts[i]`` are between ``edges[i]`` and the next edge."""
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
    drawing = Drawing(edges[0], edges[-1])
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


def even_edges(low: float, high: float) -> Floats:
    """Return the edges of twenty equal bars, rounded for display: 0.7, not 0.7000000000000001."""
    exact: Floats = np.linspace(low, high, _BINS + 1)
    digits = 9 - floor(log10(max((high - low) / _BINS, sys.float_info.min)))
    inner = np.array([round(edge, digits) for edge in exact[1:-1].tolist()])
    edges: Floats = np.concatenate(([low], inner, [high]))
    return edges if (np.diff(edges) > 0).all() else exact


def bins(values: Floats, *, low: float, high: float) -> tuple[Floats, Floats]:
    """Return (centres, edges): one bin per value if there are few, otherwise twenty."""
    given = np.unique(values)
    if 2 <= given.size <= 2 * _BINS + 1:
        step = float(np.diff(given).min())
        parts = round((high - low) / step)
        if parts <= 2 * _BINS and np.isclose((given - low) / step % 1, 0).all():
            centres: Floats = np.linspace(low, low + parts * step, parts + 1)
            return centres, np.append(centres - step / 2, centres[-1] + step / 2)
    edges = even_edges(low, high)
    return (edges[:-1] + edges[1:]) / 2, edges


def waterfall(spans: Sequence[TimeSpan], *, label: str) -> SvgChart:
    """Return a timeline of the first 200 spans; spans without times are only in the table."""
    timed = [each for each in spans if isfinite(each.start_ms + each.duration_ms)]
    end_s = max((each.start_ms + each.duration_ms for each in timed), default=1.0) / 1000 or 1e-3
    drawing, drawn = Drawing(0.0, end_s, left=_NAMES), timed[:_MOST]
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
        drawing.path(fills[each.kind], bar, f"{each.name}: {_took(each.duration_ms)}, {each.kind}")
    head = ("What", "Kind", "Began after", "Took")
    rows = [[each.name, each.kind, _took(each.start_ms), _took(each.duration_ms)] for each in spans]
    notes = [f"The drawing has the first {_MOST} of {len(timed):,}."] if len(timed) > _MOST else []
    return drawing.chart(label, "seconds", _ROW * len(drawn) + 4, head, rows, notes=notes)


def _took(ms: float) -> str:
    return numbers.NOT_RECORDED if isnan(ms) else numbers.duration(ms / 1000)


_ENDS = ("Interval from", "to")


def forest(
    measure: str, points: Sequence[tuple[str, ChartPoint]], *, label: str, axis: str, line: float
) -> SvgChart:
    ends = [line, *(end for _, point in points for end in (point.x, *(point.interval or ())))]
    margin = 0.04 * (max(ends) - min(ends))
    drawing = Drawing(min(ends) - margin, max(ends) + margin)
    x, bottom = drawing.x, 48 * len(points) + 4
    for row, (name, _) in enumerate(points):
        drawing.title(name, row * 48 + 18)
    drawing.path("limit", f"M{x(line)} 0V{bottom}")
    for row, (_, point) in enumerate(points):
        y = row * 48 + 34
        if point.interval:
            drawing.path(f"line-{colour(0)}", f"M{x(point.interval[0])} {y}H{x(point.interval[1])}")
        drawing.mark(0, x.place(point.x), y)
    rows = [
        [f"{name}, {measure}", *map(numbers.number, (point.x, point.low, point.high))]
        for name, point in points
    ]
    drawing.key(measure, mark(0, 7, 7))
    return drawing.chart(label, axis, bottom, (axis.capitalize(), "Value", *_ENDS), rows)


def scatter(
    series: Sequence[ChartSeries],
    *,
    low: float,
    high: float,
    label: str,
    axes: tuple[str, str],
    number: Written,
    joined: bool = True,
    counted: str = "Records",
) -> SvgChart:
    margin = 0.03 * (high - low)
    drawing = Drawing(low - margin, high + margin)
    x, y = drawing.x, PlotScale(low - margin, high + margin, 390, 26)
    drawing.text("axis", x.first, 14, axes[1])
    drawing.grid(y, ticks(low, high), lambda value: f"{value:g}")
    drawing.path("limit", f"M{x(low)} {y(low)}L{x(high)} {y(high)}")
    rows: list[list[str]] = []
    for place, (name, points) in enumerate(series):
        drawing.key(name, mark(place, 7, 7))
        kind = f"line-{colour(place)}"
        if joined and len(points) > 1:
            drawing.path(kind, "M" + "L".join(f"{x(point.x)} {y(point.y)}" for point in points))
        for point in points:
            if ends := point.interval:
                drawing.path(kind, f"M{x(point.x)} {y(ends[0])}V{y(ends[1])}")
        # Larger marks for more of them, drawn first so that they hide no others.
        for point in sorted(points, key=lambda each: each.over or 0, reverse=True):
            size = 1 if joined else min(sqrt(point.over or 1), 5.0)
            drawing.mark(place, x.place(point.x), y.place(point.y), size=size)
        for point in points:
            rows.append([name, *map(number, point[:4]), "" if point.over is None else f"{point.over:,}"])
    head = ("Series", axes[0].capitalize(), axes[1].capitalize(), *_ENDS, counted)
    return drawing.chart(label, axes[0], 390, head, rows, places=ticks(low, high))


Floats = NDArray[np.float64]
Places = NDArray[np.int64]

_COLUMNS = 240
_ALL_DRAWN = 500
"""Points of a long curve that are kept for each column."""
_TOP, _BOTTOM = 24, 230
_FEW = 40
"""Curves of up to this many points mark each; longer ones have eight marks."""
_ROWS = 100
_EVENTS = ("m-5-8h10l-5 8Z", "m-4-8h8v8h-8Z", "m0-9l4.5 4.5l-4.5 4.5l-4.5-4.5Z")


def line(
    series: Sequence[ViewedCurve],
    *,
    label: str,
    smoothing: float = 0.0,
    marks: Sequence[CurveMark] = (),
    hollow: str = "",
) -> SvgChart:
    curves = [_numbers(each.points) for each in series]
    first, last = _ends([*(along for along, *_ in curves), np.array([each.step for each in marks])])
    drawing = Drawing(first, last if last > first else first + 1)
    low, high = _ends([each[1:].ravel() for each in curves])
    if low == high == 0:
        high = 1.0  # of shares and counts that are all zero none is below it
    margin = 0.04 * (high - low) or 0.5
    x, y = drawing.x, PlotScale(low - margin, high + margin, _BOTTOM, _TOP)
    drawing.grid(y, ticks(y.low, y.high), lambda value: f"{value:g}".replace("e-0", "e-"))
    shapes = dict(zip(dict.fromkeys(each.kind for each in marks), cycle(_EVENTS), strict=False))
    for each in marks:
        drawing.path("limit", f"M{x(each.step)} {_TOP}V{_BOTTOM}")
        drawing.path("event", f"M{x(each.step)} {_TOP}{shapes[each.kind]}", each.text)
    for place, (curve, own) in enumerate(zip(curves, series, strict=True)):
        _draw(drawing, place, (_placed(curve[0], x), *_placed(curve[1:], y)), own.points, smoothing)
        drawing.key(own.title, mark(place, 7, 7))
    for kind, shape in shapes.items():
        drawing.key(kind, f'<path class="event" d="M7 11{shape}"/>')
    if hollow and any(point.is_hollow for each in series for point in each.points):
        drawing.key(hollow, mark(0, 7, 7, hollow=True))
    rows, notes = _table(series, hollow)
    notes += [f"{each.kind} at step {each.step:g}: {each.text}" for each in marks]
    head = ("Step", *(each.title for each in series))
    # What is counted has no halves, however few points there are.
    whole = [place for place in ticks(x.low, x.high) if place.is_integer()]
    return drawing.chart(label, "step", _BOTTOM, head, rows, notes=notes, places=whole, is_pointed_at=True)


def sparkline(values: Sequence[float | None], *, label: str, number: Written) -> Markup:
    """Return a sparkline with a dot at its end; "" for fewer than two values."""
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


def _numbers(points: Sequence[CurveValue]) -> Floats:
    """Return arrays of x, value, and both interval bounds; NaN if missing."""
    # A float of None is NaN here; infinity has no place on a drawing either.
    rows = [(point.step, point.value, point.low, point.high) for point in points]
    found: Floats = np.array(rows, dtype=np.float64).reshape(-1, 4).T
    found[~np.isfinite(found)] = np.nan
    return found


def _placed(values: Floats, scale: PlotScale) -> Floats:
    return np.interp(values, (scale.low, scale.high), (scale.first, scale.last))


def _ends(values: Sequence[Floats]) -> tuple[float, float]:
    known = np.concatenate([np.empty(0), *values])
    known = known[np.isfinite(known)]
    return (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)


def _draw(
    drawing: Drawing, place: int, curve: Sequence[Floats], points: Sequence[CurveValue], smoothing: float
) -> None:
    along, raw, low, high = curve
    shown, runs = _smooth(raw, smoothing), _runs(raw)
    bands = [_path(along[run], high[run], low[run]) for run in _runs(low + high)]
    drawing.path(f"band-{colour(place)}", "".join(bands))
    for kind, up in ((" raw", raw), ("", shown)) if smoothing else (("", shown),):
        drawing.path(f"line-{colour(place)}{kind}", "".join(_path(along[run], up[run]) for run in runs))
    known = np.flatnonzero(np.isfinite(raw)).tolist()
    marked = known if len(known) <= _FEW else known[:: -(-len(known) // 8)]
    for each in sorted({*marked, *(each for each in known if points[each].is_hollow)}):
        drawing.mark(place, along[each], shown[each], hollow=points[each].is_hollow)


def _smooth(values: Floats, weight: float) -> Floats:
    """Return the exponential moving average, bias-corrected (Kingma and Ba 2015, section 3), ignoring NaN."""
    smooth, total, mass = np.full_like(values, np.nan), 0.0, 0.0
    for place, value in enumerate(values.tolist()):
        if value == value:
            total, mass = total * weight + value, mass * weight + 1.0
            smooth[place] = total / mass
    return smooth


def _runs(values: Floats) -> list[Places]:
    known = np.flatnonzero(np.isfinite(values))
    return [run for run in np.split(known, np.flatnonzero(np.diff(known) > 1) + 1) if run.size]


def _shown_places(*values: Floats) -> Places:
    size = values[0].size
    if size <= _ALL_DRAWN:
        return np.arange(size)
    columns = np.array_split(np.arange(size), _COLUMNS)
    ends = [
        column[pick(each[column])] for each in values for column in columns for pick in (np.argmin, np.argmax)
    ]
    return np.unique([0, *ends, size - 1])


def _path(along: Floats, *edges: Floats) -> str:
    """Return the path of a line, or around a band from its upper to its lower edge."""
    drawn = _shown_places(*edges)
    places = [(along[drawn], edges[0][drawn]), *((along[drawn][::-1], low[drawn][::-1]) for low in edges[1:])]
    points = [f"{x:.1f} {y:.1f}" for xs, ys in places for x, y in zip(xs.tolist(), ys.tolist(), strict=True)]
    # A round cap makes a dot of a point without neighbours.
    return "M" + "L".join(points) + ("Z" if len(edges) > 1 else "h0" if drawn.size == 1 else "")


def _table(series: Sequence[ViewedCurve], hollow: str) -> tuple[list[list[str]], list[str]]:
    """Return the rows of the table, at most a hundred, and how many are left out."""
    places = sorted({point.step for each in series for point in each.points})
    listed, notes = places, []
    if len(places) > _ROWS:
        listed = [places[round(row * (len(places) - 1) / (_ROWS - 1))] for row in range(_ROWS)]
        notes = [f"The table has {_ROWS} of {len(places):,} places of step."]
    found = [{point.step: point for point in each.points} for each in series]
    rows = [[f"{x:g}", *(_written(each.get(x), hollow) for each in found)] for x in listed]
    return rows, notes


def _written(point: CurveValue | None, hollow: str) -> str:
    if point is None:
        return ""
    is_between = point.low is not None and point.high is not None
    between = f" ({numbers.compact(point.low)} to {numbers.compact(point.high)})" if is_between else ""
    over = "" if point.over is None else f" over {point.over:,}"
    return f"{numbers.compact(point.value)}{between}{over}" + (
        f", {hollow}" if point.is_hollow and hollow else ""
    )
