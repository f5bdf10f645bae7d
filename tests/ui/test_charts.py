"""Charts say what they are given, in the drawing and in the table under it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from osmosis_ai.ui.charts import ChartPoint, ChartSeries, SvgChart, bins, forest, histograms, scatter

NAN = float("nan")
HOSTILE = "</svg><script>alert(1)</script>\u202e{{ 7 }}"


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def drawn(name: str = "judge") -> list[SvgChart]:
    points = [ChartPoint(0.2, 0, 0.1, 0.3, 5), ChartPoint(0.7, 1)]
    series = [ChartSeries(name, points), ChartSeries("other", points[:1])]
    return [
        histograms([(name, np.array([0.0, 0.5, 1.0, NAN]))], low=0, high=1, label=name, axis="score"),
        forest([name, "b"], series, label=name, axis="share", lines=(0.5,), number=number),
        scatter(series, low=0, high=1, label=name, axes=(name, "y"), number=number),
    ]


@pytest.mark.parametrize("name", ["judge", HOSTILE])
def test_a_chart_is_sound_svg_without_script_or_style(name: str) -> None:
    for chart in drawn(name):
        tree = ElementTree.fromstring(chart.svg)
        assert {element.tag for element in tree.iter()} == {"svg", "path", "text"}
        attributes = {key for element in tree.iter() for key in element.attrib}
        assert attributes <= {"viewBox", "role", "aria-label", "class", "d", "x", "y"}
        # Every class is one of those that stand in the styles.
        classes = {part for element in tree.iter() for part in element.get("class", "").split()}
        assert all(
            re.fullmatch(r"(line|fill)-[1-7]|grid|limit|tick|axis|title|middle|end", each) for each in classes
        )


def test_each_number_is_in_the_table_under_its_chart() -> None:
    counts, measures, points = drawn()
    assert [list(row) for row in counts.rows] == [["0", "1"], ["0.5", "1"], ["1", "1"]]
    assert list(measures.rows[0]) == ["judge, judge", "0.20", "0.10", "0.30"]
    assert list(measures.rows[1]) == ["b, judge", "0.70", "–", "–"]
    assert list(points.rows[0]) == ["judge", "0.20", "0.00", "0.10", "0.30", "5"]
    assert all(len(row) == len(chart.head) for chart in (counts, measures, points) for row in chart.rows)


def test_a_bar_is_as_high_as_its_share() -> None:
    chart = histograms([("a", np.array([0.0, 1.0, 1.0, 1.0]))], low=0, high=1, label="", axis="score")
    bars = re.findall(r'class="fill-1" d="M\S+ ([\d.]+)V([\d.]+)H', chart.svg)
    low, high = (float(bottom) - float(top) for bottom, top in bars)
    assert high == pytest.approx(3 * low, abs=0.2)


def test_series_differ_by_shape_as_well_as_by_colour() -> None:
    keys = [key for _, key in drawn()[1].legend]
    outlines = [re.sub(r"fill-\d", "", key) for key in keys]
    assert len(set(outlines)) == 2


@pytest.mark.parametrize("values", [[], [0.5], [0.1, 0.1], [-3.0, 5.0]])
def test_few_or_strange_values_still_make_a_chart(values: list[float]) -> None:
    chart = histograms([("a", np.array(values, dtype=float))], low=0, high=1, label="", axis="score")
    assert "nan" not in chart.svg and chart.rows


def test_each_value_that_was_given_has_its_bin_when_they_are_few() -> None:
    centres, edges = bins(np.array([0.25, 0.5, 1.0, 0.25]), low=0.0, high=1.0)
    assert centres.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert edges[0] == -0.125
    assert bins(np.random.default_rng(0).random(500), low=0.0, high=1.0)[0].size == 20
