"""The score test agrees with statsmodels, with Tango's closed form and with numbers computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar

from osmosis_ai.evaluation.comparison.differences import score_interval

Z = 1.959963984540054


def binary(higher: int, lower: int, rows: int) -> np.ndarray:
    """Return sorted differences of rows that were tried once."""
    return np.repeat([-1.0, 0.0, 1.0], [lower, rows - higher - lower, higher])


def tango(higher: int, lower: int, rows: int, z: float) -> tuple[float, float]:
    """Return Tango's interval by his closed form of the restricted estimate."""

    def score(difference: float) -> float:
        b = -higher - lower + (2 * rows - higher + lower) * difference
        c = -lower * difference * (1 - difference)
        restricted = (math.sqrt(b * b - 8 * rows * c) - b) / (4 * rows)
        variance = rows * (2 * restricted + difference * (1 - difference))
        return (higher - lower - rows * difference) / math.sqrt(variance)

    seen = (higher - lower) / rows
    return (
        brentq(lambda it: score(it) - z, -1 + 1e-15, seen - 1e-9, xtol=1e-15),
        brentq(lambda it: score(it) + z, seen + 1e-9, 1 - 1e-15, xtol=1e-15),
    )


@pytest.mark.parametrize(
    ("higher", "lower", "rows"), [(7, 1, 21), (3, 5, 100), (2, 2, 10), (12, 6, 19), (9, 9, 18), (1, 1, 1000)]
)
def test_binary_attempts_have_tangos_interval(higher: int, lower: int, rows: int) -> None:
    found = score_interval(binary(higher, lower, rows), confidence=0.95)
    assert (found.low, found.high) == pytest.approx(tango(higher, lower, rows, Z), abs=1e-10)


def test_airway_responsiveness_has_the_interval_that_was_published() -> None:
    # Fagerland, Lydersen and Laake 2014 ("Recommended Tests and Confidence Intervals for Paired Binomial Proportions"): 1 and 7 of 21 children changed; -0.517 to -0.026.
    found = score_interval(binary(1, 7, 21), confidence=0.95)
    assert (found.low, found.high) == pytest.approx((-0.517, -0.026), abs=5e-4)


@pytest.mark.imports_much
@pytest.mark.parametrize("rows", [1, 10, 400])
def test_no_row_that_differs_has_wilsons_bound_of_zero(rows: int) -> None:
    from statsmodels.stats.proportion import proportion_confint

    found = score_interval(np.zeros(rows), confidence=0.95)
    upper = proportion_confint(0, rows, method="wilson")[1]
    assert (found.low, found.high) == pytest.approx((-upper, upper), abs=1e-10)
    assert found.p == 1.0


def test_the_score_test_takes_the_likeliest_distribution_with_the_mean_it_tests() -> None:
    by_row = np.array([-0.5, 0.0, 0.0, 0.25, 0.25, 0.75])
    found = score_interval(by_row, confidence=0.95)
    for bound in (found.low, found.high):
        # Owen's dual: the multiplier that maximises the sum of logs, within what both ends allow.
        ends = (-1 / (1 - bound), 1 / (1 + bound))
        multiplier = minimize_scalar(
            lambda it, bound=bound: -np.log1p(it * (by_row - bound)).sum(),
            bounds=ends,
            method="bounded",
            options={"xatol": 1e-12},
        ).x
        weights = 1 / (by_row.size * (1 + multiplier * (by_row - bound)))
        end = math.copysign(1.0, bound - by_row.mean())
        variance = weights @ np.square(by_row - bound) + max(1 - weights.sum(), 0) * (end - bound) ** 2
        assert abs(by_row.mean() - bound) / math.sqrt(variance / by_row.size) == pytest.approx(Z, abs=1e-4)


def test_differences_as_large_as_the_scale_bound_themselves() -> None:
    found = score_interval(np.ones(10), confidence=0.95)
    assert found.high == 1.0
    assert 0 < found.low < found.at_least < 1


def test_differences_that_cancel_but_for_rounding_have_an_interval_around_none() -> None:
    generator = np.random.default_rng(0)
    for _ in range(300):
        rows = generator.integers(1, 12, int(generator.integers(5, 25))) / generator.choice([7.0, 3e6, 1e150])
        by_row = np.sort(np.concatenate((rows, -rows)) / 13)
        found = score_interval(by_row, confidence=0.95)
        assert found.low <= by_row.mean() <= found.high
        assert found.p == pytest.approx(1.0)
