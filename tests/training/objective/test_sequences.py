from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.training.objective.sequences import NOT_SAMPLED, SampledTurn, merge_turns


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


def test_two_turns_behind_the_same_one_fork_and_its_tokens_are_trained_on_once() -> None:
    first = turn(None, [1], [2])
    left, right = turn(first, [3], [4]), turn(first, [5], [6])
    sequences, forks = merge_turns([first, left, right])
    assert [sequence.ids for sequence in sequences] == [[1, 2, 3, 4], [1, 2, 5, 6]]
    assert [sequence.mask for sequence in sequences] == [[0, 1, 0, 1], [0, 0, 0, 1]]
    assert sequences[1].versions == [NOT_SAMPLED] * 3 + [0]
    assert forks == 1


def test_a_rewritten_history_is_a_sequence_of_its_own() -> None:
    first, anew = turn(None, [1], [2]), turn(None, [1, 9], [3])
    sequences, forks = merge_turns([first, anew])
    assert [sequence.ids for sequence in sequences] == [[1, 2], [1, 9, 3]]
    assert forks == 1


def test_a_rollout_that_sampled_nothing_has_no_sequence() -> None:
    assert merge_turns([]) == ([], 0)


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
