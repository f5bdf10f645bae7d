from __future__ import annotations

import random

import numpy as np
import pytest

from osmosis_ai.inference.batching import ContinuousBatch, Generation
from osmosis_ai.inference.model import Model
from osmosis_ai.inference.slots import SequenceSlots
from tests.inference.conftest import generation

pytestmark = pytest.mark.integration


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The widths of the prompts' parts that the model computed."""
    widths: list[int] = []
    extend = Model.extend

    def counting(self: Model, cache: object, rows: slice, ids: np.ndarray, *rest: object) -> object:
        widths.append(ids.shape[1])
        return extend(self, cache, rows, ids, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Model, "extend", counting)
    return widths


def finish(batch: ContinuousBatch, generations: list[Generation]) -> list[tuple[int, ...]]:
    """Run to the end; the tokens of each, in order."""
    tokens: dict[Generation, list[int]] = {g: [] for g in generations}
    emissions = batch.admit(generations)
    while True:
        for emission in emissions:
            tokens[emission.generation].append(emission.token.id)
        if not len(batch):
            return [tuple(t) for t in tokens.values()]
        emissions = batch.step()


def test_a_second_turn_computes_only_what_is_new(
    model: Model, prompts: list[tuple[int, ...]], computed: list[int]
) -> None:
    batch = ContinuousBatch(model, 2, kept=4)
    (reply,) = finish(batch, [generation(prompts[0], 1)])
    for noise in range(3):  # others come and go, and use the same slot
        finish(batch, [generation(prompts[2 + noise], noise)])
    computed.clear()
    finish(batch, [generation((*prompts[0], *reply, 7, 8, 9), 2, max_tokens=1)])
    # The last token of the reply was never fed to the model.
    assert computed == [1 + 3]


def test_the_same_prompt_again_computes_one_token(
    model: Model, prompts: list[tuple[int, ...]], computed: list[int]
) -> None:
    batch = ContinuousBatch(model, 8)
    finish(batch, [generation(prompts[0], 1)])
    computed.clear()
    finish(batch, [generation(prompts[0], seed, max_tokens=1) for seed in range(8)])
    assert computed == [1]


def test_what_is_known_already_changes_no_token(model: Model, prompts: list[tuple[int, ...]]) -> None:
    rng = random.Random(5)
    remembering, forgetful = ContinuousBatch(model, 6, kept=5), ContinuousBatch(model, 6, kept=0)
    known: list[tuple[int, ...]] = list(prompts)
    for round_ in range(30):
        wave = []
        for _ in range(rng.randint(1, 6)):
            base = rng.choice(known)
            prompt = base[: rng.randint(1, len(base))] + tuple(
                rng.choices(range(7, 512), k=rng.randint(0, 5))
            )
            wave.append(generation(prompt, round_, max_tokens=rng.randint(1, 20)))
        replies = finish(remembering, wave)
        fresh = ContinuousBatch(model, 6, kept=0)
        assert replies == finish(forgetful, wave) == finish(fresh, wave)
        known += [g.prompt + reply for g, reply in zip(wave, replies, strict=True)]


def test_the_ended_sequence_of_no_use_for_longest_makes_room(model: Model) -> None:
    slots = SequenceSlots(model, running=1, kept=2)
    for tokens in ([1, 2, 3, 4], [5, 6, 7, 8]):
        slots.fill(0, tokens, 0)
        slots.keep(0)
    assert slots.longest_prefix([1, 2, 3, 4, 9])[1] == 4  # of use: now the other is older
    slots.fill(0, [10, 11, 12], 0)
    slots.keep(0)
    assert [slots.longest_prefix(p)[1] for p in ([1, 2, 3, 4, 9], [10, 11, 12, 9], [5, 6, 7, 8, 9])] == [
        4,
        3,
        0,
    ]


def test_a_prompt_of_one_token_has_no_known_prefix(model: Model) -> None:
    slots = SequenceSlots(model, running=1, kept=1)
    slots.fill(0, [5, 6], 0)
    assert slots.longest_prefix([5])[1] == 0
    assert slots.longest_prefix([5, 6])[1] == 1
