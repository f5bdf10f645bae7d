"""Charts say what they are given, in the drawing and in the table under it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from osmosis_ai.training.runs.curves import CurveMark, CurveValue, ViewedCurve
from osmosis_ai.ui.charts import (
    LEFT,
    ChartPoint,
    ChartSeries,
    SvgChart,
    TimeSpan,
    counted_histogram,
    forest,
    histograms,
    line,
    scatter,
    waterfall,
)

NAN = float("nan")
HOSTILE = "</svg><script>alert(1)</script>\u202e{{ 7 }}"


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def viewed(title: str, *points: CurveValue) -> ViewedCurve:
    return ViewedCurve(title, title, points)


def drawn(name: str = "judge") -> list[SvgChart]:
    points = [ChartPoint(0.2, 0, 0.1, 0.3, 5), ChartPoint(0.7, 1)]
    series = [ChartSeries(name, points), ChartSeries("other", points[:1])]
    values = [CurveValue(1, 0, 0.1, 0.3, 5), CurveValue(2, 1)]
    return [
        histograms([(name, np.array([0.0, 0.5, 1.0, NAN]))], low=0, high=1, label=name, axis="score"),
        forest("judge", list(zip([name, "b"], points, strict=True)), label=name, axis="share", line=0.5),
        scatter(series, low=0, high=1, label=name, axes=(name, "y"), number=number),
        line(
            [
                viewed(name, *values),
                viewed("other", values[0]),
                viewed(name, CurveValue(3, 0.5, over=1, of=8)),
            ],
            label=name,
            smoothing=0.5,
            marks=[CurveMark(1, name, name)],
            hollow=name,
        ),
        counted_histogram([0, 0.5, 1], [2, 1], name=name, label=name, axis=name),
        waterfall([TimeSpan(name, name, 0, 5), TimeSpan(name, "b", NAN, NAN)], label=name),
    ]


@pytest.mark.parametrize("name", ["judge", HOSTILE])
def test_a_chart_is_sound_svg_without_script_or_style(name: str) -> None:
    for chart in drawn(name):
        tree = ElementTree.fromstring(chart.svg)
        assert {element.tag for element in tree.iter()} <= {"svg", "path", "text", "title"}
        attributes = {key for element in tree.iter() for key in element.attrib}
        assert attributes <= {"viewBox", "role", "aria-label", "class", "d", "x", "y", "data-x"}
        # Every class is one of those that stand in the styles.
        classes = {part for element in tree.iter() for part in element.get("class", "").split()}
        assert all(
            re.fullmatch(
                r"(line|fill|band)-[1-7]|grid|limit|tick|axis|title|middle|end|raw|hollow|event", each
            )
            for each in classes
        )


def test_each_number_is_in_the_table_under_its_chart() -> None:
    counts, measures, points, *others = drawn()
    assert [list(row) for row in counts.rows] == [["0", "1"], ["0.5", "1"], ["1", "1"]]
    assert list(measures.rows[0]) == ["judge, judge", "0.200", "0.100", "0.300"]
    assert list(measures.rows[1]) == ["b, judge", "0.700", "–", "–"]
    assert list(points.rows[0]) == ["judge", "0.20", "0.00", "0.10", "0.30", "5"]
    curves, counted, times = others
    assert list(curves.rows[0]) == ["1", "0.000 (0.100 to 0.300) over 5", "0.000 (0.100 to 0.300) over 5", ""]
    assert list(curves.rows[-1]) == ["3", "", "", "0.500 over 1, judge"]
    assert list(counted.rows[1]) == ["0.5 to 1", "1"]
    assert list(times.rows[1]) == ["judge", "b", "not recorded", "not recorded"]
    assert all(len(row) == len(chart.head) for chart in drawn() for row in chart.rows)


def test_a_score_on_the_edge_of_a_bar_lies_in_the_bar_that_begins_there() -> None:
    # Too many values for one bar each: twenty bars are drawn.
    scores = np.array([tenth / 10 for tenth in range(1, 10)] + [0.1234] * 3 + [0.777777])
    chart = histograms([("judge", scores)], low=0, high=1, label="", axis="score")
    counts = {name: int(count) for name, count in chart.rows}
    for tenth in range(1, 10):
        behind, before = f"{tenth / 10 + 0.025:g}", f"{tenth / 10 - 0.025:g}"
        assert counts[behind] == 1 + (3 if tenth == 1 else 0), tenth
        assert counts[before] == (1 if before == "0.775" else 0), tenth


def curve(name: str, points: int) -> ViewedCurve:
    noise = np.random.default_rng(len(name)).normal(size=points)
    values = (np.cumsum(noise) / 50).tolist()
    return viewed(name, *(CurveValue(x, y, y - 0.1, y + 0.1, 64) for x, y in enumerate(values)))


def drawn_points(chart: SvgChart, kind: str) -> list[tuple[float, float]]:
    """Follow the path of a class and return where it goes."""
    (path,) = re.findall(rf'<path class="{kind}" d="M([^"]*)"', chart.svg)
    numbers = [float(each) for each in re.findall(r"-?\d*\.?\d+", path)]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def test_a_thinned_curve_keeps_its_ends_and_its_single_outlier() -> None:
    points = [CurveValue(x, 1.0 if x == 777 else 0.0) for x in range(2000)]
    chart = line([viewed("a", *points)], label="")
    places = drawn_points(chart, "line-1")
    assert len(places) < 600
    assert places[0][0] == pytest.approx(LEFT, abs=0.2) and places[-1][0] == pytest.approx(546, abs=0.2)
    top = min(places, key=lambda place: place[1])
    assert top[0] == pytest.approx(LEFT + (546 - LEFT) * 777 / 1999, abs=2.1)
    assert sum(y < 200 for _, y in places) == 1


def test_what_is_not_finite_has_its_name_in_the_table() -> None:
    points = [
        CurveValue(0, float("inf")),
        CurveValue(1, -float("inf")),
        CurveValue(2, NAN),
        CurveValue(3, 2.0),
    ]
    chart = line([viewed("a", *points)], label="")
    assert [row[1] for row in chart.rows] == ["inf", "-inf", "nan", "2"]
