from __future__ import annotations

import asyncio
import math

import pytest
from pydantic import ValidationError

from osmosis_ai.rollout import GraderContext, RolloutContext, RolloutSample, SampleSource, get_rollout_context


class Session(SampleSource):
    async def get_sample(self) -> RolloutSample:
        return RolloutSample(messages=[{"role": "user", "content": "hi"}])


def test_there_is_no_context_outside_of_a_rollout() -> None:
    assert get_rollout_context() is None


def test_leaving_a_context_brings_the_outer_one_back() -> None:
    with RolloutContext(rollout_id="outer") as outer:
        with RolloutContext(rollout_id="inner") as inner:
            assert get_rollout_context() is inner
            with inner:
                assert get_rollout_context() is inner
            assert get_rollout_context() is inner
        assert get_rollout_context() is outer
    assert get_rollout_context() is None


def test_what_is_left_empty_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSMOSIS_CHAT_COMPLETIONS_URL", "http://model/v1")
    monkeypatch.setenv("OSMOSIS_API_KEY", "from-env")
    monkeypatch.setenv("OSMOSIS_ROLLOUT_ID", "r-env")

    assert RolloutContext() == RolloutContext("http://model/v1", "from-env", "r-env")
    assert RolloutContext(api_key="mine", rollout_id="r1").api_key == "mine"


def test_the_key_is_hidden_from_a_repr() -> None:
    assert "secret" not in repr(RolloutContext(api_key="secret"))


async def test_concurrent_rollouts_do_not_see_each_other() -> None:
    async def run(name: str) -> str:
        with RolloutContext(rollout_id=name):
            await asyncio.sleep(0)
            context = get_rollout_context()
            assert context is not None
            return context.rollout_id

    assert await asyncio.gather(*(run(str(number)) for number in range(5))) == ["0", "1", "2", "3", "4"]


async def test_a_context_takes_one_sample_source_and_returns_its_sample() -> None:
    context = RolloutContext()
    assert await context.get_sample() is None

    context.set_sample_source(Session())

    sample = await context.get_sample()
    assert sample is not None and sample.messages == [{"role": "user", "content": "hi"}]
    with pytest.raises(ValueError, match="already has a sample source"):
        context.set_sample_source(Session())


def test_a_reward_needs_a_sample_and_a_finite_number() -> None:
    with pytest.raises(ValueError, match="no sample to reward"):
        GraderContext().set_reward(1.0)

    context = GraderContext(label="x", sample=RolloutSample())
    with pytest.raises(ValidationError, match="finite number"):
        context.set_reward(math.nan)
    with pytest.raises(ValidationError, match="valid number"):
        context.set_reward("much")  # type: ignore[arg-type]
    context.set_reward(1)
    assert context.sample is not None and context.sample.reward == 1.0
