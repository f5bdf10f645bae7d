"""Learner, engine and saved adapter are one policy."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.inference.adapters import load_adapted_model
from osmosis_ai.inference.batching import Generation
from osmosis_ai.inference.chat_format import BuiltInChat
from osmosis_ai.inference.completion import TokenFeed
from osmosis_ai.inference.engine import InferenceEngine
from osmosis_ai.inference.model import Model
from osmosis_ai.training.engines.policy_engine import InProcessPolicyEngine
from osmosis_ai.training.engines.recording import Recording
from osmosis_ai.training.objective.sequences import TokenSequence
from tests.lazily import lazily
from tests.training.policy_world import END, MODEL_DIR, MULTIPLY, question

with lazily("torch"):
    import torch

    from osmosis_ai.inference.torch_engine import TorchEngine
    from tests.training.learner_builders import tiny_learner


@pytest.fixture(params=["numpy", "torch, float64", "torch, float32"])
def engine(request: pytest.FixtureRequest) -> Iterator[InProcessPolicyEngine]:
    makers: dict[str, Any] = {
        "numpy": lambda: InferenceEngine(Model.load(MODEL_DIR)),
        "torch, float64": lambda: TorchEngine(MODEL_DIR, dtype=torch.float64),
        "torch, float32": lambda: TorchEngine(MODEL_DIR),
    }
    with makers[request.param]() as running:
        yield InProcessPolicyEngine(running)


async def sample(engine: InProcessPolicyEngine, count: int = 4) -> list[TokenSequence]:
    """Answers to different questions, recorded."""
    chat, sequences = BuiltInChat(MODEL_DIR), []
    for number in range(count):
        recording = Recording(f"rollout-{number}", chat, frozenset({END}))
        prompt = recording.prompt(question(11 + number, 34), [MULTIPLY])
        feed = TokenFeed(engine, [Generation(prompt.ids, 40, number, frozenset({END}))], every_token=False)
        emissions = await asyncio.wait_for(feed.read(), 300)
        tokens = [emission.token for _, emission in emissions]
        recording.add(prompt, tokens, {"role": "assistant", "content": "?"})
        sequences += recording.recorded().sequences
    return sequences


def largest_gap(found: list[list[float]], sequences: list[TokenSequence]) -> float:
    return max(
        abs(theirs - ours)
        for row, sequence in zip(found, sequences, strict=True)
        for theirs, ours, own in zip(row, sequence.logprobs, sequence.mask, strict=True)
        if own
    )


async def test_what_is_sampled_has_the_learners_probabilities_before_and_after_an_update(
    engine: InProcessPolicyEngine, tmp_path: Path
) -> None:
    learner = tiny_learner()
    before = await sample(engine)
    assert largest_gap(learner.logprobs(before), before) < 1e-4
    after = before
    for version in (1, 2):
        learner.step(after, [1.0, -1.0] * 2)
        await engine.publish(learner, version)
        after = await sample(engine)
    assert largest_gap(learner.logprobs(after), after) < 1e-4
    assert {version for s in after for version, own in zip(s.versions, s.mask, strict=True) if own} == {2}
    assert largest_gap(learner.logprobs(before), before) > 1e-3, "the updates changed nothing"
    learner.save_adapter(tmp_path)
    with InferenceEngine(load_adapted_model(MODEL_DIR, tmp_path)) as served:
        again = await sample(InProcessPolicyEngine(served))
    assert [sequence.ids for sequence in again] == [sequence.ids for sequence in after]
    assert largest_gap([sequence.logprobs for sequence in again], after) < 1e-4
