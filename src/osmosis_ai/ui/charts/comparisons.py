"""Numbers beside each other: a forest of intervals, points against points, bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import escape

from osmosis_ai.ui.charts.drawing import (
    COLOURS,
    LEFT,
    RIGHT,
    WIDTH,
    ChartSeries,
    PlotScale,
    SvgChart,
    grid_rows,
    legend,
    mark,
    plotted,
    ticks,
    title,
)
from osmosis_ai.ui.text import visible


def forest(
    names: Sequence[str],
    measures: Sequence[ChartSeries],
    *,
    label: str,
    axis: str,
    lines: Sequence[float],
    number: Callable[[float | None], str],
    is_share: bool = True,
) -> SvgChart:
    """Return numbers with their intervals, in a row for each of ``names``.

    Args:
        measures: their points' ``x`` is the number, ``y`` the place of the row.
        lines: where dotted lines stand.
        number: how a number is written in the table.
        is_share: whether the scale has 0 and 1, and ends at -1; else it is that of the numbers and the lines.
    """
    points = [point for measure in measures for point in measure.points]
    shown = [0.0, 1.0] if is_share else lines
    least = min([*shown, *(point.x if point.low is None else point.low for point in points)])
    most = max([*shown, *(point.x if point.high is None else point.high for point in points)])
    margin = 0.0 if is_share else 0.04 * (most - least)
    x = PlotScale(max(least, -1.0) if is_share else least - margin, most + margin, LEFT, WIDTH - RIGHT)
    height = 30.0 + 18 * len(measures)
    bottom = height * len(names) + 4
    parts = [title(name, row * height + 18) for row, name in enumerate(names)]
    parts += [f'<path class="limit" d="M{x(line)} 0V{bottom:g}"/>' for line in lines]
    for place, measure in enumerate(measures):
        for point in measure.points:
            y = point.y * height + 34 + 18 * place
            if point.low is not None and point.high is not None:
                parts.append(
                    f'<path class="line-{place % COLOURS + 1}" d="M{x(point.low)} {y:g}H{x(point.high)}"/>'
                )
            parts.append(mark(place, x.place(point.x), y))
    rows = [
        [f"{names[int(point.y)]}, {measure.name}", *map(number, (point.x, point.low, point.high))]
        for measure in measures
        for point in measure.points
    ]
    head = (axis.capitalize(), "Value", *_ENDS)
    return SvgChart(label, plotted(parts, x, bottom, axis, label), legend(measures), head, rows)


_ENDS = ("Interval from", "to")


def scatter(
    series: Sequence[ChartSeries],
    *,
    low: float,
    high: float,
    label: str,
    axes: tuple[str, str],
    number: Callable[[float | None], str],
    joined: bool = True,
    counted: str = "Records",
) -> SvgChart:
    """Return points with their intervals in ``y``, joined within a series, beside the line of what is equal.

    Args:
        low, high: the ends of both scales.
        axes: what lies along x, and along y.
        number: how a number is written in the table.
        joined: whether a line leads from point to point.
        counted: what a point is taken over.
    """
    margin = 0.03 * (high - low)
    x = PlotScale(low - margin, high + margin, LEFT, WIDTH - RIGHT)
    y = PlotScale(low - margin, high + margin, 390.0, 26.0)
    parts = [f'<text class="axis" x="{LEFT:g}" y="14">{escape(visible(axes[1]))}</text>']
    parts.append(grid_rows(y, ticks(low, high), lambda value: f"{value:g}"))
    parts.append(f'<path class="limit" d="M{x(low)} {y(low)}L{x(high)} {y(high)}"/>')
    for place, (_, points) in enumerate(series):
        colour = f"line-{place % COLOURS + 1}"
        if joined and len(points) > 1:
            path = "L".join(f"{x(point.x)} {y(point.y)}" for point in points)
            parts.append(f'<path class="{colour}" d="M{path}"/>')
        parts.extend(
            f'<path class="{colour}" d="M{x(point.x)} {y(point.low)}V{y(point.high)}"/>'
            for point in points
            if point.low is not None and point.high is not None
        )
        parts.extend(mark(place, x.place(point.x), y.place(point.y)) for point in points)
    drawn = plotted(parts, x, 390.0, axes[0], label, places=ticks(low, high))
    rows = [
        [name, *map(number, point[:4]), "" if point.over is None else f"{point.over:,}"]
        for name, points in series
        for point in points
    ]
    head = ("Series", axes[0].capitalize(), axes[1].capitalize(), *_ENDS, counted)
    return SvgChart(label, drawn, legend(series), head, rows)


def bars(
    items: Sequence[tuple[str, float]], *, label: str, axis: str, number: Callable[[float | None], str]
) -> SvgChart:
    """Return a bar for each of ``items`` (name and what is not below zero), under its name, its number at its end."""
    x = PlotScale(0.0, max([1e-9, *(value for _, value in items)]), LEFT, WIDTH - RIGHT - 70)
    bottom = 34.0 * len(items) + 4
    parts = []
    for row, (name, value) in enumerate(items):
        y = row * 34
        parts.append(
            f'{title(name, y + 14)}<path class="fill-1" d="M{LEFT:g} {y + 20}H{x(value)}v10H{LEFT:g}Z"/>'
            f'<text class="tick" x="{x.place(value) + 6:.1f}" y="{y + 29}">{escape(number(value))}</text>'
        )
    rows = [[name, number(value)] for name, value in items]
    return SvgChart(label, plotted(parts, x, bottom, axis, label), (), ("Name", axis.capitalize()), rows)
