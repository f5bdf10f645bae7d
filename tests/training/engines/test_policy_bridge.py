"""What the agent gets, and what the learner will see of it: one token sequence, exactly as sampled."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.errors import NotFoundError
from osmosis_ai.inference.model import KeyValueCache, Model
from osmosis_ai.training.objective.sequences import NOT_SAMPLED, TokenSequence
from tests.lazily import needs
from tests.training.policy_world import (
    MODEL_DIR,
    MULTIPLY,
    TOKEN,
    PolicyWorld,
    chat_with_template,
    policy_world,
    question,
    tool_answer,
)

pytestmark = pytest.mark.integration


@pytest.fixture
async def world() -> AsyncIterator[PolicyWorld]:
    async with policy_world() as built:
        yield built


async def calling_reply(world: PolicyWorld) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A question whose answer, with the next seed, is a tool call."""
    for a in range(11, 60):
        world.bridge.open(f"probe-{a}", seed_for=lambda index: index)
        reply = await world.reply(question(a), rollout_id=f"probe-{a}")
        if reply.get("tool_calls"):
            return question(a), await world.reply(question(a))
    raise AssertionError("the model calls no tool")


def policy_logprobs(sequence: TokenSequence, temperature: float = 1.0) -> np.ndarray:
    """What the model gives each token of a sequence, computed from the whole sequence at once."""
    model = Model.load(MODEL_DIR)
    cache, none = KeyValueCache(model.config, 1), np.array([0])
    found = [0.0]
    for place, (token, following) in enumerate(zip(sequence.ids, sequence.ids[1:], strict=False)):
        logits = model.extend(cache, slice(0, 1), np.array([[token]]), np.array([place]), none)[0]
        scaled = logits / temperature
        found.append(float(scaled[following] - np.logaddexp.reduce(scaled)))
    return np.array(found)


def assert_exact(sequence: TokenSequence, temperature: float = 1.0) -> None:
    sampled = np.array(sequence.mask, bool)
    expected = policy_logprobs(sequence, temperature)
    assert np.abs(expected - sequence.logprobs)[sampled].max() < 1e-9


# One call


async def test_a_call_is_answered_and_recorded_token_by_token(world: PolicyWorld) -> None:
    status, answer = await world.ask(question(), logprobs=True, return_token_ids=True, model="any/name")
    choice = answer["choices"][0]
    recorded = world.bridge.take("r1")
    [sequence] = recorded.sequences
    assert status == 200
    assert answer["model"] == "any/name"
    assert sequence.ids == answer["prompt_token_ids"] + choice["token_ids"]
    assert sequence.ids[: len(answer["prompt_token_ids"])] == world.chat.encode(
        world.chat.render(question(), [MULTIPLY])
    )
    assert sequence.mask == [0] * len(answer["prompt_token_ids"]) + [1] * len(choice["token_ids"])
    logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    assert sequence.logprobs[-len(logprobs) :] == logprobs
    assert (recorded.calls, recorded.forks, recorded.truncated) == (1, 0, False)
    assert set(sequence.versions) == {NOT_SAMPLED, 0}
    assert answer["usage"]["completion_tokens"] == recorded.sampled_tokens == len(choice["token_ids"])
    assert_exact(sequence)


async def test_a_retried_call_is_answered_from_the_record_and_recorded_once(world: PolicyWorld) -> None:
    first = await world.ask(question(), retry_count=0)
    again = await world.ask(question(), retry_count=1)
    assert again == first
    another = await world.ask(question(), retry_count=0)
    assert another[1]["id"] != first[1]["id"]
    recorded = world.bridge.take("r1")
    assert (recorded.calls, len(recorded.sequences), recorded.forks) == (2, 2, 1)
    assert len(world.engine.asked) == 2


# The run's sampling, not the agent's


async def test_in_training_the_runs_temperature_top_p_and_seeds_hold() -> None:
    async with policy_world(settings=TrainingSettings(rollout_temperature=0.7, rollout_top_p=0.9)) as world:
        await world.reply(question(), temperature=0.0, top_p=0.1, seed=99)
        await world.reply(question(), temperature=2.0)
        first, second = world.engine.asked
        assert (first.temperature, first.top_p, first.stream) == (0.7, 0.9, 0)
        assert (second.temperature, second.top_p, second.stream) == (0.7, 0.9, 1)
        for sequence in world.bridge.take("r1").sequences:
            assert_exact(sequence, temperature=0.7)


async def test_the_same_seeds_give_the_same_rollout_whatever_else_runs(world: PolicyWorld) -> None:
    world.bridge.open("r2", seed_for=lambda index: index)
    alone = await world.reply(question())
    for number in range(10):
        world.bridge.open(f"other-{number}", seed_for=partial(operator.add, 50 + number))
    crowd = [world.reply(question(3, n), rollout_id=f"other-{n}") for n in range(10)]
    again, *_ = await asyncio.gather(world.reply(question(), rollout_id="r2"), *crowd)
    assert again["content"] == alone["content"]
    ours, theirs = world.bridge.take("r1").sequences, world.bridge.take("r2").sequences
    assert ours[0].ids == theirs[0].ids


async def test_all_choices_of_a_call_are_recorded_each_with_its_own_tokens(world: PolicyWorld) -> None:
    _, answer = await world.ask(question(), n=3, return_token_ids=True)
    recorded = world.bridge.take("r1")
    assert len(recorded.sequences) == 3
    sampled = [[token for token, own in zip(s.ids, s.mask, strict=True) if own] for s in recorded.sequences]
    assert sorted(sampled) == sorted(choice["token_ids"] for choice in answer["choices"])


# Later turns


async def test_the_next_turn_reads_the_recorded_tokens_and_only_what_is_new(world: PolicyWorld) -> None:
    messages, reply = await calling_reply(world)
    messages += tool_answer(reply)
    await world.reply(messages)
    first, second = world.engine.asked[-2:]
    recorded = world.bridge.take("r1")
    [sequence] = recorded.sequences
    assert second.prompt[: len(first.prompt)] == first.prompt
    assert list(second.prompt) == sequence.ids[: len(second.prompt)]
    # What the policy reads is, as text, exactly what the template writes.
    assert world.chat.decoder()(second.prompt, True) == world.chat.render(messages, [MULTIPLY])
    assert (recorded.forks, recorded.realigned) == (0, 0)
    assert sum(sequence.mask) == recorded.sampled_tokens
    assert_exact(sequence)


async def test_a_rewritten_history_forks_and_is_counted(world: PolicyWorld) -> None:
    first = await world.reply(question())
    rewritten = [*question(), {**first, "content": "I said something else"}, *question(5, 6)]
    await world.reply(rewritten)
    recorded = world.bridge.take("r1")
    assert (len(recorded.sequences), recorded.forks, recorded.realigned) == (2, 1, 0)
    for sequence in recorded.sequences:
        assert_exact(sequence)


async def test_two_calls_behind_the_same_turn_are_two_branches(world: PolicyWorld) -> None:
    reply = await world.reply(question())
    history = [*question(), reply]
    await asyncio.gather(world.reply([*history, *question(5, 6)]), world.reply([*history, *question(7, 8)]))
    recorded = world.bridge.take("r1")
    assert (recorded.calls, len(recorded.sequences), recorded.forks) == (3, 2, 1)
    assert sum(sum(sequence.mask) for sequence in recorded.sequences) == recorded.sampled_tokens
    for sequence in recorded.sequences:
        assert_exact(sequence)


@pytest.mark.imports_much
async def test_a_template_that_rewrites_earlier_turns_forks() -> None:
    """As Qwen 3's does with an earlier turn's thinking."""
    needs("torch", "transformers")
    template = (MODEL_DIR / "chat_template.jinja").read_text()
    content = "{{- turn.content or '' }}"
    assert content in template
    rewriting = template.replace(content, "{{- turn.content or '' if loop.last else 'gone' }}")
    async with policy_world(chat=chat_with_template(rewriting)) as world:
        reply = await world.reply(question(), tools=None)
        await world.reply([*question(), reply, *question(5, 6)], tools=None)
        recorded = world.bridge.take("r1")
        assert (recorded.forks, recorded.realigned) == (1, 0)


# Limits


async def test_a_prompt_that_is_too_long_is_refused_as_openai_refuses_it() -> None:
    async with policy_world(settings=TrainingSettings(max_prompt_length=30, max_response_length=50)) as world:
        status, answer = await world.ask(question() * 5)
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert "`max_prompt_length`" in answer["error"]["message"]
        assert world.engine.asked == []


async def test_a_turn_that_reaches_the_limit_ends_with_length_and_the_next_is_refused() -> None:
    async with policy_world(settings=TrainingSettings(max_prompt_length=400, max_response_length=5)) as world:
        _, answer = await world.ask(question(), max_tokens=4)
        assert answer["choices"][0]["finish_reason"] == "length"
        assert not world.bridge._recordings["r1"].truncated, "the agent chose this limit"
        messages = [*question(), answer["choices"][0]["message"], *question(5, 6)]
        _, answer = await world.ask(messages, max_tokens=50)
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 1
        messages += [answer["choices"][0]["message"], *question(7, 8)]
        status, answer = await world.ask(messages)
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        recorded = world.bridge.take("r1")
        assert (recorded.truncated, recorded.sampled_tokens, recorded.forks) == (True, 5, 0)
        [sequence] = recorded.sequences
        # The truncated turn continues after the end that the template puts there.
        assert_exact(sequence)


# Handing over


async def test_a_record_is_handed_over_once_open_or_closed(world: PolicyWorld) -> None:
    await world.reply(question())
    usage = world.bridge.close("r1")
    assert usage.calls == 1
    assert world.bridge.take("r1").calls == 1
    with pytest.raises(NotFoundError):
        world.bridge.take("r1")
    world.bridge.open("r1")
    await world.reply(question())
    assert world.bridge.take("r1").calls == 1
    assert (await world.ask(question()))[0] == 404


# Versions


class Shifted:
    """A policy that differs from the base in one matrix."""

    def merged_state(self) -> dict[str, Any]:
        name = "model.layers.1.mlp.down_proj.weight"
        return {name: np.asarray(Model.load(MODEL_DIR).tensors[name]) * 1.2}


async def test_every_token_carries_the_version_it_was_sampled_with(world: PolicyWorld) -> None:
    reply = await world.reply(question())
    await world.engine.publish(Shifted(), 3)
    await world.reply([*question(), reply, *question(5, 6)])
    recorded = world.bridge.take("r1")
    [sequence] = recorded.sequences
    versions = [version for version, own in zip(sequence.versions, sequence.mask, strict=True) if own]
    assert (set(versions), versions) == ({0, 3}, sorted(versions))
    assert TOKEN not in repr(world.bridge)
