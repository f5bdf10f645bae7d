"""pass@k and pass^k against all draws of k attempts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.evaluation.pass_at_k import (
    estimate_pass_at_k,
    estimate_pass_hat_k,
    pass_at_k,
    pass_at_k_by_row,
    pass_hat_k,
    pass_hat_k_by_row,
)


@given(st.integers(1, 7), st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_pass_and_pass_hat_k_of_those_without_a_failure(
    n: int, data: st.DataObject
) -> None:
    c = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))
    assert pass_hat_k(n, c, k) == pytest.approx(sum(map(all, draws)) / len(draws))


def test_pass_at_k_of_thousands_of_attempts_is_exact() -> None:
    assert pass_at_k(5000, 1, 2500) == pytest.approx(0.5)
    assert pass_at_k(5000, 0, 5000) == 0.0
    assert pass_at_k(5000, 5000, 1) == 1.0


@pytest.mark.parametrize("n, c, k", [(4, 5, 1), (4, -1, 1), (4, 1, 0), (4, 1, 5), (0, 0, 1)])
def test_pass_at_k_without_meaning_is_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k}"):
        pass_at_k(n, c, k)
    with pytest.raises(ValueError, match=rf"pass\^{k}"):
        pass_hat_k(n, c, k)


def test_pass_at_k_takes_the_rows_with_enough_attempts() -> None:
    assert pass_at_k_by_row([4, 2, 1, 4, 4], [1, 1, 1, 0, 1], 2).tolist() == [0.5, 1.0, 0.0, 0.5]
    assert pass_at_k_by_row([1, 1], [0, 1], 2).size == 0
    estimate = estimate_pass_at_k([4, 2, 1, 4, 4], [1, 1, 1, 0, 1], 2)
    assert estimate is not None
    assert (estimate.value, estimate.n, estimate.clusters) == (0.5, 14, 4)
    assert estimate_pass_at_k([1, 1], [0, 1], 2) is None


def test_pass_hat_k_is_a_rate_over_rows_with_the_interval_of_one() -> None:
    attempts, passes = [4, 2, 1, 4, 4], [4, 1, 1, 3, 0]
    assert pass_hat_k_by_row(attempts, passes, 2).tolist() == [1.0, 0.0, 0.5, 0.0]
    estimate = estimate_pass_hat_k(attempts, passes, 2)
    assert estimate is not None and estimate.low is not None and estimate.high is not None
    assert (estimate.value, estimate.n, estimate.clusters, estimate.method) == (0.375, 14, 4, "korn-graubard")
    assert 0 < estimate.low < estimate.value < estimate.high < 1
    assert estimate_pass_hat_k([1, 1], [0, 1], 2) is None


def test_one_attempt_at_a_time_both_are_the_pass_rate() -> None:
    attempts, passes = [4, 4, 4], [4, 2, 0]
    at, hat = estimate_pass_at_k(attempts, passes, 1), estimate_pass_hat_k(attempts, passes, 1)
    assert at == hat
    assert at is not None and at.value == 0.5


def test_copies_of_a_row_are_one_cluster_of_pass_hat_k() -> None:
    estimate = estimate_pass_hat_k([2, 2, 2, 2], [2, 2, 0, 1], 2, [0, 0, 1, 2])
    assert estimate is not None and estimate.clusters == 3
