"""The parts of a run's variance against cases worked out by hand, by SciPy and by the definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from osmosis_ai.evaluation.variance import VarianceComponents

Attempts = list[tuple[int, float]]

attempts = st.lists(
    st.tuples(st.integers(0, 6), st.floats(-100, 100)),
    min_size=3,
    max_size=30,
    unique_by=lambda pair: pair[1],
).filter(lambda pairs: 2 <= len({row for row, _ in pairs}) < len(pairs))


def components(pairs: Attempts) -> VarianceComponents:
    found = VarianceComponents.of([value for _, value in pairs], [row for row, _ in pairs])
    assert found is not None
    return found


def test_equal_attempts_give_the_variance_of_row_means_less_the_noise_in_them() -> None:
    # Row means 1, 4 and 7 have variance 9; each is the mean of two attempts with variance 2.
    found = VarianceComponents.of([0, 2, 3, 5, 6, 8], [0, 0, 1, 1, 2, 2])
    assert found == VarianceComponents(between=8.0, within=2.0, rows=3, attempts=2.0)
    assert found.icc == pytest.approx(0.8)
    assert found.of_a_row(2) == pytest.approx(9)


def test_unequal_attempts_are_weighed_as_donner_does() -> None:
    # Rows of 1, 2 and 3 attempts: n_0 = (6 - 14/6) / 2 = 11/6; squares within are 0 + 8 + 18 with 3 degrees of freedom.
    found = VarianceComponents.of([1, 2, 6, 7, 10, 13], [0, 1, 1, 2, 2, 2])
    assert found is not None and found.within is not None
    means, counts = np.array([1.0, 4.0, 10.0]), np.array([1, 2, 3])
    among = float(counts @ (means - 6.5) ** 2) / 2
    assert found.within == pytest.approx(26 / 3, abs=1e-10)
    assert found.between == pytest.approx((among - 26 / 3) / (11 / 6), abs=1e-10)
    assert found.attempts == 2


def test_the_mean_squares_are_those_of_a_one_way_analysis_of_variance() -> None:
    random = np.random.default_rng(5)
    groups = [random.normal(random.normal(0, 2), 1, size) for size in (3, 4, 2, 6, 5)]
    found = VarianceComponents.of(np.concatenate(groups), np.repeat(range(5), [3, 4, 2, 6, 5]))
    assert found is not None and found.within is not None
    weight = (20 - (9 + 16 + 4 + 36 + 25) / 20) / 4
    ratio = (found.between * weight + found.within) / found.within
    assert ratio == pytest.approx(stats.f_oneway(*groups).statistic, rel=1e-10)


def test_rows_that_differ_less_than_chance_have_no_variance_between_them_and_say_so() -> None:
    found = VarianceComponents.of([0, 1, 0, 1, 1, 0], [0, 0, 1, 1, 2, 2])
    assert found is not None
    assert (found.between, found.within, found.negative, found.icc) == (0.0, 0.5, True, 0.0)


def test_one_attempt_a_row_cannot_tell_rows_from_attempts() -> None:
    found = VarianceComponents.of([1, 2, 3], [7, 3, 5])
    assert found == VarianceComponents(between=1.0, within=None, rows=3, attempts=1.0)
    assert found.icc is None
    assert found.of_a_row(16) == 1.0


def test_one_row_says_nothing() -> None:
    assert VarianceComponents.of([1, 2, 3], [4, 4, 4]) is None
    assert VarianceComponents.of([], []) is None
    assert VarianceComponents.of_pairs([1, 2], [0, 1], [3, 4], [1, 2]) is None


@pytest.mark.parametrize("value", [0.1, 1 / 3, 7e7])
def test_values_that_are_all_the_same_have_exactly_no_spread(value: float) -> None:
    rows = [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 2]
    found = VarianceComponents.of([value] * 11, rows)
    assert found is not None and (found.between, found.within, found.icc) == (0.0, 0.0, None)
    pair = VarianceComponents.of_pairs([value] * 11, rows, [value * 3] * 11, rows)
    assert pair is not None and (pair.between, pair.within) == (0.0, 0.0)


def test_numbers_whose_squares_overflow_have_no_components() -> None:
    assert VarianceComponents.of([1e200, -1e200, 0.0], [0, 1, 2]) is None
    assert VarianceComponents.of_pairs([1e200, 1.0], [0, 1], [0.0, 1.0], [0, 1]) is None


def test_of_two_runs_it_is_the_difference_that_varies() -> None:
    # Differences of row means 2, 4 and 0 vary by 4; noise of 2 from each run's pair of attempts is taken off: 2/2 + 2/2.
    a, b = [0, 2, 4, 6, 10, 12], [2, 4, 8, 10, 10, 12]
    rows = [0, 0, 1, 1, 2, 2]
    found = VarianceComponents.of_pairs(a, rows, b, rows)
    assert found == VarianceComponents(between=2.0, within=4.0, rows=3, attempts=2.0)


def test_rows_of_one_run_alone_do_not_count_for_the_pair() -> None:
    both = VarianceComponents.of_pairs([0, 2, 4, 6, 9], [0, 0, 1, 1, 8], [2, 4, 8, 10, 1], [0, 0, 1, 1, 9])
    assert both is not None
    assert both.rows == 2


def test_one_attempt_in_either_run_leaves_the_noise_unknown() -> None:
    found = VarianceComponents.of_pairs([0, 2, 4, 6], [0, 0, 1, 1], [2, 8], [0, 1])
    assert found is not None
    assert found.within is None


def test_simulated_runs_have_the_components_they_were_made_with() -> None:
    random = np.random.default_rng(11)
    rows, n = 4000, np.random.default_rng(3).integers(1, 6, 4000)
    labels = np.repeat(np.arange(rows), n)
    values = random.normal(0, 2, rows)[labels] + random.normal(0, 3, labels.size)
    found = VarianceComponents.of(values, labels)
    assert found is not None and found.within is not None
    assert found.between == pytest.approx(4, rel=0.1)
    assert found.within == pytest.approx(9, rel=0.05)


def test_few_rows_tell_a_variance_badly() -> None:
    found = VarianceComponents(between=3.0, within=4.0, rows=5, attempts=4.0)
    low, high = found.interval()
    quantiles = stats.chi2.ppf([0.975, 0.025], 4)
    assert (low.of_a_row(4), high.of_a_row(4)) == pytest.approx((16 / quantiles[0], 16 / quantiles[1]))
    assert low.icc == pytest.approx(found.icc)


def test_a_variance_that_few_rows_make_is_known_worse() -> None:
    even = VarianceComponents.of([0.0, 1.0] * 20, range(40))
    lone = VarianceComponents.of([0.0] * 39 + [1.0], range(40))
    assert even is not None and lone is not None and lone.degrees is not None
    assert even.degrees == 39
    assert 3 <= lone.degrees < 4
    assert even.interval()[1].between / even.between < lone.interval()[1].between / lone.between


def test_the_degrees_are_those_of_a_chi_square_with_the_variance_s_own_variance() -> None:
    values = np.random.default_rng(2).standard_t(6, 60)
    found = VarianceComponents.of(values, range(60))
    assert found is not None
    assert found.degrees == pytest.approx(2 / (2 / 59 + stats.kurtosis(values) / 60), rel=1e-10)


@given(attempts, st.permutations(range(30)))
def test_neither_the_order_of_attempts_nor_the_names_of_rows_matter(
    pairs: Attempts, order: list[int]
) -> None:
    shuffled = [(row * 3 + 1, value) for _, (row, value) in sorted(zip(order, pairs, strict=False))]
    first, second = components(pairs), components(shuffled)
    assert (second.between, second.within) == pytest.approx((first.between, first.within), rel=1e-9, abs=1e-9)


@given(attempts, st.floats(0.01, 100))
def test_scaling_values_scales_both_parts_by_the_square(pairs: Attempts, scale: float) -> None:
    first, second = components(pairs), components([(row, value * scale + 5) for row, value in pairs])
    scaled = first.scaled(scale**2)
    assert (second.between, second.within) == pytest.approx(
        (scaled.between, scaled.within), rel=1e-6, abs=1e-6
    )
