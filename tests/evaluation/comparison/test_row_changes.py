"""Rows broken, fixed and unstable; ratios; and what unscored attempts could have been."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import fisher_exact, ttest_1samp

from osmosis_ai.evaluation.comparison.differences import Pairs
from osmosis_ai.evaluation.comparison.ratios import ratio_of_means
from osmosis_ai.evaluation.comparison.row_changes import fisher_exact_p, row_changes


def test_a_row_is_broken_when_an_exact_test_says_so_among_all_rows() -> None:
    found = row_changes([8, 0, 6, 8, 4], [8] * 5, [0, 8, 4, 8, 5], [8] * 5)
    assert (found.broken.tolist(), found.fixed.tolist(), found.unstable.tolist()) == ([0], [1], [2, 4])
    assert found.p[0] == pytest.approx(2 / math.comb(16, 8))
    assert found.p_adjusted[0] == pytest.approx(found.p[0] * 5 / 2)


def test_fishers_p_value_is_scipys() -> None:
    for table in ((3, 4, 0, 4), (1, 1, 0, 3), (0, 5, 5, 5), (7, 20, 15, 18), (2, 2, 2, 2)):
        a, tried_a, b, tried_b = table
        expected = fisher_exact([[a, tried_a - a], [b, tried_b - b]]).pvalue
        assert fisher_exact_p(*table) == pytest.approx(expected, abs=1e-12)


def test_one_attempt_a_row_breaks_nothing_for_sure() -> None:
    found = row_changes([1, 1, 0], [1, 1, 1], [0, 1, 1], [1, 1, 1])
    assert not found.broken.size and not found.fixed.size
    assert found.unstable.tolist() == [0, 2]


@pytest.mark.integration
def test_rows_that_only_chance_changed_are_seldom_called_broken() -> None:
    draw = np.random.default_rng(1)
    shape = (400, 100)
    chances = draw.beta(1, 1, shape)
    runs = [draw.binomial(16, chances) for _ in range(2)]
    tried = np.full(100, 16)
    called = 0
    for a, b in zip(*runs, strict=True):
        found = row_changes(a, tried, b, tried)
        called += bool(found.broken.size or found.fixed.size)
    assert called <= 0.05 * 400


def test_a_row_can_not_pass_more_often_than_it_was_tried() -> None:
    with pytest.raises(ValueError, match="more passes"):
        row_changes([3], [2], [0], [2])
    assert row_changes([], [], [], []).p.size == 0


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
