"""Charts as SVG made here: no script, no ``style`` attribute, colours by the classes of ``kit.css``.

Each comes with the table of its numbers, and tells series apart by the shape of their marks as well as by colour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup, escape

from osmosis_ai.ui.text import visible

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# Colours in kit.css; the eighth series has the first colour again, and another shape.
COLOURS = 7
_SHAPES = ("circle", "diamond", "square", "triangle", "cross")
_WIDTH = 560.0
_LEFT, _RIGHT = 44.0, 14.0
_BINS = 20


class ChartPoint(NamedTuple):
    """A number at its place, with its interval where there is one, and what it was taken over."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    over: int | None = None


class ChartSeries(NamedTuple):
    """What belongs together in a chart, under one name."""

    name: str
    points: Sequence[ChartPoint]


@dataclass(frozen=True, slots=True)
class SvgChart:
    """A chart and its numbers.

    Attributes:
        label: what it shows, for who does not see it.
        svg: the drawing.
        legend: (name, key) of each series; empty where names stand in the drawing.
        head, rows: the table of its numbers; the first cell of a row names it.
    """

    label: str
    svg: Markup
    legend: Sequence[tuple[str, Markup]]
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class _Scale:
    """From a number to its place on the drawing, in its units."""

    low: float
    high: float
    first: float
    last: float

    def __call__(self, value: float) -> str:
        """Return the place with one decimal: a tenth of a pixel."""
        return f"{self.place(value):.1f}"

    def place(self, value: float) -> float:
        span = self.high - self.low or 1.0
        return self.first + (min(max(value, self.low), self.high) - self.low) / span * (
            self.last - self.first
        )


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
    counts = [np.histogram(values, bins=edges)[0] for _, values in known]
    shares = [found / max(int(found.sum()), 1) for found in counts]
    most = max(max(float(share.max()) for share in shares), 1e-9)
    x = _Scale(float(edges[0]), float(edges[-1]), _LEFT, _WIDTH - _RIGHT)
    parts: list[str] = []
    for place, (name, _) in enumerate(known):
        y = _Scale(0.0, most, place * 120 + 108.0, place * 120 + 30.0)
        parts.append(f'<text class="title" x="{_LEFT:g}" y="{place * 120 + 18}">{_short(name)}</text>')
        parts.append(_grid_rows(y, (0.0, most), lambda share: f"{share:.0%}"))
        parts.extend(
            f'<path class="fill-{place % COLOURS + 1}" d="M{x(left + 0.04 * (right - left))} {y(0)}V{y(share)}'
            f'H{x(right - 0.04 * (right - left))}V{y(0)}Z"/>'
            for left, right, share in zip(edges[:-1], edges[1:], shares[place], strict=True)
            if share > 0
        )
    bottom = 120.0 * len(known) - 12
    parts.append(_x_axis(x, bottom, axis, _ticks(low, high)))
    rows = [
        [f"{centre:g}", *(f"{found[row]:,}" for found in counts)]
        for row, centre in enumerate(np.round(centres, 6).tolist())
    ]
    return SvgChart(
        label, _svg(parts, bottom + 42, label), (), (axis.capitalize(), *(name for name, _ in known)), rows
    )


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
    edges: Floats = np.linspace(low, high, _BINS + 1)
    middles: Floats = (edges[:-1] + edges[1:]) / 2
    return middles, edges


def forest(
    names: Sequence[str],
    measures: Sequence[ChartSeries],
    *,
    label: str,
    axis: str,
    lines: Sequence[float],
    number: Callable[[float | None], str],
) -> SvgChart:
    """Return numbers with their intervals, in a row for each of ``names``.

    Args:
        measures: their points' ``x`` is the number, ``y`` the place of the row.
        lines: where dotted lines stand.
        number: how a number is written in the table.
    """
    points = [point for measure in measures for point in measure.points]
    least = min([0.0, *(point.x if point.low is None else point.low for point in points)])
    most = max([1.0, *(point.x if point.high is None else point.high for point in points)])
    x = _Scale(max(least, -1.0), most, _LEFT, _WIDTH - _RIGHT)
    height = 30.0 + 18 * len(measures)
    bottom = height * len(names) + 4
    parts = [
        f'<text class="title" x="{_LEFT:g}" y="{row * height + 18:g}">{_short(name)}</text>'
        for row, name in enumerate(names)
    ]
    parts += [f'<path class="limit" d="M{x(line)} 0V{bottom:g}"/>' for line in lines]
    for place, measure in enumerate(measures):
        for point in measure.points:
            y = point.y * height + 34 + 18 * place
            if point.low is not None and point.high is not None:
                parts.append(
                    f'<path class="line-{place % COLOURS + 1}" d="M{x(point.low)} {y:g}H{x(point.high)}"/>'
                )
            parts.append(_mark(place, x.place(point.x), y))
    parts.append(_x_axis(x, bottom, axis, _ticks(x.low, x.high)))
    rows = [
        [f"{names[int(point.y)]}, {measure.name}", *map(number, (point.x, point.low, point.high))]
        for measure in measures
        for point in measure.points
    ]
    return SvgChart(
        label, _svg(parts, bottom + 42, label), _legend(measures), (axis.capitalize(), "Value", *_ENDS), rows
    )


_ENDS = ("Interval from", "to")


def scatter(
    series: Sequence[ChartSeries],
    *,
    low: float,
    high: float,
    label: str,
    axes: tuple[str, str],
    number: Callable[[float | None], str],
) -> SvgChart:
    """Return points with their intervals in ``y``, joined within a series, beside the line of what is equal.

    Args:
        low, high: the ends of both scales.
        axes: what lies along x, and along y.
        number: how a number is written in the table.
    """
    margin = 0.03 * (high - low)
    x = _Scale(low - margin, high + margin, _LEFT, _WIDTH - _RIGHT)
    y = _Scale(low - margin, high + margin, 390.0, 26.0)
    parts = [f'<text class="axis" x="{_LEFT:g}" y="14">{escape(visible(axes[1]))}</text>']
    parts.append(_grid_rows(y, _ticks(low, high), lambda value: f"{value:g}"))
    parts.append(f'<path class="limit" d="M{x(low)} {y(low)}L{x(high)} {y(high)}"/>')
    for place, (_, points) in enumerate(series):
        colour = f"line-{place % COLOURS + 1}"
        if len(points) > 1:
            joined = "L".join(f"{x(point.x)} {y(point.y)}" for point in points)
            parts.append(f'<path class="{colour}" d="M{joined}"/>')
        parts.extend(
            f'<path class="{colour}" d="M{x(point.x)} {y(point.low)}V{y(point.high)}"/>'
            for point in points
            if point.low is not None and point.high is not None
        )
        parts.extend(_mark(place, x.place(point.x), y.place(point.y)) for point in points)
    parts.append(_x_axis(x, 390.0, axes[0], _ticks(low, high)))
    rows = [
        [name, *map(number, point[:4]), "" if point.over is None else f"{point.over:,}"]
        for name, points in series
        for point in points
    ]
    head = ("Series", axes[0].capitalize(), axes[1].capitalize(), *_ENDS, "Records")
    return SvgChart(label, _svg(parts, 432.0, label), _legend(series), head, rows)


def _svg(parts: Iterable[str], height: float, label: str) -> Markup:
    return Markup(
        f'<svg viewBox="0 0 {_WIDTH:g} {height:g}" role="img" aria-label="{escape(visible(label))}">'
        + "".join(parts)
        + "</svg>"
    )


def _grid_rows(y: _Scale, values: Sequence[float], written: Callable[[float], str]) -> str:
    return "".join(
        f'<path class="grid" d="M{_LEFT:g} {y(value)}H{_WIDTH - _RIGHT:g}"/>'
        f'<text class="tick end" x="{_LEFT - 6:g}" y="{y.place(value) + 4:.1f}">{written(value)}</text>'
        for value in values
    )


def _x_axis(x: _Scale, bottom: float, name: str, ticks: Sequence[float]) -> str:
    ends = f"M{_LEFT:g} {bottom:g}H{_WIDTH - _RIGHT:g}" + "".join(
        f"M{x(tick)} {bottom:g}v5" for tick in ticks
    )
    texts = "".join(
        f'<text class="tick middle" x="{x(tick)}" y="{bottom + 18:g}">{tick:g}</text>' for tick in ticks
    )
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    named = f'<text class="axis middle" x="{middle:g}" y="{bottom + 36:g}">{escape(visible(name))}</text>'
    return f'<path class="grid" d="{ends}"/>{texts}{named}'


def _ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round numbers from ``low`` to ``high``: steps of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / about or 1.0
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    # The sum takes the sign from a zero.
    return [round(place * step, 12) + 0.0 for place in range(first, last + 1)]


def _mark(place: int, x: float, y: float) -> str:
    """Return the mark of the series at ``place``: its shape tells it as well as its colour."""
    shape = _SHAPES[place % len(_SHAPES)]
    outline = {
        "circle": "m-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0Z",
        "diamond": "m0-6l6 6l-6 6l-6-6Z",
        "square": "m-4.5-4.5h9v9h-9Z",
        "triangle": "m0-6l5.5 10h-11Z",
        "cross": "m-2-6h4v4h4v4h-4v4h-4v-4h-4v-4h4Z",
    }[shape]
    return f'<path class="fill-{place % COLOURS + 1}" d="M{x:.1f} {y:.1f}{outline}"/>'


def _legend(series: Sequence[ChartSeries]) -> list[tuple[str, Markup]]:
    return [
        (each.name, Markup(f'<svg viewBox="0 0 14 14" aria-hidden="true">{_mark(place, 7, 7)}</svg>'))
        for place, each in enumerate(series)
    ]


def _short(name: str, most: int = 64) -> Markup:
    """Return a name that fits the drawing; the end of a long one tells models apart."""
    shown = visible(name)
    return escape(shown if len(shown) <= most else "…" + shown[-most:])
