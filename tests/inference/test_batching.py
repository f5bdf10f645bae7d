from __future__ import annotations

from collections import deque

import pytest

from osmosis_ai.inference.batching import ContinuousBatch, Generation, SampledToken
from osmosis_ai.inference.model import Model
from tests.inference.conftest import generation

pytestmark = pytest.mark.integration

Results = dict[Generation, list[SampledToken]]


def run(model: Model, generations: list[Generation], *, capacity: int, joining: int) -> Results:
    """Run all to their end; ``joining`` of them join before each step."""
    batch, queue = ContinuousBatch(model, capacity), deque(generations)
    results: Results = {generation: [] for generation in generations}
    while queue or len(batch):
        newcomers = [queue.popleft() for _ in range(min(joining, batch.free, len(queue)))]
        emissions = (batch.admit(newcomers) if newcomers else []) + batch.step()
        for emission in emissions:
            results[emission.generation].append(emission.token)
    return results


def ids(results: Results) -> list[list[int]]:
    return [[token.id for token in tokens] for tokens in results.values()]


@pytest.fixture(scope="module")
def alone(model: Model, prompts: list[tuple[int, ...]]) -> Results:
    """Generations of all kinds, one after the other."""
    mix = [
        generation(prompt, seed, temperature=(1.0, 0.7, 1.5, 0.0)[seed % 4], top_p=(1.0, 0.9)[seed % 2])
        for seed, prompt in enumerate(prompts)
    ]
    return run(model, mix, capacity=1, joining=1)


@pytest.mark.parametrize(("capacity", "joining"), [(32, 32), (32, 3), (5, 2)])
def test_tokens_do_not_depend_on_what_else_is_in_the_batch(
    model: Model, alone: Results, capacity: int, joining: int
) -> None:
    together = run(model, list(alone), capacity=capacity, joining=joining)
    assert ids(together) == ids(alone)
    assert len({tuple(tokens) for tokens in ids(alone)}) > 20
    for generation_, tokens in together.items():
        for token, reference in zip(tokens, alone[generation_], strict=True):
            assert token.logprob == pytest.approx(reference.logprob, abs=1e-11)


def test_equal_prompts_share_their_reading_and_nothing_else(
    model: Model, prompts: list[tuple[int, ...]]
) -> None:
    mix = [generation(prompts[seed % 2], seed) for seed in range(16)]
    assert ids(run(model, mix, capacity=16, joining=16)) == ids(run(model, mix, capacity=1, joining=1))


def test_a_generation_ends_at_its_limit_or_its_stop_token(
    model: Model, prompts: list[tuple[int, ...]]
) -> None:
    batch = ContinuousBatch(model, 2)
    short = generation(prompts[0], 1, max_tokens=1)
    ended = generation(prompts[1], 1, stop_tokens=frozenset(range(model.config.vocab_size)))
    reasons = {e.generation: e.finish_reason for e in batch.admit([short, ended])}
    assert reasons == {short: "length", ended: "stop"}
    assert len(batch) == 0


def test_the_context_can_be_filled_to_its_last_position(model: Model) -> None:
    limit = model.config.max_positions
    full = generation((5,) * (limit - 3), 0, max_tokens=3, stop_tokens=frozenset())
    assert len(run(model, [full], capacity=1, joining=1)[full]) == 3


def test_who_is_discarded_leaves_the_others_undisturbed(model: Model, prompts: list[tuple[int, ...]]) -> None:
    mix = [
        generation(prompt, seed, max_tokens=8, stop_tokens=frozenset())
        for seed, prompt in enumerate(prompts[:6])
    ]
    alone = run(model, mix, capacity=1, joining=1)
    batch = ContinuousBatch(model, 6)
    emissions = batch.admit(mix) + batch.step()
    batch.discard(lambda g: g in mix[:3] or g is mix[5])
    assert len(batch) == 2
    while len(batch):
        emissions += batch.step()
    for kept in mix[3:5]:
        assert [e.token.id for e in emissions if e.generation is kept] == [token.id for token in alone[kept]]


def test_alternatives_are_the_most_likely_tokens_in_order(
    model: Model, prompts: list[tuple[int, ...]]
) -> None:
    batch = ContinuousBatch(model, 1)
    (emission,) = batch.admit([generation(prompts[0], 0, temperature=0.0, top_logprobs=5)])
    assert len(emission.token.top) == 5
    assert emission.token.top[0] == (emission.token.id, emission.token.logprob)
    assert [p for _, p in emission.token.top] == sorted((p for _, p in emission.token.top), reverse=True)


def test_more_newcomers_than_free_slots_are_refused(model: Model, prompts: list[tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        ContinuousBatch(model, 1).admit([generation(prompt, 0) for prompt in prompts[:2]])
