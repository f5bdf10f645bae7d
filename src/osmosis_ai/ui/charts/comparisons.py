"""Numbers beside each other: a forest of intervals, points against points."""

from __future__ import annotations

from collections.abc import Sequence

from osmosis_ai.ui.charts.drawing import ChartSeries, Drawing, PlotScale, SvgChart, Written, colour, ticks

_ENDS = ("Interval from", "to")


def forest(
    names: Sequence[str],
    measures: Sequence[ChartSeries],
    *,
    label: str,
    axis: str,
    lines: Sequence[float],
    number: Written,
    is_share: bool = True,
) -> SvgChart:
    """Return numbers with their intervals, in a row for each of ``names``."""
    points = [point for measure in measures for point in measure.points]
    shown = [0.0, 1.0] if is_share else lines
    least = min([*shown, *(point.x if point.low is None else point.low for point in points)])
    most = max([*shown, *(point.x if point.high is None else point.high for point in points)])
    margin = 0.0 if is_share else 0.04 * (most - least)
    drawing = Drawing.between(max(least, -1.0) if is_share else least - margin, most + margin)
    x = drawing.x
    height = 30 + 18 * len(measures)
    bottom = height * len(names) + 4
    for row, name in enumerate(names):
        drawing.title(name, row * height + 18)
    for line in lines:
        drawing.path("limit", f"M{x(line)} 0V{bottom}")
    rows: list[list[str]] = []
    for place, measure in enumerate(measures):
        for point in measure.points:
            y = point.y * height + 34 + 18 * place
            if ends := point.interval:
                drawing.path(f"line-{colour(place)}", f"M{x(ends[0])} {y:g}H{x(ends[1])}")
            drawing.mark(place, x.place(point.x), y)
            named = f"{names[int(point.y)]}, {measure.name}"
            rows.append([named, *map(number, (point.x, point.low, point.high))])
    head = (axis.capitalize(), "Value", *_ENDS)
    drawing.name(measures)
    return drawing.chart(label, axis, bottom, head, rows)


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
    """Return points with their intervals in ``y``, joined within a series, beside the line of what is equal."""
    margin = 0.03 * (high - low)
    drawing = Drawing.between(low - margin, high + margin)
    x, y = drawing.x, PlotScale(low - margin, high + margin, 390, 26)
    drawing.text("axis", x.first, 14, axes[1])
    drawing.grid(y, ticks(low, high), lambda value: f"{value:g}")
    drawing.path("limit", f"M{x(low)} {y(low)}L{x(high)} {y(high)}")
    rows: list[list[str]] = []
    for place, (name, points) in enumerate(series):
        kind = f"line-{colour(place)}"
        if joined and len(points) > 1:
            drawing.path(kind, "M" + "L".join(f"{x(point.x)} {y(point.y)}" for point in points))
        for point in points:
            if ends := point.interval:
                drawing.path(kind, f"M{x(point.x)} {y(ends[0])}V{y(ends[1])}")
        for point in points:
            drawing.mark(place, x.place(point.x), y.place(point.y))
            rows.append([name, *map(number, point[:4]), "" if point.over is None else f"{point.over:,}"])
    head = ("Series", axes[0].capitalize(), axes[1].capitalize(), *_ENDS, counted)
    drawing.name(series)
    return drawing.chart(label, axes[0], 390, head, rows, places=ticks(low, high))
