from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from osmosis_ai.rubric.estimate import MIN_RECORDS, bootstrap_interval
from tests.rubric.tables import Floats


def mean_of(totals: Floats) -> Floats:
    return totals[:, 1] / totals[:, 0]


def sums_of(values: Floats) -> Floats:
    return np.column_stack((np.ones_like(values), values))


# Fixed seeds: two estimates that differ by chance are too far apart for one seed in thousands.
@pytest.mark.parametrize("seed", range(10))
def test_the_interval_is_that_of_scipys_bootstrap(seed: int) -> None:
    values = np.random.default_rng(seed).exponential(size=60)
    ours = bootstrap_interval(sums_of(values), mean_of, seed=seed)
    theirs = stats.bootstrap(
        (values,), np.mean, method="BCa", n_resamples=2000, rng=np.random.default_rng(seed + 1)
    )
    assert ours is not None
    width = theirs.confidence_interval.high - theirs.confidence_interval.low
    # Two runs of 2,000 draws differ by chance; 12 % of the width is about four of its standard errors.
    assert ours == pytest.approx(theirs.confidence_interval, abs=0.12 * width)


def test_very_many_records_give_the_interval_of_theory_at_the_cost_of_few() -> None:
    values = np.random.default_rng(3).normal(size=200_000)
    found = bootstrap_interval(sums_of(values), mean_of)
    half = 1.96 * values.std() / len(values) ** 0.5
    assert found == pytest.approx((values.mean() - half, values.mean() + half), abs=0.1 * half)


def test_the_same_seed_gives_the_same_interval_and_another_one_does_not() -> None:
    sums = sums_of(np.random.default_rng(0).normal(size=50))
    assert bootstrap_interval(sums, mean_of, seed=1) == bootstrap_interval(sums, mean_of, seed=1)
    assert bootstrap_interval(sums, mean_of, seed=1) != bootstrap_interval(sums, mean_of, seed=2)


def test_there_is_no_interval_where_records_are_few_or_all_alike() -> None:
    few = np.random.default_rng(0).normal(size=MIN_RECORDS - 1)
    assert bootstrap_interval(sums_of(few), mean_of) is None
    assert bootstrap_interval(sums_of(np.ones(100)), mean_of) is None


def test_a_statistic_that_most_resamples_leave_undefined_has_no_interval() -> None:
    values = np.zeros(30)
    values[0] = 1.0

    def defined_with_the_one(totals: Floats) -> Floats:
        return np.where(totals[:, 1] > 0, totals[:, 1] / totals[:, 0], np.nan)

    assert bootstrap_interval(sums_of(values), defined_with_the_one) is None
