from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lazily import lazily

with lazily("torch"):
    import torch

    from osmosis_ai.training.objective.batches import (
        UnsampledTokenError,
        batch_totals,
        collate,
        plan_micro_batches,
        training_rows,
    )
    from tests.training.learner_builders import Sequence


def sequence(ids, mask, rollout_id="r"):
    logprobs = [-0.1 * number if sampled else 0.0 for number, sampled in enumerate(mask)]
    return Sequence(ids, mask, logprobs, [3] * len(ids), rollout_id)


def test_targets_are_the_tokens_after_the_columns_and_carry_their_own_logprobs():
    rows, _ = training_rows([sequence([5, 6, 7, 8], [0, 1, 0, 1]), sequence([9, 10], [0, 1])], [1.0, -1.0])
    batch = collate(rows, torch.device("cpu"))
    assert batch.ids_BT.tolist() == [[5, 6, 7, 8], [9, 10, 0, 0]]
    # Column 1 predicts token 2, which nobody sampled.
    assert batch.columns_K.tolist() == [0, 2]
    assert batch.targets_BK.tolist() == [[6, 8], [10, 0]]
    assert batch.mask_BK.tolist() == [[True, True], [True, False]]
    assert batch.logged_logprobs_BK[0].tolist() == pytest.approx([-0.1, -0.3])
    assert batch.versions_BK.tolist() == [[3, 3], [3, 0]]
    assert batch.advantages_B.tolist() == [1.0, -1.0]


def test_a_rollouts_sequences_share_its_length_and_count_once():
    forked = [
        sequence([1, 2, 3], [0, 1, 1], "a"),
        sequence([1, 4, 5], [0, 0, 1], "a"),
        sequence([1, 6], [0, 1], "b"),
    ]
    rows, rollouts = training_rows(forked, [1.0, 1.0, -1.0])
    assert [row.response_length for row in rows] == [3, 3, 1]
    totals = batch_totals(rows, rollouts, 10)
    assert (totals.rollouts, totals.tokens, totals.max_response_length) == (2, 4, 10)


def test_a_sequence_in_which_nothing_was_sampled_is_left_out():
    rows, rollouts = training_rows([sequence([1, 2], [0, 0], "a"), sequence([1, 2], [1, 0], "b")], [1.0, 1.0])
    assert (rows, rollouts) == ([], 0)


@pytest.mark.parametrize("broken", [([1, 2], [0], [0.0, 0.0], [0, 0], "r"), ([1], [0], [0.0], [], "r")])
def test_lists_of_different_lengths_are_refused(broken):
    with pytest.raises(ValueError, match="differ in length"):
        training_rows([Sequence(*broken)], [1.0])


def test_as_many_advantages_as_sequences_are_needed():
    with pytest.raises(ValueError, match="1 sequences but 2 advantages"):
        training_rows([sequence([1, 2], [0, 1])], [1.0, 2.0])


def test_a_mask_that_covers_what_nobody_sampled_is_refused():
    dropped = Sequence([5, 6, 7, 8], [1, 1, 1, 1], [0.0, 0.0, -0.1, -0.2], [-1, -1, 3, 3], "r-7")
    with pytest.raises(UnsampledTokenError, match="2 of 4 tokens of rollout r-7 are marked as sampled"):
        training_rows([dropped], [1.0])


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 200))
def test_micro_batches_hold_every_sequence_once_within_the_limit(lengths, limit):
    plan = plan_micro_batches(lengths, limit)
    assert sorted(index for batch in plan for index in batch) == list(range(len(lengths)))
    for batch in plan:
        assert len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= limit
