"""Coefficients, bootstrap intervals and means of scores, against textbooks, scipy and definitions."""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy import stats

from osmosis_ai.rubric.agreement import mean_where_known, rescaled
from osmosis_ai.rubric.figures import (
    MIN_RECORDS,
    bootstrap_interval,
    cohen_kappa,
    krippendorff_alpha,
    partial_correlation,
    slope,
    spearman,
    spread_of_calls,
)
from tests.rubric.tables import NAN, Floats, excludes_zero, table

# Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability", section C: four observers, twelve units.
KRIPPENDORFF = np.array(
    [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, NAN, NAN, NAN],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NAN, 3],
        [NAN, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NAN],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NAN],
    ]
).T

ratings_with_gaps = arrays(
    np.float64,
    st.tuples(st.integers(2, 8), st.integers(2, 5)),
    elements=st.one_of(st.integers(0, 4).map(float), st.just(NAN)),
)


def test_alpha_is_krippendorffs_own() -> None:
    interval = krippendorff_alpha(KRIPPENDORFF)
    assert interval.value == pytest.approx(0.849, abs=5e-4)
    assert (interval.records, interval.scores) == (11, 40)


def by_definition(ratings: Floats) -> float | None:
    """Alpha, pair by pair: slow, and as it is written down."""
    units = [unit[~np.isnan(unit)] for unit in ratings]
    units = [unit for unit in units if unit.size >= 2]
    values = np.concatenate(units) if units else np.array([])
    n = values.size
    expected = sum((a - b) ** 2 for a, b in itertools.permutations(values.tolist(), 2)) / max(n * (n - 1), 1)
    if len(units) < 2 or expected == 0:
        return None
    observed = sum(
        sum((a - b) ** 2 for a, b in itertools.permutations(u.tolist(), 2)) / (u.size - 1) for u in units
    )
    return 1 - observed / n / expected


@settings(deadline=None)
@given(ratings_with_gaps)
def test_alpha_is_its_definition_pair_by_pair(ratings: Floats) -> None:
    found = krippendorff_alpha(ratings)
    expected = by_definition(ratings)
    if expected is None:
        assert found.value is None and found.reason
    else:
        assert found.value == pytest.approx(expected, abs=1e-9)


def test_reliability_is_the_share_of_variance_between_records_also_with_gaps() -> None:
    rng = np.random.default_rng(5)
    ratings = rng.normal(size=(20_000, 1)) * 2 + rng.normal(size=(20_000, 5))
    ratings[rng.random(ratings.shape) < 0.3] = np.nan
    found = krippendorff_alpha(ratings)
    assert found.low is not None and found.high is not None
    assert found.low < 0.8 < found.high and found.high - found.low < 0.02


@pytest.mark.integration
def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(11)
    held = 0
    for _ in range(100):
        found = krippendorff_alpha(rng.normal(size=(60, 1)) * 2 + rng.normal(size=(60, 4)))
        assert found.low is not None and found.high is not None
        held += found.low <= 0.8 <= found.high
    # 95 of 100 are promised; a binomial of 0.93 falls below 86 once in some hundred.
    assert held >= 86


def test_one_run_or_equal_scores_say_why_there_is_no_reliability() -> None:
    once = krippendorff_alpha(np.array([[0.1], [0.9]]))
    assert (once.value, once.reason) == (None, "each record was scored once; repeat calls with `-n 5`")
    assert {figure.reason for figure in spread_of_calls(np.array([[0.1], [0.9]]))} == {once.reason}
    equal = krippendorff_alpha(np.full((5, 3), 0.5))
    assert equal.value is None and "every score is the same" in (equal.reason or "")
    apart = np.array([[0.1, NAN], [NAN, 0.9], [0.4, 0.5]])
    assert "fewer than two records" in (krippendorff_alpha(apart).reason or "")


def test_a_judge_that_always_repeats_itself_is_reliable_as_far_as_so_few_records_show() -> None:
    ratings = np.repeat(np.linspace(0, 1, 30)[:, None], 4, axis=1)
    few, alpha, many = (
        krippendorff_alpha(each) for each in (ratings[:10], ratings, np.repeat(ratings, 20, axis=0))
    )
    assert (few.value, few.low) == (1.0, None) and few.reason
    assert (alpha.value, alpha.high, many.high) == (1.0, 1.0, 1.0)
    assert alpha.low is not None and many.low is not None and 0 < alpha.low < 0.8 < many.low < 1
    # The bound is alpha of a table in which the largest share of records that 30 alike ones allow differs.
    share = 1 - 0.025 ** (1 / 600)
    worst = np.repeat(np.repeat(np.linspace(0, 1, 30), 2000)[:, None], 4, axis=1)
    worst[:: round(1 / share)] = [0, 0, 1, 1]
    assert krippendorff_alpha(worst).value == pytest.approx(many.low, abs=0.002)
    deviation, identical = spread_of_calls(ratings)
    assert (deviation.low, deviation.reason) == (None, "every record got the same score each time")
    assert identical.value == 1.0


def test_the_spread_of_calls_is_the_pooled_standard_deviation() -> None:
    scores = np.array([[0.2, 0.4, NAN], [0.5, 0.5, 0.5], [0.1, NAN, NAN], [0.0, 0.6, 0.9]])
    repeated = [scores[0, :2], scores[1], scores[3]]
    pooled = sum(each.var(ddof=1) * (each.size - 1) for each in repeated) / sum(
        each.size - 1 for each in repeated
    )
    deviation, identical = spread_of_calls(scores)
    assert deviation.value == pytest.approx(math.sqrt(pooled))
    assert (deviation.records, deviation.scores) == (3, 8)
    assert (identical.value, identical.records, identical.scores) == (pytest.approx(1 / 3), 3, 8)


pairs = st.lists(
    st.tuples(st.floats(0, 1, width=32), st.floats(0, 1, width=32)), min_size=5, max_size=40
).map(lambda values: np.array(values, dtype=np.float64).T)


@settings(deadline=None)
@given(pairs)
def test_rank_correlations_are_scipys(both: Floats) -> None:
    x, y = both
    assume(np.ptp(x) > 1e-3 and np.ptp(y) > 1e-3)
    assert spearman(x, y).value == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-9)


def test_the_interval_of_a_rank_correlation_is_bonett_and_wrights() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=67)
    found = spearman(x, x + rng.normal(size=67))
    assert found.value is not None
    z, half = np.arctanh(found.value), 1.959964 * np.sqrt((1 + found.value**2 / 2) / 64)
    assert (found.low, found.high) == pytest.approx((np.tanh(z - half), np.tanh(z + half)), abs=1e-6)


def test_a_partial_correlation_is_that_of_what_the_fixed_variable_leaves() -> None:
    rng = np.random.default_rng(1)
    z = rng.normal(size=500)
    x, y = z + rng.normal(size=500), z + rng.normal(size=500)
    left = [v - np.polyval(np.polyfit(z, v, 1), z) for v in (x, y)]
    found = partial_correlation(x, y, z)
    assert found.value == pytest.approx(np.corrcoef(left)[0, 1], abs=1e-9)
    half = 1.959964 / np.sqrt(500 - 4)
    around = np.arctanh(found.value)
    assert (found.low, found.high) == pytest.approx(
        (np.tanh(around - half), np.tanh(around + half)), abs=1e-6
    )
    assert np.corrcoef(x, y)[0, 1] > 0.4
    assert not excludes_zero(found)
    assert partial_correlation(x, y, x).reason == "it cannot be told apart from the score given by people"


def test_cohens_kappa_is_the_published_one() -> None:
    # Two readers, 50 grant proposals, yes or no: 20 both yes, 15 both no, 5 and 10 apart: kappa 0.4.
    a = np.repeat([0, 0, 1, 1], [20, 5, 10, 15])
    b = np.repeat([0, 1, 0, 1], [20, 5, 10, 15])
    found = cohen_kappa(a, b, 2)
    assert found.value == pytest.approx(0.4)
    # Fleiss, Cohen and Everitt 1969: with two categories the weights change nothing.
    assert cohen_kappa(a, b, 2, weighted=True).value == pytest.approx(0.4)
    assert found.low is not None and found.high is not None
    # The large-sample standard error of that table is 0.127.
    assert (found.low, found.high) == pytest.approx((0.4 - 1.96 * 0.127, 0.4 + 1.96 * 0.127), abs=0.05)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=60), st.booleans())
def test_kappa_is_its_definition_on_the_table_of_counts(rated: list[tuple[int, int]], weighted: bool) -> None:
    a, b = np.array(rated).T
    assume(np.ptp(a) > 0 and np.ptp(b) > 0)
    counts = np.zeros((5, 5))
    np.add.at(counts, (a, b), 1)
    i, j = np.indices((5, 5))
    weights = (i - j) ** 2 if weighted else (i != j).astype(float)
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / counts.sum()
    kappa = 1 - (weights * counts).sum() / (weights * expected).sum()
    assert cohen_kappa(a, b, 5, weighted=weighted).value == pytest.approx(kappa, abs=1e-9)


def test_a_slope_is_that_of_least_squares_with_errors_that_know_uneven_spread() -> None:
    rng = np.random.default_rng(7)
    x = rng.normal(size=300)
    y = 2 * x + rng.normal(size=300) * (0.2 + np.abs(x))
    found, theirs = slope(y, x), stats.linregress(x, y)
    assert found.value == pytest.approx(theirs.slope)
    assert found.low is not None and found.high is not None
    # HC3, from its definition.
    design = np.column_stack((np.ones(300), x))
    inverse = np.linalg.inv(design.T @ design)
    hat = np.diag(design @ inverse @ design.T)
    residuals = y - design @ (inverse @ design.T @ y)
    sandwich = inverse @ design.T @ np.diag((residuals / (1 - hat)) ** 2) @ design @ inverse
    half = stats.t.ppf(0.975, 298) * np.sqrt(sandwich[1, 1])
    assert (found.low, found.high) == pytest.approx((theirs.slope - half, theirs.slope + half))
    assert half > 1.2 * theirs.stderr * stats.t.ppf(0.975, 298)


def mean_of(totals: Floats) -> Floats:
    return totals[:, 1] / totals[:, 0]


def sums_of(values: Floats) -> Floats:
    return np.column_stack((np.ones_like(values), values))


def test_the_interval_is_that_of_scipys_bootstrap() -> None:
    apart = []
    for seed in range(10):
        values = np.random.default_rng(seed).exponential(size=60)
        ours = bootstrap_interval(sums_of(values), mean_of, seed=seed)
        theirs = stats.bootstrap(
            (values,), np.mean, method="BCa", n_resamples=2000, rng=np.random.default_rng(seed + 1)
        ).confidence_interval
        assert ours is not None
        apart.append((np.array(ours) - theirs) / (theirs.high - theirs.low))
    # Two runs of 2,000 draws differ by chance; 12% of the width is about four of its standard errors.
    assert np.abs(apart).max() < 0.12
    assert np.abs(np.mean(apart, axis=0)).max() < 0.04, "four standard errors of the mean of ten"


def test_very_many_records_give_the_interval_of_theory_at_the_cost_of_few() -> None:
    values = np.random.default_rng(3).normal(size=200_000)
    found = bootstrap_interval(sums_of(values), mean_of)
    half = 1.96 * values.std() / len(values) ** 0.5
    assert found == pytest.approx((values.mean() - half, values.mean() + half), abs=0.1 * half)


def test_there_is_no_interval_where_records_are_few_or_all_alike() -> None:
    few = np.random.default_rng(0).normal(size=MIN_RECORDS - 1)
    assert bootstrap_interval(sums_of(few), mean_of) is None
    assert bootstrap_interval(sums_of(np.ones(100)), mean_of) is None
    enough = sums_of(np.random.default_rng(0).normal(size=MIN_RECORDS))
    assert bootstrap_interval(enough, mean_of, seed=1) == bootstrap_interval(enough, mean_of, seed=1)


def test_a_statistic_that_most_resamples_leave_undefined_has_no_interval() -> None:
    values = np.zeros(30)
    values[0] = 1.0

    def defined_with_the_one(totals: Floats) -> Floats:
        return np.where(totals[:, 1] > 0, totals[:, 1] / totals[:, 0], np.nan)

    assert bootstrap_interval(sums_of(values), defined_with_the_one) is None


with_gaps = arrays(
    np.float64,
    array_shapes(min_dims=2, max_dims=3, max_side=6),
    elements=st.one_of(st.floats(-10, 10), st.just(NAN)),
)


@given(with_gaps)
def test_means_leave_out_what_is_missing(values: np.ndarray) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        means = np.nanmean(values, axis=-1)
    assert mean_where_known(values) == pytest.approx(means, nan_ok=True)


def test_every_model_has_one_vote_in_the_consensus_however_many_runs_it_scored() -> None:
    sheet = table([[[0.0, NAN, NAN], [1.0, 1.0, 1.0], [0.2, 0.2, 0.2]], [[NAN] * 3] * 3])
    assert sheet.consensus().tolist() == [pytest.approx(0.4), pytest.approx(NAN, nan_ok=True)]


def test_scores_of_records_with_bounds_of_their_own_come_to_one_scale() -> None:
    moved = rescaled(
        np.array([[3.0], [0.5]]), np.array([[1.0], [0.0]]), np.array([[5.0], [1.0]]), to_low=0, to_high=10
    )
    assert moved.tolist() == [[5.0], [5.0]]


def test_means_that_are_equal_on_paper_are_equal() -> None:
    sheet = table([[[0.1, 0.5]], [[0.3, 0.3]], [[0.2, 0.4]]])
    assert set(sheet.model_means()[:, 0].tolist()) == {0.3}
