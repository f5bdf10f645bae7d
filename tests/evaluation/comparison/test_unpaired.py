"""Runs on different rows: Welch where rows vary, else put together from two rates."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ttest_ind

from osmosis_ai.evaluation.comparison.differences import (
    PassCounts,
    difference_of_counts,
    difference_of_means,
    unpaired_difference,
)


def test_two_runs_on_rows_of_their_own_have_the_interval_of_welch() -> None:
    draw = np.random.default_rng(3)
    a, b = draw.normal(0, 1, 40), draw.normal(0.4, 3, 25)
    found = unpaired_difference(a, range(40), b, range(25))
    expected = ttest_ind(b, a, equal_var=False)
    interval = expected.confidence_interval(0.95)
    assert found is not None
    assert (found.method, found.rows, found.samples) == ("welch", 65, 65)
    assert (found.low, found.high, found.p) == pytest.approx((*interval, expected.pvalue), abs=1e-10)


@pytest.mark.parametrize("factor", [1e-300, 1e-150, 1e100, 1e155, 1e300])
def test_rewards_of_any_size_have_welchs_interval(factor: float) -> None:
    draw = np.random.default_rng(3)
    a, b = draw.normal(0, 1, 40), draw.normal(0.4, 3, 25)
    plain = unpaired_difference(a, range(40), b, range(25))
    found = unpaired_difference(a * factor, range(40), b * factor, range(25))
    assert plain is not None and found is not None and plain.low is not None and plain.high is not None
    assert (found.low, found.high) == pytest.approx((plain.low * factor, plain.high * factor), rel=1e-9)
    assert found.p == pytest.approx(plain.p)


def test_attempts_on_one_row_count_as_one() -> None:
    draw = np.random.default_rng(4)
    a, b = draw.random((20, 4)), draw.random((30, 4))
    found = unpaired_difference(
        a.ravel(), np.repeat(np.arange(20), 4), b.ravel(), np.repeat(np.arange(30), 4), scale=(0.0, 1.0)
    )
    expected = ttest_ind(b.mean(axis=1), a.mean(axis=1), equal_var=False)
    assert found is not None
    assert found.p == pytest.approx(expected.pvalue, abs=1e-10)


def test_runs_of_which_every_row_passes_still_have_an_interval() -> None:
    found = unpaired_difference([10.0] * 10, range(10), [10.0] * 12, range(12), scale=(0.0, 10.0))
    assert found is not None
    assert found.value == 0 and found.p == 1
    assert -4 < found.low < -2 and 2 < found.high < 4
    assert unpaired_difference([1.0] * 10, range(10), [1.0] * 12, range(12)).reason is not None


def test_few_rows_that_vary_are_told_apart_only_when_they_are() -> None:
    alike = unpaired_difference([1.0] * 9 + [0.0], range(10), [1.0] * 10, range(10), scale=(0.0, 1.0))
    apart = unpaired_difference([0.0] * 10, range(10), [1.0] * 10, range(10), scale=(0.0, 1.0))
    assert alike is not None and apart is not None
    assert not alike.excludes_none and alike.p > 0.05
    assert apart.excludes_none and apart.p < 0.001
    swapped = unpaired_difference([1.0] * 10, range(10), [1.0] * 9 + [0.0], range(10), scale=(0.0, 1.0))
    assert swapped.reversed().low == pytest.approx(alike.low)


@pytest.mark.imports_much
def test_counts_alone_have_newcombes_interval() -> None:
    from statsmodels.stats.proportion import confint_proportions_2indep

    found = difference_of_counts(PassCounts(56, 70, 70), PassCounts(48, 80, 80))
    expected = confint_proportions_2indep(48, 80, 56, 70, method="newcomb", compare="diff")
    assert (found.low, found.high) == pytest.approx(expected, abs=1e-10)
    assert found.warning is None
    assert (found.p < 0.05) == found.excludes_none
    at = difference_of_counts(PassCounts(56, 70, 70), PassCounts(48, 80, 80), confidence=1 - found.p)
    assert at.high == pytest.approx(0, abs=1e-9)


def test_counts_of_several_attempts_a_row_count_each_row_once() -> None:
    found = difference_of_counts(PassCounts(200, 400, 100), PassCounts(210, 400, 100))
    assert found.warning is not None and "a row counts once" in found.warning
    one_attempt = difference_of_counts(PassCounts(50, 100, 100), PassCounts(50, 100, 100))
    assert found.low is not None and one_attempt.low is not None
    assert found.high is not None and one_attempt.high is not None
    assert found.high - found.low == pytest.approx(one_attempt.high - one_attempt.low, abs=1e-3)
    assert found.samples == 800


def test_a_run_without_samples_can_not_be_compared() -> None:
    assert unpaired_difference([], [], [1.0], [0]) is None
    with pytest.raises(ValueError, match="needs samples"):
        difference_of_counts(PassCounts(0, 0, 0), PassCounts(1, 1, 1))


def test_two_means_with_their_errors_have_the_normal_interval_of_their_difference() -> None:
    found = difference_of_means(0.5, 0.03, 0.6, 0.04)
    assert (found.low, found.high) == pytest.approx((0.1 - 1.959964 * 0.05, 0.1 + 1.959964 * 0.05), abs=1e-6)
    assert found.p == pytest.approx(0.0455, abs=1e-4) and found.excludes_none
    assert difference_of_means(0.5, 0.0, 0.6, 0.0).low is None
