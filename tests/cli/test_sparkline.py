from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.cli.output.chart import sparkline


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        ([], ""),
        ([3.0], "▁"),
        ([2.0, 2.0, 2.0], "▁▁▁"),
        ([0.0, 1.0], "▁█"),
        ([1.0, 0.0, 0.5], "█▁▅"),
        ([0, 1, 2, 3, 4, 5, 6, 7], "▁▂▃▄▅▆▇█"),
    ],
)
def test_a_curve_rises_and_falls_as_its_values(values: list[float], drawn: str) -> None:
    assert sparkline(values, width=10) == drawn


def test_many_values_share_the_width() -> None:
    assert sparkline([0.0] * 500 + [1.0] * 500, width=4) == "▁▁██"


@given(st.lists(st.floats(-1e9, 1e9), max_size=200), st.integers(1, 50))
def test_a_curve_is_never_wider_than_it_may_be(values: list[float], width: int) -> None:
    assert len(sparkline(values, width=width)) == min(width, len(values))
