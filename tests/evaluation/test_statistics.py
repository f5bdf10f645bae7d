from __future__ import annotations

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from osmosis_ai.evaluation.statistics import (
    describe,
    estimate_mean,
    estimate_pass_at_k,
    estimate_rate,
    paired_difference,
    pass_at_k,
    pass_at_k_by_row,
    percentiles,
    wilson_interval,
)

finite = st.floats(-1e6, 1e6)


@given(st.integers(1, 7), st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_pass(n: int, data: st.DataObject) -> None:
    c = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_pass_at_k_of_thousands_of_attempts_is_exact() -> None:
    assert pass_at_k(5000, 1, 2500) == pytest.approx(0.5)
    assert pass_at_k(5000, 0, 5000) == 0.0
    assert pass_at_k(5000, 5000, 1) == 1.0


@pytest.mark.parametrize("n, c, k", [(4, 5, 1), (4, -1, 1), (4, 1, 0), (4, 1, 5), (0, 0, 1)])
def test_pass_at_k_without_meaning_is_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k}"):
        pass_at_k(n, c, k)


def test_pass_at_k_takes_the_rows_with_enough_attempts() -> None:
    assert pass_at_k_by_row([4, 2, 1, 4, 4], [1, 1, 1, 0, 1], 2).tolist() == [0.5, 1.0, 0.0, 0.5]
    assert pass_at_k_by_row([1, 1], [0, 1], 2).size == 0
    estimate = estimate_pass_at_k([4, 2, 1, 4, 4], [1, 1, 1, 0, 1], 2)
    assert estimate is not None
    assert (estimate.value, estimate.n, estimate.clusters) == (0.5, 14, 4)
    assert estimate_pass_at_k([1, 1], [0, 1], 2) is None


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
def test_the_clustered_error_is_the_sum_over_pairs_of_the_same_row(
    rows: list[list[int]], shuffler: object
) -> None:
    samples = [(float(value), row) for row, values in enumerate(rows) for value in values]
    shuffler.shuffle(samples)  # type: ignore[attr-defined]
    estimate = estimate_mean([value for value, _ in samples], [row for _, row in samples])
    assert estimate is not None
    mean = sum(value for value, _ in samples) / len(samples)
    pairs = sum((a - mean) * (b - mean) for a, i in samples for b, j in samples if i == j)
    correction = len(rows) / (len(rows) - 1)
    expected = math.sqrt(max(0.0, correction * pairs)) / len(samples)
    assert estimate.value == pytest.approx(mean)
    assert estimate.stderr == pytest.approx(expected, abs=1e-6)
    assert (estimate.n, estimate.clusters) == (len(samples), len(rows))


def test_repeating_every_attempt_teaches_nothing() -> None:
    values = [0.1, 0.9, 0.4, 0.6, 0.8]
    once = estimate_mean(values, range(5))
    eight_times = estimate_mean(values * 8, list(range(5)) * 8)
    assert once is not None and eight_times is not None
    assert eight_times.stderr == pytest.approx(once.stderr)
    assert eight_times.low == pytest.approx(once.low)


def simulate(draw: np.random.Generator, rows: int, attempts: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw passes of rows that are hard or easy, the true rate being 0.4."""
    chance = draw.beta(0.8, 1.2, size=rows)
    passes = draw.random((rows, attempts)) < chance[:, None]
    return passes.ravel().astype(float), np.repeat(np.arange(rows), attempts)


def test_intervals_hold_the_truth_nineteen_times_in_twenty() -> None:
    draw = np.random.default_rng(20250917)
    held = naive = 0
    means, errors = [], []
    for _ in range(1000):
        values, rows = simulate(draw, rows=50, attempts=8)
        estimate = estimate_rate(values, rows)
        assert estimate is not None and estimate.low is not None and estimate.high is not None
        assert estimate.stderr is not None
        held += estimate.low <= 0.4 <= estimate.high
        low, high = wilson_interval(estimate.value, estimate.n)
        naive += low <= 0.4 <= high
        means.append(estimate.value)
        errors.append(estimate.stderr)
    assert 930 <= held <= 970
    assert naive < 750  # what ignoring the rows would claim
    assert np.mean(errors) == pytest.approx(np.std(means), rel=0.06)


@given(st.integers(1, 400), st.data())
def test_one_attempt_a_row_gets_wilsons_interval(n: int, data: st.DataObject) -> None:
    passed = data.draw(st.integers(0, n))
    estimate = estimate_rate([1.0] * passed + [0.0] * (n - passed), range(n))
    expected = stats.binomtest(passed, n).proportion_ci(0.95, method="wilson")
    assert estimate is not None and estimate.method == "wilson"
    assert (estimate.low, estimate.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


@given(
    st.lists(
        st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=4), min_size=1, max_size=12
    )
)
def test_an_interval_of_a_rate_holds_the_rate_and_stays_between_zero_and_one(rows: list[list[float]]) -> None:
    values = [value for row in rows for value in row]
    estimate = estimate_rate(values, [index for index, row in enumerate(rows) for _ in row])
    assert estimate is not None
    if estimate.low is not None and estimate.high is not None:
        assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
        assert estimate.low < estimate.high


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_all_passed_or_all_failed_is_uncertain_by_the_number_of_rows(value: float) -> None:
    estimate = estimate_rate([value] * 40, [row for row in range(10) for _ in range(4)])
    assert estimate is not None
    assert estimate.value == value
    assert (estimate.low, estimate.high) == wilson_interval(value, 10)
    assert value in (estimate.low, estimate.high)


def test_one_row_gives_a_mean_without_error_or_interval() -> None:
    estimate = estimate_mean([0.0, 1.0, 1.0], [7, 7, 7])
    assert estimate is not None
    assert estimate.value == pytest.approx(2 / 3)
    assert (estimate.stderr, estimate.low, estimate.high) == (None, None, None)
    assert (estimate.n, estimate.clusters, estimate.method) == (3, 1, None)
    rate = estimate_rate([0.0, 1.0, 1.0], [7, 7, 7])
    assert rate is not None and rate.low is None


@pytest.mark.parametrize(
    "values, rows", [([0.1] * 9, range(9)), ([0.1, 0.3, 0.2, 0.2, 0.3, 0.1], [0, 0, 1, 1, 2, 2])]
)
def test_rows_without_any_spread_give_no_interval_of_width_zero(values: list[float], rows: list[int]) -> None:
    estimate = estimate_mean(values, rows)
    assert estimate is not None
    assert (estimate.stderr, estimate.low, estimate.high) == (0.0, None, None)


def test_no_samples_give_no_estimate() -> None:
    assert estimate_mean([], []) is None
    assert estimate_rate([], []) is None
    assert describe([]) is None
    assert percentiles([]) is None
    assert paired_difference([1.0], [0], [1.0], [1]) is None


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="one row per value"):
        estimate_mean([1.0, 2.0], [1])
    with pytest.raises(ValueError, match="finite"):
        estimate_mean([math.nan], [1])
    with pytest.raises(ValueError, match="between 0 and 1"):
        estimate_rate([1.5], [1])
    with pytest.raises(ValueError, match="no interval"):
        wilson_interval(0.5, 0)


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


def test_a_paired_difference_is_the_paired_t_interval_of_row_means() -> None:
    a = np.array([[0.2, 0.4], [0.9, 0.7], [0.5, 0.5], [0.1, 0.2]])
    b = np.array([[0.1, 0.2], [0.8, 0.9], [0.2, 0.4], [0.1, 0.0]])
    rows = np.repeat([3, 5, 8, 13], 2)
    estimate = paired_difference(a.ravel(), rows, b.ravel(), rows)
    expected = stats.ttest_rel(a.mean(axis=1), b.mean(axis=1)).confidence_interval(0.95)
    assert estimate is not None
    assert estimate.value == pytest.approx((a.mean(axis=1) - b.mean(axis=1)).mean())
    assert (estimate.low, estimate.high) == pytest.approx((expected.low, expected.high))
    assert (estimate.n, estimate.clusters) == (16, 4)


def test_a_paired_difference_uses_common_rows_only_and_each_once() -> None:
    estimate = paired_difference([1.0, 1.0, 1.0, 0.0, 9.0], [1, 1, 1, 2, 3], [0.0, 0.5, 7.0], [1, 2, 4])
    assert estimate is not None
    assert estimate.value == pytest.approx((1.0 - 0.5) / 2)
    assert (estimate.n, estimate.clusters) == (6, 2)


def test_pairing_narrows_the_interval_where_runs_agree_on_what_is_hard() -> None:
    draw = np.random.default_rng(1)
    hard = draw.random(100)
    a, b = hard + draw.normal(0.1, 0.05, 100), hard + draw.normal(0, 0.05, 100)
    paired = paired_difference(a, range(100), b, range(100))
    alone = estimate_mean(a, range(100))
    assert paired is not None and alone is not None and paired.stderr is not None and alone.stderr is not None
    assert paired.stderr < alone.stderr / 3
    assert paired.low is not None and paired.low > 0


def test_importing_the_module_loads_neither_numpy_nor_scipy() -> None:
    code = (
        "import sys, osmosis_ai.evaluation.statistics, osmosis_ai.evaluation.metrics as m\n"
        "assert not {'numpy', 'scipy'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
