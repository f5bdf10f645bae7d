"""What scores add up to: documented numbers over all runs, ours over the scored ones."""

from __future__ import annotations

import pytest

from osmosis_ai.evaluation.agent_loop.score_summary import ks_for, pass_at_k, summarize_scores


def test_documented_numbers_count_a_run_without_a_score_as_zero_and_ours_leave_it_out() -> None:
    found = summarize_scores([[1.0, None], [0.5, 0.5]], n_runs=2, pass_threshold=1.0)
    assert (found.mean, found.min, found.max) == (0.5, 0.0, 1.0)
    assert found.std == pytest.approx(0.125**0.5)  # the population's
    assert found.pass_at_k == {1: 0.25}  # 2 is no documented k
    assert (found.scored, found.unscored) == (3, 1)
    assert found.estimate is not None
    assert (found.estimate.value, found.estimate.n) == (0.75, 3)  # every row weighs the same
    assert set(found.pass_at_k_estimates) == {1, 2}
    assert found.pass_at_k_estimates[1].value == 0.5


def test_no_threshold_makes_a_run_without_a_score_pass() -> None:
    found = summarize_scores([[None, None], [-1.0, -2.0]], n_runs=2, pass_threshold=-5.0)
    assert found.pass_at_k == {1: 0.5}
    assert found.pass_at_k_estimates[2].value == 1.0
    assert summarize_scores([[None]], n_runs=1, pass_threshold=0.0).estimate is None


def test_one_run_per_row_has_no_documented_pass_at_k_but_a_pass_rate() -> None:
    found = summarize_scores([[1.0], [0.0]], n_runs=1, pass_threshold=1.0)
    assert found.pass_at_k == {}
    assert {k: estimate.value for k, estimate in found.pass_at_k_estimates.items()} == {1: 0.5}
    assert list(found.documented()) == ["mean", "std", "min", "max"]


def test_rows_that_are_copies_count_as_one_in_the_interval() -> None:
    scores: list[list[float | None]] = [[0.1], [0.5], [0.9], [0.9]]
    apart = summarize_scores(scores, n_runs=1, pass_threshold=1.0)
    found = summarize_scores(scores, n_runs=1, pass_threshold=1.0, clusters=[0, 1, 2, 2])
    assert apart.estimate is not None and found.estimate is not None
    assert (apart.estimate.clusters, found.estimate.clusters) == (4, 3)
    # The two-sided intervals of either end at the scores observed.
    assert (found.estimate.at_most or 0) > (apart.estimate.at_most or 0)


def test_a_k_that_is_asked_for_stands_beside_the_documented_ones() -> None:
    found = summarize_scores([[1.0, None], [0.5, 0.5]], n_runs=2, pass_threshold=1.0, ks=(2,))
    assert found.pass_at_k == {1: 0.25, 2: 0.5}
    assert found.documented()["pass_at_2"] == 0.5


def test_nothing_is_summarized_as_nothing() -> None:
    found = summarize_scores([], n_runs=3, pass_threshold=1.0)
    assert (found.mean, found.std, found.pass_at_k, found.scored) == (0.0, 0.0, {}, 0)


def test_pass_at_k_at_its_borders() -> None:
    assert pass_at_k(10, 7, 3) == pytest.approx(0.99167, abs=1e-5)
    assert [pass_at_k(5, 0, 3), pass_at_k(2, 1, 5), pass_at_k(5, 5, 1), pass_at_k(5, 4, 2)] == [0, 1, 1, 1]


def test_every_k_is_documented_a_power_of_two_or_asked_for() -> None:
    assert ks_for(10, [7, 99]) == [1, 2, 3, 4, 5, 7, 8, 10]
    assert ks_for(1) == [1]
