"""Statistical power, against simulations and cases worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from osmosis_ai.statistics.power import best_n, detectable, n_needed, power_of, rows_needed
from osmosis_ai.statistics.variance import VarianceComponents


def spread(between: float = 0.04, within: float | None = 0.16, rows: int = 100) -> VarianceComponents:
    return VarianceComponents(between, within, rows, 4.0)


parts = st.builds(spread, st.floats(0.001, 4), st.floats(0.001, 4))


def test_detectable() -> None:
    quantiles = stats.t.ppf(0.975, 99) + stats.t.ppf(0.8, 99)
    least = detectable(spread(), 100, 4)
    assert least == pytest.approx(quantiles * math.sqrt((0.04 + 0.04) / 100), rel=1e-10)
    assert power_of(least, spread(), 100, 4) == pytest.approx(0.8, abs=0.01)
    one_sided = stats.t.ppf(0.9, 99) + stats.t.ppf(0.7, 99)
    found = detectable(spread(), 100, 4, confidence=0.9, power=0.7, sides=1)
    assert found == pytest.approx(one_sided * math.sqrt(0.08 / 100), rel=1e-10)
    assert detectable(spread(), 1, 4) is None


@pytest.mark.parametrize("rows", [3, 10, 30])
@pytest.mark.parametrize("share", [0.2, 0.5, 1.0, 1.5])
def test_power_against_simulation(rows: int, share: float) -> None:
    random = np.random.default_rng(rows)
    least = detectable(spread(), rows, 4)
    of_rows = random.normal(share * least, math.sqrt(0.08), (20_000, rows))
    found = stats.ttest_1samp(of_rows, 0, axis=1).pvalue < 0.05
    assert power_of(share * least, spread(), rows, 4) == pytest.approx(found.mean(), abs=0.012)


@pytest.mark.parametrize("rows", [2, 10, 100_000])
def test_power_of_extreme_differences(rows: int) -> None:
    assert power_of(0, spread(), rows, 4) == pytest.approx(0.05)
    assert power_of(0, spread(), rows, 4, sides=1) == pytest.approx(0.05)
    assert power_of(1e6, spread(), rows, 4) == pytest.approx(1, abs=0.05)
    assert power_of(1, spread(0, 0), rows, 4) == 1


@given(parts, st.floats(0.02, 2), st.integers(1, 16))
def test_rows_needed(components: VarianceComponents, difference: float, n: int) -> None:
    rows = rows_needed(difference, components, n)
    enough, fewer = detectable(components, rows, n), detectable(components, rows - 1, n)
    assert enough <= difference
    assert fewer is None or fewer > difference


@given(parts, st.floats(0.02, 2), st.integers(2, 400))
def test_attempts_needed(components: VarianceComponents, difference: float, rows: int) -> None:
    n = n_needed(difference, components, rows)
    if n is None:
        most = detectable(components, rows, 10_000)
        assert most > difference * 0.999
        return
    enough = detectable(components, rows, n)
    assert enough <= difference * (1 + 1e-9)
    if n > 1:
        fewer = detectable(components, rows, n - 1)
        assert fewer > difference


@given(parts, st.integers(2, 1000), st.integers(1, 16), st.floats(0.01, 100))
def test_detectable_scales_with_rewards(
    components: VarianceComponents, rows: int, n: int, scale: float
) -> None:
    least, scaled = detectable(components, rows, n), detectable(components.scaled(scale**2), rows, n)
    assert scaled == pytest.approx(least * scale)


def test_unreachable_difference() -> None:
    assert n_needed(0.01, spread(), 100) is None
    assert n_needed(0.1, spread(within=None), 100) is None
    assert rows_needed(1e-9, spread(), 4) is None


def test_best_n() -> None:
    assert best_n(spread(), cost_row=4.0, cost_attempt=0.25) == 8  # sqrt(16 * 4)
    assert best_n(spread(), cost_row=0.0, cost_attempt=0.25) == 1
    assert best_n(spread(), cost_row=0.001, cost_attempt=0.25) == 1
    assert best_n(spread(within=None), cost_row=1.0, cost_attempt=0.25) is None
    assert best_n(spread(between=0.0), cost_row=1.0, cost_attempt=0.25) is None
