from __future__ import annotations

import math
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.training.objective.advantages import group_advantages

rewards = st.one_of(st.none(), st.sampled_from([0.0, 0.25, 1.0]), st.floats(-10, 10))
groups = st.lists(st.lists(rewards, min_size=2, max_size=8), min_size=1, max_size=5)


def test_an_advantage_is_the_distance_from_the_groups_mean_in_standard_deviations():
    result = group_advantages([[1.0, 0.0, 0.0, 0.0]])
    # mean 1/4; sample variance (9/16 + 3 * 1/16) / 3 = 1/4, so the standard deviation is 1/2.
    assert result.advantages_PG == [pytest.approx([0.75 / 0.5001, *[-0.25 / 0.5001] * 3])]


def test_dr_grpo_leaves_the_spread_in():
    assert group_advantages([[1.0, 0.0, 0.0, 0.0]], normalise=False).advantages_PG == [
        [0.75, -0.25, -0.25, -0.25]
    ]


def test_a_sample_without_a_reward_is_excluded_and_counted_never_a_zero():
    result = group_advantages([[1.0, None, 0.0, None]], normalise=False)
    assert result.advantages_PG == [[0.5, None, -0.5, None]]
    assert (result.statistics.samples, result.statistics.samples_unscored) == (4, 2)
    assert result.statistics.reward_mean == 0.5


def test_a_reward_that_is_no_finite_number_counts_as_none():
    result = group_advantages([[1.0, math.nan, 0.0, math.inf]], normalise=False)
    assert result.advantages_PG == [[0.5, None, -0.5, None]]
    assert result.statistics.samples_unscored == 2


def test_a_group_of_equal_rewards_is_dropped_and_counted():
    result = group_advantages([[1.0, 1.0], [0.0, 1.0], [0.1 + 0.2, 0.3]], normalise=False)
    assert result.advantages_PG == [[None, None], [-0.5, 0.5], [None, None]]
    assert result.statistics.groups_zero_variance == 2
    assert result.statistics.zero_variance_fraction == pytest.approx(2 / 3)
    assert result.statistics.samples_used == 2


def test_a_group_with_one_score_has_nothing_to_compare():
    statistics = group_advantages([[1.0, None], [None, None]]).statistics
    assert (statistics.groups_too_few_scores, statistics.groups_zero_variance) == (2, 0)
    assert statistics.samples_used == 0


def test_a_batch_without_any_reward_has_no_mean():
    statistics = group_advantages([[None, None]]).statistics
    assert (statistics.reward_mean, statistics.reward_std, statistics.reward_min) == (None, None, None)


@given(groups)
def test_advantages_of_a_group_sum_to_zero_and_keep_the_order_of_rewards(rewards_PG):
    for rewards_G, advantages_G in zip(rewards_PG, group_advantages(rewards_PG).advantages_PG, strict=True):
        pairs = sorted(
            (r, a) for r, a in zip(rewards_G, advantages_G, strict=True) if r is not None and a is not None
        )
        assert sum(a for _, a in pairs) == pytest.approx(0, abs=1e-6)
        assert [a for _, a in pairs] == sorted(a for _, a in pairs)


@given(groups, st.floats(-5, 5))
def test_adding_the_same_reward_to_all_samples_changes_nothing(rewards_PG, shift):
    shifted_PG = [[None if r is None else r + shift for r in group] for group in rewards_PG]
    plain = group_advantages(rewards_PG, normalise=False).advantages_PG
    shifted = group_advantages(shifted_PG, normalise=False).advantages_PG
    for before, after in zip(plain, shifted, strict=True):
        assert [a or 0.0 for a in after] == pytest.approx([b or 0.0 for b in before], abs=1e-8)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=8).filter(lambda r: max(r) - min(r) > 1e-3))
def test_normalised_advantages_match_the_definition(rewards_G):
    expected = [(r - fmean(rewards_G)) / (stdev(rewards_G) + 1e-4) for r in rewards_G]
    assert group_advantages([rewards_G]).advantages_PG[0] == pytest.approx(expected)
