"""Ratios of means."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from osmosis_ai.evaluation.comparison.differences import Pairs, ratio_of_means


def test_what_costs_is_compared_by_ratio_with_t_on_logs() -> None:
    draw = np.random.default_rng(6)
    a, b = draw.lognormal(0, 1, (2, 30))
    counts = np.ones(30, dtype=np.int64)
    found = ratio_of_means(Pairs(a, 2 * b, counts, counts))
    expected = ttest_1samp(np.log(2 * b / a), 0)
    assert found is not None
    assert (found.kind, found.method, found.none) == ("ratio", "log-t", 1.0)
    assert (found.low, found.high) == pytest.approx(
        tuple(np.exp(expected.confidence_interval(0.95))), abs=1e-10
    )
    assert found.p == pytest.approx(expected.pvalue, abs=1e-10)
    back = ratio_of_means(Pairs(2 * b, a, counts, counts))
    assert back.reversed().low == pytest.approx(found.low)


def test_rows_that_cost_nothing_are_left_out_and_said() -> None:
    counts = np.ones(3, dtype=np.int64)
    found = ratio_of_means(Pairs(np.array([0.0, 1.0, 2.0]), np.array([1.0, 2.0, 4.0]), counts, counts))
    assert found is not None
    assert (found.value, found.rows) == (pytest.approx(2.0), 2)
    assert found.warning is not None and "1 of 3 rows" in found.warning
    assert found.low is None and found.reason is not None
    assert ratio_of_means(Pairs(np.zeros(3), np.ones(3), counts, counts)) is None
