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

from osmosis_ai.statistics.estimates import (
    Estimate,
    describe,
    estimate_mean,
    estimate_rate,
    estimate_reward,
    percentiles,
)
from osmosis_ai.statistics.variance import VarianceComponents
from tests.nightly import interval_coverage as coverage


@given(
    st.lists(st.lists(st.integers(-50, 50), min_size=1, max_size=5), min_size=2, max_size=8).filter(
        lambda rows: np.std([np.mean(row) for row in rows]) > 1e-3
    ),
    st.randoms(use_true_random=False),
)
def test_mean_weights_rows_equally(rows: list[list[int]], shuffler: object) -> None:
    samples = [(float(value), row) for row, values in enumerate(rows) for value in values]
    shuffler.shuffle(samples)  # type: ignore[attr-defined]
    estimate = estimate_mean([value for value, _ in samples], [row for _, row in samples])
    means = [sum(values) / len(values) for values in rows]
    assert estimate.value == pytest.approx(np.mean(means), abs=1e-9)
    assert estimate.stderr == pytest.approx(stats.sem(means))
    interval = stats.t.interval(0.95, len(means) - 1, loc=np.mean(means), scale=stats.sem(means))
    assert (estimate.low, estimate.high) == pytest.approx(interval)
    assert (estimate.n, estimate.clusters) == (len(samples), len(rows))


@given(st.lists(st.integers(-50, 50), min_size=3, max_size=12), st.data())
def test_clustered_error_of_duplicate_rows(means: list[int], data: st.DataObject) -> None:
    clusters = data.draw(st.lists(st.integers(0, 4), min_size=len(means), max_size=len(means)))
    estimate = estimate_mean(means, range(len(means)), clusters)
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


def test_duplicate_rows_widen_the_interval() -> None:
    passes = [1.0] * 15 + [0.0] * 15
    apart = estimate_rate(passes, range(30))
    copies = estimate_rate(passes, range(30), [row // 3 for row in range(30)])
    assert apart.value == copies.value == 0.5
    assert (apart.clusters, copies.clusters) == (30, 10)
    assert_bounds(copies, clopper_pearson(5, 10))
    assert copies.low < apart.low


def clopper_pearson(passed: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    found = stats.binomtest(passed, n).proportion_ci(confidence, method="exact")
    return found.low, found.high


def assert_bounds(estimate: Estimate, expected: tuple[float, float]) -> None:
    assert (estimate.low, estimate.high) == pytest.approx(expected, abs=1e-12)


def rate_of(passes: list[int], attempts: int) -> Estimate | None:
    """Estimate a pass rate from the passes of each row."""
    values = [float(attempt < count) for count in passes for attempt in range(attempts)]
    return estimate_rate(values, np.repeat(range(len(passes)), attempts))


@given(st.integers(1, 400), st.data())
def test_rate_of_single_attempts(n: int, data: st.DataObject) -> None:
    passed = data.draw(st.integers(0, n))
    estimate = estimate_rate([1.0] * passed + [0.0] * (n - passed), range(n))
    assert estimate.method == "korn-graubard"
    assert_bounds(estimate, clopper_pearson(passed, n))
    # The one-sided 95% bounds are those of the two-sided 90%.
    assert (estimate.at_least, estimate.at_most) == pytest.approx(clopper_pearson(passed, n, 0.9), abs=1e-12)


def test_effective_sample_size() -> None:
    # Korn and Graubard by hand: 12 rows x 4 attempts, rows with 1, 2 or 3 passes, four of each.
    passes = [1, 2, 3] * 4
    variance = np.var([count / 4 for count in passes], ddof=1) / 12
    # The effective size is limited to the 48 samples.
    assert 0.25 / variance > 48
    assert_bounds(rate_of(passes, 4), clopper_pearson(24, 48))

    passes = [1, 1, 1, 3, 3, 3] * 2 + [0, 4] * 2
    variance = np.var([count / 4 for count in passes], ddof=1) / 16
    size = 0.25 / variance * (stats.t.ppf(0.975, 63) / stats.t.ppf(0.975, 15)) ** 2
    assert 16 < size < 64
    low, high = (
        stats.beta.ppf(tail, 0.5 * size + up, 0.5 * size + 1 - up) for tail, up in ((0.025, 0), (0.975, 1))
    )
    assert_bounds(rate_of(passes, 4), (low, high))


def test_few_rows_that_ever_pass() -> None:
    hits = 30 * 8 / 480
    low, high = stats.beta.ppf(0.025, hits, 31 - hits), stats.beta.ppf(0.975, hits + 1, 30 - hits)
    assert_bounds(rate_of([1] * 8 + [0] * 22, 16), (low, high))


def test_other_confidence() -> None:
    estimate = estimate_rate([1.0] * 7 + [0.0] * 3, range(10), confidence=0.8)
    mean = estimate_mean([0.1, 0.5, 0.7], range(3), confidence=0.8)
    assert_bounds(estimate, clopper_pearson(7, 10, 0.8))
    expected = stats.t.interval(0.8, 2, loc=mean.value, scale=stats.sem([0.1, 0.5, 0.7]))
    assert_bounds(mean, expected)
    assert mean.at_most == pytest.approx(mean.value + stats.t.ppf(0.8, 2) * stats.sem([0.1, 0.5, 0.7]))


def test_one_sided_bound_of_skewed_mean() -> None:
    rewards = [1.0] * 40 + [0.2, 0.3, 0.4] * 3
    found = estimate_mean(rewards, range(49))
    t, skew = stats.t.ppf(0.95, 48), stats.skew(rewards)
    expected = found.value - (t + abs(skew) * (1 + 2 * t * t) / 6 / 7) * stats.sem(rewards)
    assert skew < 0
    assert found.at_least == pytest.approx(max(expected, found.low))
    assert found.at_most == pytest.approx(found.value + t * stats.sem(rewards))


def test_reward_without_range() -> None:
    found, mean = estimate_reward([0.2, 0.9, 1.0], range(3)), estimate_mean([0.2, 0.9, 1.0], range(3))
    assert mean.low < 0.2
    assert (found.value, found.low, found.high) == (mean.value, 0.2, 1.0)
    # The bounds that decide rules are not cut.
    assert (found.at_least, found.at_most) == (mean.at_least, mean.at_most)


def test_reward_with_range() -> None:
    rewards, rows = [1.0, 0.5, 0.5, 4.0, 5.0, 3.5], [0, 0, 1, 1, 2, 2]
    found = estimate_reward(rewards, rows, reward_range=(-3.0, 5.0))
    rate = estimate_rate([(reward + 3) / 8 for reward in rewards], rows)
    assert found.method == rate.method
    for name in ("value", "low", "high", "at_least", "at_most"):
        assert getattr(found, name) == pytest.approx(-3 + 8 * getattr(rate, name))
    assert found.stderr == pytest.approx(8 * rate.stderr)
    with pytest.raises(ValueError, match="between"):
        estimate_reward([6.0], [0], reward_range=(-3.0, 5.0))


def test_binary_rewards() -> None:
    rewards = [1.0] * 9 + [0.0]
    reward, rate = estimate_reward(rewards, range(10)), estimate_rate(rewards, range(10))
    assert reward == rate and reward.high < 1
    graded = estimate_reward([1.0] * 8 + [0.5, 0.0], range(10))
    assert graded.method == "student-t"


def test_skewed_reward_warning() -> None:
    rewards = [0.0] * 45 + [10.0] * 5
    skewed = estimate_mean(rewards, range(50))
    assert f"skewed ({stats.skew(rewards):+.1f})" in skewed.warning and "50 rows" in skewed.warning
    many = estimate_mean(rewards * 2, range(100))
    even = estimate_mean([0.0, 10.0] * 25, range(50))
    assert many.warning is None
    assert even.warning is None


@given(
    st.lists(
        st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=4), min_size=1, max_size=12
    )
)
def test_interval_of_rate_contains_it(rows: list[list[float]]) -> None:
    values = [value for row in rows for value in row]
    estimate = estimate_rate(values, [index for index, row in enumerate(rows) for _ in row])
    assert 0 <= estimate.low <= estimate.at_least <= estimate.value + 1e-12
    assert estimate.value - 1e-12 <= estimate.at_most <= estimate.high <= 1
    assert estimate.low < estimate.high


@pytest.mark.parametrize("passed", [0, 10])
def test_all_passed_or_all_failed(passed: int) -> None:
    estimate = rate_of([4 * passed // 10] * 10, 4)
    assert estimate.value == passed / 10
    assert_bounds(estimate, clopper_pearson(passed, 10))
    assert estimate.value in (estimate.low, estimate.high)


def test_mean_of_one_row() -> None:
    estimate = estimate_mean([0.0, 1.0, 1.0], [7, 7, 7])
    assert estimate.value == pytest.approx(2 / 3)
    assert (estimate.stderr, estimate.low, estimate.high) == (None, None, None)
    assert (estimate.n, estimate.clusters, estimate.method) == (3, 1, None)
    assert (estimate.at_least, estimate.at_most) == (None, None)
    assert estimate.reason == "the variance cannot be estimated from one row"


def test_rate_of_one_row() -> None:
    rate = estimate_rate([0.0, 1.0, 1.0], [7, 7, 7])
    assert rate.stderr is None
    assert rate.low < 0.01 and rate.high > 0.99


@pytest.mark.parametrize(
    "values, rows", [([0.1] * 9, range(9)), ([0.1, 0.3, 0.2, 0.2, 0.3, 0.1], [0, 0, 1, 1, 2, 2])]
)
def test_equal_rows_have_no_interval(values: list[float], rows: list[int]) -> None:
    estimate = estimate_mean(values, rows)
    assert (estimate.stderr, estimate.low, estimate.high) == (0.0, None, None)
    assert "the same mean" in estimate.reason


def test_no_samples() -> None:
    assert estimate_mean([], []) is None
    assert estimate_rate([], []) is None
    assert describe([]) is None
    assert percentiles([]) is None


def test_invalid_arguments() -> None:
    with pytest.raises(ValueError, match="one row per value"):
        estimate_mean([1.0, 2.0], [1])
    with pytest.raises(ValueError, match="finite"):
        estimate_mean([math.nan], [1])
    with pytest.raises(ValueError, match="between 0 and 1"):
        estimate_rate([1.5], [1])
    with pytest.raises(ValueError, match="one row per value"):
        estimate_rate([1.0, 0.0], [1, 2], [1])


def test_huge_values() -> None:
    values = [1e308, -1e308, 1e308, 1.7e308]
    described = describe(values)
    estimate = estimate_mean(values, range(4))
    assert described.mean == pytest.approx(6.75e307)
    assert math.isfinite(described.std) and math.isfinite(estimate.stderr)
    assert all(bound is None or math.isfinite(bound) for bound in (estimate.low, estimate.high))


def test_describe() -> None:
    described = describe([1.0, 2.0, 3.0, 10.0])
    assert (described.mean, described.median, described.min, described.max) == (4.0, 2.5, 1.0, 10.0)
    assert described.std == pytest.approx(math.sqrt(12.5))


def test_percentiles() -> None:
    found = percentiles(list(range(101)))
    assert (found.p50, found.p90, found.p95, found.p99) == (50.0, 90.0, 95.0, 99.0)


@pytest.mark.integration
def test_import_without_numpy() -> None:
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
    return VarianceComponents.of([value for _, value in pairs], [row for row, _ in pairs])


def test_components_of_balanced_rows() -> None:
    # Row means 1, 4 and 7 have variance 9; each is the mean of two attempts with variance 2.
    found = VarianceComponents.of([0, 2, 3, 5, 6, 8], [0, 0, 1, 1, 2, 2])
    assert found == VarianceComponents(between=8.0, within=2.0, rows=3, attempts=2.0)
    assert found.icc == pytest.approx(0.8)
    assert found.row_mean_variance(2) == pytest.approx(9)


def test_components_of_unbalanced_rows() -> None:
    # Rows of 1, 2 and 3 attempts: n_0 = (6 - 14/6) / 2 = 11/6; squares within are 0 + 8 + 18 with 3 degrees of freedom.
    found = VarianceComponents.of([1, 2, 6, 7, 10, 13], [0, 1, 1, 2, 2, 2])
    means, counts = np.array([1.0, 4.0, 10.0]), np.array([1, 2, 3])
    among = float(counts @ (means - 6.5) ** 2) / 2
    assert found.within == pytest.approx(26 / 3, abs=1e-10)
    assert found.between == pytest.approx((among - 26 / 3) / (11 / 6), abs=1e-10)
    assert found.attempts == 2


def test_negative_component() -> None:
    found = VarianceComponents.of([0, 1, 0, 1, 1, 0], [0, 0, 1, 1, 2, 2])
    assert (found.between, found.within, found.negative, found.icc) == (0.0, 0.5, True, 0.0)


def test_components_of_single_attempts() -> None:
    found = VarianceComponents.of([1, 2, 3], [7, 3, 5])
    assert found == VarianceComponents(between=1.0, within=None, rows=3, attempts=1.0)
    assert found.icc is None
    assert found.row_mean_variance(16) == 1.0


def test_components_of_one_row() -> None:
    assert VarianceComponents.of([1, 2, 3], [4, 4, 4]) is None
    assert VarianceComponents.of([], []) is None
    assert VarianceComponents.of_pairs([1, 2], [0, 1], [3, 4], [1, 2]) is None


@pytest.mark.parametrize("value", [0.1, 1 / 3, 7e7])
def test_components_of_equal_values(value: float) -> None:
    rows = [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 2]
    found = VarianceComponents.of([value] * 11, rows)
    assert (found.between, found.within, found.icc) == (0.0, 0.0, None)
    pair = VarianceComponents.of_pairs([value] * 11, rows, [value * 3] * 11, rows)
    assert (pair.between, pair.within) == (0.0, 0.0)


def test_components_overflow() -> None:
    assert VarianceComponents.of([1e200, -1e200, 0.0], [0, 1, 2]) is None
    assert VarianceComponents.of_pairs([1e200, 1.0], [0, 1], [0.0, 1.0], [0, 1]) is None


def test_components_of_pairs() -> None:
    # Differences of row means 2, 4 and 0 vary by 4; noise of 2 from each run's pair of attempts is taken off: 2/2 + 2/2.
    a, b = [0, 2, 4, 6, 10, 12], [2, 4, 8, 10, 10, 12]
    rows = [0, 0, 1, 1, 2, 2]
    found = VarianceComponents.of_pairs(a, rows, b, rows)
    assert found == VarianceComponents(between=2.0, within=4.0, rows=3, attempts=2.0)


def test_components_of_common_rows() -> None:
    both = VarianceComponents.of_pairs([0, 2, 4, 6, 9], [0, 0, 1, 1, 8], [2, 4, 8, 10, 1], [0, 0, 1, 1, 9])
    assert both.rows == 2


def test_pairs_with_single_attempts() -> None:
    found = VarianceComponents.of_pairs([0, 2, 4, 6], [0, 0, 1, 1], [2, 8], [0, 1])
    assert found.within is None


def test_interval_of_components() -> None:
    found = VarianceComponents(between=3.0, within=4.0, rows=5, attempts=4.0)
    low, high = found.interval()
    quantiles = stats.chi2.ppf([0.975, 0.025], 4)
    assert (low.row_mean_variance(4), high.row_mean_variance(4)) == pytest.approx(
        (16 / quantiles[0], 16 / quantiles[1])
    )
    assert low.icc == pytest.approx(found.icc)


def test_degrees_of_freedom_of_skewed_rows() -> None:
    even = VarianceComponents.of([0.0, 1.0] * 20, range(40))
    lone = VarianceComponents.of([0.0] * 39 + [1.0], range(40))
    assert even.degrees == 39
    assert 3 <= lone.degrees < 4
    assert even.interval()[1].between / even.between < lone.interval()[1].between / lone.between


def test_degrees_of_freedom_from_kurtosis() -> None:
    values = np.random.default_rng(2).standard_t(6, 60)
    found = VarianceComponents.of(values, range(60))
    assert found.degrees == pytest.approx(2 / (2 / 59 + stats.kurtosis(values) / 60), rel=1e-10)


@given(attempts, st.permutations(range(30)))
def test_order_and_labels_do_not_matter(pairs: Attempts, order: list[int]) -> None:
    shuffled = [(row * 3 + 1, value) for _, (row, value) in sorted(zip(order, pairs, strict=False))]
    first, second = components(pairs), components(shuffled)
    assert (second.between, second.within) == pytest.approx((first.between, first.within), rel=1e-9, abs=1e-9)


@given(attempts, st.floats(0.01, 100))
def test_scaled_values(pairs: Attempts, scale: float) -> None:
    first, second = components(pairs), components([(row, value * scale + 5) for row, value in pairs])
    scaled = first.scaled(scale**2)
    assert (second.between, second.within) == pytest.approx(
        (scaled.between, scaled.within), rel=1e-6, abs=1e-6
    )


REPLICATIONS = 400

# rows, attempts, intraclass correlation, pass rate
CELLS = [
    coverage.Cell(10, 4, 0.6, 0.02),
    coverage.Cell(10, 16, 0.05, 0.02),
    coverage.Cell(10, 1, 0.05, 0.1),
    coverage.Cell(30, 16, 0.6, 0.02),
    coverage.Cell(30, 16, 0.6, 0.98),
    coverage.Cell(100, 1, 0.05, 0.98),
    coverage.Cell(400, 4, 0.6, 0.02),
]
NIGHTLY_CELLS = [
    coverage.Cell(10, 16, 0.6, 0.9),
    coverage.Cell(30, 16, 0.05, 0.98),
    coverage.Cell(30, 4, 0.6, 0.5),
    coverage.Cell(100, 16, 0.6, 0.98),
    coverage.Cell(100, 4, 0.05, 0.1),
]


@pytest.mark.integration
@pytest.mark.parametrize(
    "cell", [*CELLS, *(pytest.param(cell, marks=pytest.mark.nightly) for cell in NIGHTLY_CELLS)], ids=str
)
def test_interval_coverage(cell: coverage.Cell) -> None:
    found = coverage.simulate(cell, REPLICATIONS)
    expected = {"pass rate", "reward", "unscored"} | (
        {"pass@2", f"pass@{cell.attempts}"} if cell.attempts > 1 else set()
    )
    assert set(found.numbers) == expected
    for number, held in found.numbers.items():
        assert held.enough, f"{number}: {held}"
    assert found.numbers["pass rate"].printed == REPLICATIONS


@pytest.mark.integration
@pytest.mark.parametrize("rewards", ["mostly right", "all near the bottom"])
@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_interval_coverage_of_graded_rewards(rewards: str, correlation: float) -> None:
    found = coverage.simulate_graded(coverage.GradedCell(13, 9, correlation, rewards), REPLICATIONS)
    assert found.printed == REPLICATIONS
    assert found.held >= 0.93 * REPLICATIONS and found.enough, str(found)


@pytest.mark.integration
@pytest.mark.parametrize(("rows", "attempts"), [(10, 4), (10, 12), (31, 4)])
def test_power_of_a_comparison(rows: int, attempts: int) -> None:
    _, power = coverage.simulate_pairs(coverage.planned(rows, attempts), 600)
    assert 0.75 <= power <= 0.85


@pytest.mark.integration
def test_simulation_rejects_narrow_intervals() -> None:
    cell = coverage.Cell(30, 16, 0.6, 0.02)
    pretending = coverage.Coverage()
    draw = np.random.default_rng(1)
    for _ in range(REPLICATIONS):
        chances = draw.beta(0.02 / 0.6 - 0.02, 0.98 / 0.6 - 0.98, cell.rows)
        attempts = (draw.random((cell.rows, cell.attempts)) < chances[:, None]).ravel().astype(float)
        # Attempts are treated as independent rows.
        pretending.add(estimate_rate(attempts, range(attempts.size)), cell.rate)
    assert not pretending.enough
