"""Numbers as people see them."""

from __future__ import annotations

import math

import pytest

from osmosis_ai.ui import numbers


@pytest.mark.parametrize(
    "value, shown, percent",
    [
        (0.4175, "0.418", "41.8%"),
        (0.4174999999999999, "0.418", "41.8%"),
        (0.4165, "0.416", "41.6%"),
        (1.0, "1.000", "100.0%"),
        (None, "–", "–"),
    ],
)
def test_a_number_and_its_percentage_are_rounded_alike(value: float | None, shown: str, percent: str) -> None:
    assert (numbers.number(value), numbers.percent(value)) == (shown, percent)


def test_numbers_that_are_not_finite_have_names() -> None:
    assert (numbers.number(math.nan), numbers.percent(math.inf)) == ("nan", "inf%")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (["trackio", "wandb"], "trackio, wandb"),
        ([], "none"),
        (True, "true"),
        (1e-05, "1e-05"),
        ("dapo", "dapo"),
        ([1, True], "1, true"),
    ],
)
def test_settings_are_shown_without_python_syntax(value: object, shown: str) -> None:
    assert numbers.setting(value) == shown
