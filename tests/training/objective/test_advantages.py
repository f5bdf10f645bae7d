"""Advantages of groups, and the token sequences that they are given to."""

from __future__ import annotations

import math
from array import array
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.training.objective.advantages import group_advantages
from osmosis_ai.training.objective.sequences import NOT_SAMPLED, SampledTurn, merge_turns

rewards = st.one_of(st.none(), st.sampled_from([0.0, 0.25, 1.0]), st.floats(-10, 10))
groups = st.lists(st.lists(rewards, min_size=2, max_size=8), min_size=1, max_size=5)


def test_an_advantage_is_the_distance_from_the_groups_mean_in_standard_deviations():
    result = group_advantages([[1.0, 0.0, 0.0, 0.0]])
    # mean 1/4; sample variance (9/16 + 3 * 1/16) / 3 = 1/4, so the standard deviation is 1/2.
    assert result.advantages_PG == [pytest.approx([0.75 / 0.5001, *[-0.25 / 0.5001] * 3])]
    dr_grpo = group_advantages([[1.0, 0.0, 0.0, 0.0]], normalise=False)
    assert dr_grpo.advantages_PG == [[0.75, -0.25, -0.25, -0.25]]


@pytest.mark.parametrize("missing", [(None, None), (math.nan, math.inf)])
def test_a_sample_without_a_finite_reward_is_excluded_and_counted_never_a_zero(missing):
    result = group_advantages([[1.0, missing[0], 0.0, missing[1]]], normalise=False)
    assert result.advantages_PG == [[0.5, None, -0.5, None]]
    assert (result.statistics.samples, result.statistics.samples_unscored) == (4, 2)
    assert result.statistics.reward_mean == 0.5


def test_a_group_of_equal_rewards_is_dropped_and_counted():
    result = group_advantages([[1.0, 1.0], [0.0, 1.0], [0.1 + 0.2, 0.3]], normalise=False)
    assert result.advantages_PG == [[None, None], [-0.5, 0.5], [None, None]]
    assert result.statistics.groups_zero_variance == 2
    assert result.statistics.zero_variance_fraction == pytest.approx(2 / 3)
    assert result.statistics.samples_used == 2
    few = group_advantages([[1.0, None], [None, None]]).statistics
    assert (few.groups_too_few_scores, few.groups_zero_variance) == (2, 0)
    assert (few.zero_variance_fraction, few.samples_used) == (1, 0)
    none = group_advantages([[None, None]]).statistics
    assert (none.reward_mean, none.reward_std, none.reward_min) == (None, None, None)


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


def turn(
    parent: SampledTurn | None, given_ids: list[int], sampled: list[int], version: int = 0
) -> SampledTurn:
    logprobs = array("d", [-token / 10 for token in sampled])
    versions = array("i", [version] * len(sampled))
    return SampledTurn(parent, array("i", given_ids), array("i", sampled), logprobs, versions)


def test_turns_that_continue_each_other_are_one_sequence() -> None:
    first = turn(None, [1, 2, 3], [4, 5])
    second = turn(first, [6], [7, 8], version=1)
    [sequence], forks = merge_turns([first, second], "r1")
    assert sequence.rollout_id == "r1"
    assert sequence.ids == second.ids() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert sequence.mask == [0, 0, 0, 1, 1, 0, 1, 1]
    assert sequence.logprobs == pytest.approx([0, 0, 0, -0.4, -0.5, 0, -0.7, -0.8])
    assert sequence.versions == [NOT_SAMPLED] * 3 + [0, 0, NOT_SAMPLED, 1, 1]
    assert forks == 0
    assert merge_turns([]) == ([], 0)


def test_a_branch_or_a_rewritten_history_forks_and_its_tokens_are_trained_on_once() -> None:
    first = turn(None, [1], [2])
    turns = [first, turn(first, [3], [4]), turn(first, [5], [6]), turn(None, [1, 9], [3])]
    sequences, forks = merge_turns(turns)
    assert [sequence.ids for sequence in sequences] == [[1, 2, 3, 4], [1, 2, 5, 6], [1, 9, 3]]
    assert [sequence.mask for sequence in sequences] == [[0, 1, 0, 1], [0, 0, 0, 1], [0, 0, 1]]
    assert sequences[1].versions == [NOT_SAMPLED] * 3 + [0]
    assert forks == 2


@given(st.lists(st.tuples(st.integers(-1, 5), st.integers(0, 3), st.integers(1, 3)), max_size=12))
def test_every_sampled_token_is_trained_on_exactly_once_after_what_was_read(
    shapes: list[tuple[int, int, int]],
) -> None:
    turns: list[SampledTurn] = []
    token = 0
    for parent, given_count, sampled_count in shapes:
        earlier = turns[parent] if 0 <= parent < len(turns) else None
        ids = list(range(token, token + given_count + sampled_count))
        turns.append(turn(earlier, ids[:given_count], ids[given_count:]))
        token += len(ids)
    sequences, forks = merge_turns(turns)
    trained = [i for s in sequences for i, own in zip(s.ids, s.mask, strict=True) if own]
    assert sorted(trained) == sorted(i for one in turns for i in one.sampled)
    read_by = {one.sampled[0]: one.ids()[: -len(one.sampled)] for one in turns}
    for sequence in sequences:
        assert len(sequence.ids) == len(sequence.mask) == len(sequence.logprobs) == len(sequence.versions)
        for place, (i, own) in enumerate(zip(sequence.ids, sequence.mask, strict=True)):
            if own and i in read_by:
                assert sequence.ids[:place] == read_by[i]
    assert forks == max(0, len(sequences) - 1)
