"""Requests to a Tinker server and the reading of its replies, against those of a real one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.errors import OsmosisError
from osmosis_ai.inference.engine import Generation
from osmosis_ai.inference.openai_api import TokenFeed
from tests.lazily import lazily

pytest.importorskip("tinker")

with lazily("torch"):
    from osmosis_ai.training.engines.tinker_backend import TinkerEngine, TinkerLearner, TinkerServer, _Loss
    from osmosis_ai.training.learner.learner import Learner
    from osmosis_ai.training.objective.sequences import TokenSequence
    from tests.training.learner_builders import as_sampled_by, made_up_sequences
    from tests.training.recorded_tinker import RecordedTinker
    from tests.training.standin_tinker import served


async def life(url: str, directory: Path) -> None:
    """Train, sample, save, load and fail on a server; its numbers equal those of the learner of this package."""
    known: dict[str, Any] = {"lora_rank": 1, "lr": 1e-4, "max_response_length": 16, "grad_clip": 1e9}

    def settings(**changes: Any) -> TrainingSettings:
        return TrainingSettings(**{**known, "backend": "tinker", "tinker_url": url, **changes})

    def scores(learner: Any) -> list[float]:
        return [value for row in learner.logprobs(sequences) for value in row]

    server = TinkerServer(settings(), "osmosis/tiny", None)
    there = TinkerLearner(server, settings(), "recorded")
    there.save_adapter(directory / "adapter")
    here = Learner("osmosis/tiny", TrainingSettings(**known), "cpu", adapter=directory / "adapter")
    sequences, advantages = as_sampled_by(here, made_up_sequences(3)), [1.0, -0.5, 0.25]
    assert scores(there) == pytest.approx(scores(here), abs=1e-4)

    found, expected = there.step(sequences, advantages), here.step(sequences, advantages)
    assert (there._loss.name, found.updates, found.tokens) == ("ppo", 1, expected.tokens)
    assert found.loss == pytest.approx(expected.loss, rel=1e-4, abs=1e-5)
    assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-3)

    engine = TinkerEngine(there, end_token_ids=frozenset({2}), max_positions=512)
    await engine.publish(there, 1)
    generation = Generation((5, 6, 7), 6, stream=1, stop_tokens=frozenset({2}), temperature=1.0)
    feed, sampled = TokenFeed(engine, [generation], every_token=False), []
    while not sampled or sampled[-1].finish_reason is None:
        sampled += [emission for _, emission in await feed.read()]
    await engine.close()
    ids = [5, 6, 7, *(emission.token.id for emission in sampled)]
    answer = TokenSequence("", ids, [0] * 3 + [1] * len(sampled), [0.0] * len(ids), [0] * len(ids))
    logprobs = [emission.token.logprob for emission in sampled]
    assert logprobs == pytest.approx(here.logprobs([answer])[0][3:], abs=1e-3)

    state = there.state_dict()
    assert re.fullmatch(r"tinker://model_\w+/weights/recorded-state-000001-\w{6}", state["tinker_path"])
    for loss, changes in {
        "importance_sampling": {"importance_cap": 1.5},
        "cross_entropy": {"method": "sft", "tinker_server": "hosted"},
    }.items():
        again = TinkerLearner(server, settings(**changes), "recorded")
        again.load_state_dict(state)
        before = scores(again)
        assert before == pytest.approx(scores(here), abs=1e-3)
        learned = again.step(sequences, advantages)
        assert (again._loss.name, learned.updates) == (loss, 2)
        assert learned.grad_norm is not None
        assert scores(again) != pytest.approx(before, abs=1e-2)
    assert learned.loss == pytest.approx(-sum(before) / learned.tokens, rel=1e-5)

    there._loss = _Loss("dro")
    lost = {"tinker_path": "tinker://model_none/weights/none", "updates": 0}
    for call, error, message in [
        (
            lambda: there.load_state_dict(lost),
            OsmosisError,
            "does not have the checkpoint tinker://model_none/weights/none: .*404 .*Model not found",
        ),
        (
            lambda: TinkerLearner(server, settings(lora_rank=64), "recorded").client,
            OsmosisError,
            "could not open a training session: .*LoRA rank 64 must be between 1 and 16",
        ),
        (
            lambda: there.step(sequences, advantages),
            OsmosisError,
            "could not compute the gradient: .*422 .*Input should be 'cross_entropy'",
        ),
    ]:
        with pytest.raises(error, match=f"^the Tinker server at {url} {message}") as refused:
            call()
        assert type(refused.value) is error


async def test_a_real_server_was_sent_the_same_and_its_replies_are_understood(tmp_path):
    recorded = RecordedTinker()
    with served(recorded.handle) as url:
        await life(url, tmp_path)
    assert recorded.differences == []
    assert [call for call, left in recorded.exchanges.items() if left] == []
