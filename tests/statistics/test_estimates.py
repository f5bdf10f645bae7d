"""Estimates, intervals and variances, against closed forms, SciPy and simulations."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scripts import interval_coverage as coverage

from osmosis_ai.statistics.estimates import (
    Estimate,
    describe,
    estimate_mean,
    estimate_rate,
    estimate_reward,
    percentiles,
)
from osmosis_ai.statistics.variance import VarianceComponents

finite = st.floats(-1e6, 1e6)


@given(st.lists(finite, min_size=2, max_size=40).filter(lambda values: np.std(values) > 1e-3))
def test_with_one_sample_a_row_the_error_is_the_usual_one(values: list[float]) -> None:
    estimate = estimate_mean(values, range(len(values)))
    assert estimate is not None and estimate.low is not None
    assert estimate.stderr == pytest.approx(stats.sem(values))
    low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    assert (estimate.low, estimate.high) == pytest.approx((low, high))


@given(
    st.lists(st.lists(st.integers(-50, 50), min_size=1, max_size=5), min_size=2, max_size=8),
    st.randoms(use_true_random=False),
)
def test_every_row_weighs_the_same_however_many_of_its_attempts_were_scored(
    rows: list[list[int]], shuffler: object
) -> None:
    samples = [(float(value), row) for row, values in enumerate(rows) for value in values]
    shuffler.shuffle(samples)  # type: ignore[attr-defined]
    estimate = estimate_mean([value for value, _ in samples], [row for _, row in samples])
    assert estimate is not None
    means = [sum(values) / len(values) for values in rows]
    assert estimate.value == pytest.approx(sum(means) / len(means))
    assert estimate.stderr == pytest.approx(stats.sem(means), abs=1e-6)
    assert (estimate.n, estimate.clusters) == (len(samples), len(rows))


@given(
    st.lists(st.integers(-50, 50), min_size=3, max_size=12),
    st.data(),
)
def test_rows_that_are_copies_share_one_residual(means: list[int], data: st.DataObject) -> None:
    clusters = data.draw(st.lists(st.integers(0, 4), min_size=len(means), max_size=len(means)))
    estimate = estimate_mean(means, range(len(means)), clusters)
    assert estimate is not None
    mean = sum(means) / len(means)
    assert estimate.value == pytest.approx(mean)
    groups = len(set(clusters))
    assert estimate.clusters == groups
    if groups == 1:
        assert estimate.stderr is None
        return
    pairs = sum(
        (a - mean) * (b - mean)
        for a, i in zip(means, clusters, strict=True)
        for b, j in zip(means, clusters, strict=True)
        if i == j
    )
    expected = math.sqrt(max(0.0, groups / (groups - 1) * pairs)) / len(means)
    assert estimate.stderr == pytest.approx(expected, abs=1e-6)


def test_copies_of_a_row_widen_the_interval_and_leave_the_rate() -> None:
    passes = [1.0] * 15 + [0.0] * 15
    apart = estimate_rate(passes, range(30))
    copies = estimate_rate(passes, range(30), [row // 3 for row in range(30)])
    assert apart is not None and copies is not None
    assert apart.value == copies.value == 0.5
    assert (apart.clusters, copies.clusters) == (30, 10)
    assert_bounds(copies, clopper_pearson(5, 10))
    assert bounds(copies)[0] < bounds(apart)[0]


def bounds(estimate: Estimate) -> tuple[float, float]:
    assert estimate.low is not None and estimate.high is not None
    return estimate.low, estimate.high


def clopper_pearson(passed: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    found = stats.binomtest(passed, n).proportion_ci(confidence, method="exact")
    return found.low, found.high


def assert_bounds(estimate: Estimate, expected: tuple[float, float]) -> None:
    assert bounds(estimate) == pytest.approx(expected, abs=1e-12)


def test_repeating_every_attempt_teaches_nothing() -> None:
    values = [0.1, 0.9, 0.4, 0.6, 0.8]
    once = estimate_mean(values, range(5))
    eight_times = estimate_mean(values * 8, list(range(5)) * 8)
    assert once is not None and eight_times is not None
    assert eight_times.stderr == pytest.approx(once.stderr)
    assert eight_times.low == pytest.approx(once.low)


@given(st.integers(1, 400), st.data())
def test_one_attempt_a_row_gets_clopper_and_pearsons_interval(n: int, data: st.DataObject) -> None:
    passed = data.draw(st.integers(0, n))
    estimate = estimate_rate([1.0] * passed + [0.0] * (n - passed), range(n))
    assert estimate is not None and estimate.method == "korn-graubard"
    assert_bounds(estimate, clopper_pearson(passed, n))
    # The one-sided 95% bounds are those of the two-sided 90%.
    assert (estimate.at_least, estimate.at_most) == pytest.approx(clopper_pearson(passed, n, 0.9), abs=1e-12)


def test_several_attempts_a_row_count_as_their_effective_number() -> None:
    # Korn and Graubard by hand: 12 rows x 4 attempts, rows with 1, 2 or 3 passes, four of each.
    passes = [1, 2, 3] * 4
    estimate = estimate_rate(
        [float(run < count) for count in passes for run in range(4)],
        [row for row in range(12) for _ in range(4)],
    )
    assert estimate is not None
    variance = np.var([count / 4 for count in passes], ddof=1) / 12
    # Without the rows' say 0.25 / variance are more than the 48 samples there are.
    assert 0.25 / variance > 48
    assert_bounds(estimate, clopper_pearson(24, 48))

    passes = [1, 1, 1, 3, 3, 3] * 2 + [0, 4] * 2
    estimate = estimate_rate(
        [float(run < count) for count in passes for run in range(4)],
        [row for row in range(16) for _ in range(4)],
    )
    assert estimate is not None
    variance = np.var([count / 4 for count in passes], ddof=1) / 16
    size = 0.25 / variance * (stats.t.ppf(0.975, 63) / stats.t.ppf(0.975, 15)) ** 2
    assert 16 < size < 64
    low, high = (
        stats.beta.ppf(tail, 0.5 * size + up, 0.5 * size + 1 - up) for tail, up in ((0.025, 0), (0.975, 1))
    )
    assert_bounds(estimate, (low, high))


def test_few_rows_off_the_floor_count_as_rows_however_often_each_was_tried() -> None:
    passes = [1] * 8 + [0] * 22
    estimate = estimate_rate(
        [float(run < count) for count in passes for run in range(16)],
        [row for row in range(30) for _ in range(16)],
    )
    assert estimate is not None
    hits = 30 * 8 / 480
    assert_bounds(
        estimate, (stats.beta.ppf(0.025, hits, 31 - hits), stats.beta.ppf(0.975, hits + 1, 30 - hits))
    )


def test_an_interval_can_be_had_at_another_confidence() -> None:
    estimate = estimate_rate([1.0] * 7 + [0.0] * 3, range(10), confidence=0.8)
    mean = estimate_mean([0.1, 0.5, 0.7], range(3), confidence=0.8)
    assert estimate is not None and mean is not None
    assert_bounds(estimate, clopper_pearson(7, 10, 0.8))
    expected = stats.t.interval(0.8, 2, loc=mean.value, scale=stats.sem([0.1, 0.5, 0.7]))
    assert_bounds(mean, expected)
    assert mean.at_most == pytest.approx(mean.value + stats.t.ppf(0.8, 2) * stats.sem([0.1, 0.5, 0.7]))


def test_the_one_sided_bound_of_a_mean_is_moved_out_on_its_longer_tail() -> None:
    rewards = [1.0] * 40 + [0.2, 0.3, 0.4] * 3
    found = estimate_mean(rewards, range(49))
    assert found is not None and found.low is not None and found.at_least is not None
    t, skew = stats.t.ppf(0.95, 48), stats.skew(rewards)
    expected = found.value - (t + abs(skew) * (1 + 2 * t * t) / 6 / 7) * stats.sem(rewards)
    assert skew < 0
    assert found.at_least == pytest.approx(max(expected, found.low))
    assert found.at_most == pytest.approx(found.value + t * stats.sem(rewards))


def test_without_a_range_the_interval_of_a_reward_ends_at_the_rewards_observed() -> None:
    found, mean = estimate_reward([0.2, 0.9, 1.0], range(3)), estimate_mean([0.2, 0.9, 1.0], range(3))
    assert found is not None and mean is not None
    assert mean.low is not None and mean.low < 0.2
    assert (found.value, found.low, found.high) == (mean.value, 0.2, 1.0)
    # Three rows must not pass a rule because of the cut.
    assert (found.at_least, found.at_most) == (mean.at_least, mean.at_most)


def test_with_a_range_a_reward_is_estimated_as_a_rate_of_it() -> None:
    rewards, rows = [1.0, 0.5, 0.5, 4.0, 5.0, 3.5], [0, 0, 1, 1, 2, 2]
    found = estimate_reward(rewards, rows, reward_range=(-3.0, 5.0))
    rate = estimate_rate([(reward + 3) / 8 for reward in rewards], rows)
    assert found is not None and rate is not None and found.method == rate.method
    for name in ("value", "low", "high", "at_least", "at_most"):
        assert getattr(found, name) == pytest.approx(-3 + 8 * getattr(rate, name))
    assert found.stderr == pytest.approx(8 * rate.stderr)
    with pytest.raises(ValueError, match="between"):
        estimate_reward([6.0], [0], reward_range=(-3.0, 5.0))


def test_rewards_that_are_passes_or_failures_have_the_interval_of_a_rate() -> None:
    rewards = [1.0] * 9 + [0.0]
    reward, rate = estimate_reward(rewards, range(10)), estimate_rate(rewards, range(10))
    assert reward == rate and reward is not None and reward.high is not None and reward.high < 1
    graded = estimate_reward([1.0] * 8 + [0.5, 0.0], range(10))
    assert graded is not None and graded.method == "student-t"


def test_a_skewed_reward_of_few_rows_warns_beside_the_number() -> None:
    rewards = [0.0] * 45 + [10.0] * 5
    skewed = estimate_mean(rewards, range(50))
    assert skewed is not None and skewed.warning is not None
    assert f"skewed ({stats.skew(rewards):+.1f})" in skewed.warning and "50 rows" in skewed.warning
    many = estimate_mean(rewards * 2, range(100))
    even = estimate_mean([0.0, 10.0] * 25, range(50))
    assert many is not None and many.warning is None
    assert even is not None and even.warning is None


@given(
    st.lists(
        st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=4), min_size=1, max_size=12
    )
)
def test_an_interval_of_a_rate_holds_the_rate_and_stays_between_zero_and_one(rows: list[list[float]]) -> None:
    values = [value for row in rows for value in row]
    estimate = estimate_rate(values, [index for index, row in enumerate(rows) for _ in row])
    assert estimate is not None
    low, high = bounds(estimate)
    assert estimate.at_least is not None and estimate.at_most is not None
    assert 0 <= low <= estimate.at_least <= estimate.value + 1e-12
    assert estimate.value - 1e-12 <= estimate.at_most <= high <= 1
    assert low < high


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_all_passed_or_all_failed_is_uncertain_by_the_number_of_rows(value: float) -> None:
    estimate = estimate_rate([value] * 40, [row for row in range(10) for _ in range(4)])
    assert estimate is not None
    assert estimate.value == value
    assert_bounds(estimate, clopper_pearson(round(10 * value), 10))
    assert value in (estimate.low, estimate.high)


def test_one_row_gives_a_mean_without_error_or_interval() -> None:
    estimate = estimate_mean([0.0, 1.0, 1.0], [7, 7, 7])
    assert estimate is not None
    assert estimate.value == pytest.approx(2 / 3)
    assert (estimate.stderr, estimate.low, estimate.high) == (None, None, None)
    assert (estimate.n, estimate.clusters, estimate.method) == (3, 1, None)
    assert (estimate.at_least, estimate.at_most) == (None, None)
    assert estimate.reason == "the variance cannot be estimated from one row"


def test_one_row_gives_a_rate_that_could_be_nearly_anything() -> None:
    rate = estimate_rate([0.0, 1.0, 1.0], [7, 7, 7])
    assert rate is not None and rate.stderr is None
    low, high = bounds(rate)
    assert low < 0.01 and high > 0.99


@pytest.mark.parametrize(
    "values, rows", [([0.1] * 9, range(9)), ([0.1, 0.3, 0.2, 0.2, 0.3, 0.1], [0, 0, 1, 1, 2, 2])]
)
def test_rows_without_any_spread_give_no_interval_of_width_zero(values: list[float], rows: list[int]) -> None:
    estimate = estimate_mean(values, rows)
    assert estimate is not None
    assert (estimate.stderr, estimate.low, estimate.high) == (0.0, None, None)
    assert estimate.reason is not None and "the same mean" in estimate.reason


def test_no_samples_give_no_estimate() -> None:
    assert estimate_mean([], []) is None
    assert estimate_rate([], []) is None
    assert describe([]) is None
    assert percentiles([]) is None


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="one row per value"):
        estimate_mean([1.0, 2.0], [1])
    with pytest.raises(ValueError, match="finite"):
        estimate_mean([math.nan], [1])
    with pytest.raises(ValueError, match="between 0 and 1"):
        estimate_rate([1.5], [1])
    with pytest.raises(ValueError, match="one row per value"):
        estimate_rate([1.0, 0.0], [1, 2], [1])


def test_enormous_values_stay_finite() -> None:
    values = [1e308, -1e308, 1e308, 1.7e308]
    described = describe(values)
    estimate = estimate_mean(values, range(4))
    assert described is not None and estimate is not None and estimate.stderr is not None
    assert described.mean == pytest.approx(6.75e307)
    assert math.isfinite(described.std) and math.isfinite(estimate.stderr)
    assert all(bound is None or math.isfinite(bound) for bound in (estimate.low, estimate.high))


def test_a_description_is_the_populations() -> None:
    described = describe([1.0, 2.0, 3.0, 10.0])
    assert described is not None
    assert (described.mean, described.median, described.min, described.max) == (4.0, 2.5, 1.0, 10.0)
    assert described.std == pytest.approx(math.sqrt(12.5))


def test_percentiles_are_interpolated() -> None:
    found = percentiles(list(range(101)))
    assert found is not None
    assert (found.p50, found.p90, found.p95, found.p99) == (50.0, 90.0, 95.0, 99.0)


@pytest.mark.integration
def test_importing_the_module_loads_neither_numpy_nor_scipy() -> None:
    code = (
        "import sys, osmosis_ai.statistics.estimates, osmosis_ai.evaluation.metrics as m\n"
        "assert not {'numpy', 'scipy'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


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
    assert found.row_mean_variance(2) == pytest.approx(9)


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
    assert found.row_mean_variance(16) == 1.0


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
    assert (low.row_mean_variance(4), high.row_mean_variance(4)) == pytest.approx(
        (16 / quantiles[0], 16 / quantiles[1])
    )
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


REPLICATIONS = 400

# rows, attempts, intraclass correlation, pass rate
CELLS = {
    "a_few_rows_that_hardly_ever_pass": (10, 4, 0.6, 0.02),
    "a_few_rows_tried_often_that_hardly_ever_pass": (10, 16, 0.05, 0.02),
    "a_few_rows_of_which_most_pass": (10, 16, 0.6, 0.9),
    "a_few_rows_tried_once": (10, 1, 0.05, 0.1),
    "some_rows_that_hardly_ever_pass": (30, 16, 0.6, 0.02),
    "some_rows_that_nearly_always_pass": (30, 16, 0.6, 0.98),
    "some_rows_alike_that_nearly_always_pass": (30, 16, 0.05, 0.98),
    "some_rows_in_the_middle": (30, 4, 0.6, 0.5),
    "many_rows_that_nearly_always_pass": (100, 16, 0.6, 0.98),
    "many_rows_alike_that_seldom_pass": (100, 4, 0.05, 0.1),
    "many_rows_tried_once_that_nearly_always_pass": (100, 1, 0.05, 0.98),
    "very_many_rows_that_hardly_ever_pass": (400, 4, 0.6, 0.02),
}
# Of these, others above are alike; `make nightly` tries them, and the whole grid.
RARELY_TELLING = (
    "a_few_rows_of_which_most_pass",
    "some_rows_alike_that_nearly_always_pass",
    "some_rows_in_the_middle",
    "many_rows_that_nearly_always_pass",
    "many_rows_alike_that_seldom_pass",
)


@pytest.mark.integration
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name in RARELY_TELLING)) for name in CELLS]
)
def test_printed_intervals_hold_the_truth_of(name: str) -> None:
    rows, attempts, correlation, rate = CELLS[name]
    found = coverage.simulate(coverage.Cell(rows, attempts, correlation, rate), REPLICATIONS)
    expected = {"pass rate", "reward", "unscored"} | (
        {"pass@2", f"pass@{attempts}"} if attempts > 1 else set()
    )
    assert set(found.numbers) == expected
    for number, held in found.numbers.items():
        assert held.enough, f"{number}: {held}"
    assert found.numbers["pass rate"].printed == REPLICATIONS


@pytest.mark.integration
@pytest.mark.parametrize("rewards", ["mostly right", "all near the bottom"])
@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_intervals_of_graded_rewards_with_a_range_contain_the_true_mean(
    rewards: str, correlation: float
) -> None:
    found = coverage.simulate_graded(coverage.GradedCell(13, 9, correlation, rewards), REPLICATIONS)
    assert found.printed == REPLICATIONS
    assert found.held >= 0.93 * REPLICATIONS and found.enough, str(found)


@pytest.mark.integration
@pytest.mark.parametrize(("rows", "attempts"), [(10, 4), (10, 12), (31, 4)])
def test_a_comparison_detects_what_the_plan_promises(rows: int, attempts: int) -> None:
    _, power = coverage.simulate_pairs(coverage.planned(rows, attempts), 600)
    assert 0.75 <= power <= 0.85


@pytest.mark.integration
def test_the_simulation_sees_an_interval_that_is_too_narrow() -> None:
    cell = coverage.Cell(30, 16, 0.6, 0.02)
    pretending = coverage.Coverage()
    draw = np.random.default_rng(1)
    for _ in range(REPLICATIONS):
        chances = draw.beta(0.02 / 0.6 - 0.02, 0.98 / 0.6 - 0.98, cell.rows)
        attempts = (draw.random((cell.rows, cell.attempts)) < chances[:, None]).ravel().astype(float)
        # Attempts taken for independent, as though each were a row of its own.
        pretending.add(estimate_rate(attempts, range(attempts.size)), cell.rate)
    assert not pretending.enough
