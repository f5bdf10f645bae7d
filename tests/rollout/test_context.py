from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from osmosis_ai.rollout import GraderContext, RolloutContext, RolloutSample, SampleSource, get_rollout_context
from osmosis_ai.rollout.grader_notes import GraderNotes, read_grader_notes
from osmosis_ai.rollout.server.wire import grader_body
from osmosis_ai.rollout.types import ExecutionResult, RolloutStatus


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


def test_notes_and_parts_of_the_last_reward_are_kept_with_the_sample() -> None:
    context = GraderContext(sample=RolloutSample(extra_fields={"mine": 1}))
    assert context.sample is not None
    context.set_reward(0.5, notes="the format is right", parts={"format": True, "answer": np.float32(0)})
    assert context.sample.extra_fields["mine"] == 1
    said = read_grader_notes(context.sample.json_safe_copy().extra_fields)
    assert (said.notes, said.parts) == ("the format is right", {"format": 1.0, "answer": 0.0})
    context.set_reward(0.25, notes="n" * 3000)
    said = read_grader_notes(context.sample.extra_fields)
    assert said.notes is not None and len(said.notes) == 2000 and not said.parts
    context.set_reward(0.25)
    assert context.sample.extra_fields == {"mine": 1}


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"notes": 3}, "`notes` must be text, not int"),
        ({"parts": [1]}, "`parts` must be a table"),
        ({"parts": {"a": math.nan}}, "the part `a` must be a finite number, not nan"),
        ({"parts": {"a": 10**400}}, "the part `a` must be a finite number"),
        ({"parts": {"a": "1"}}, "the part `a` must be a finite number, not '1'"),
        ({"parts": {"": 1}}, "a part's name must be text of 1 to 64 characters"),
        ({"parts": {"x" * 65: 1}}, "a part's name must be"),
        ({"parts": {str(each): 1 for each in range(33)}}, "32 numbers at most, not 33"),
    ],
)
def test_notes_that_are_none_are_refused_and_leave_the_reward_as_it_was(
    said: dict[str, Any], problem: str
) -> None:
    context = GraderContext(sample=RolloutSample())
    with pytest.raises(ValueError, match=problem):
        context.set_reward(1.0, **said)
    assert context.sample is not None
    assert (context.sample.reward, context.sample.extra_fields) == (None, {})
    assert read_grader_notes({"grader_notes": said}) == GraderNotes()


def test_notes_reach_the_controller_also_of_a_sample_whose_messages_have_no_json_form() -> None:
    context = GraderContext(sample=RolloutSample(messages=[], trajectory_messages=None))
    assert context.sample is not None
    context.set_reward(1.0, notes="well done", parts={"all": 1})
    context.sample.__dict__["messages"] = "no list"  # as a grader may leave it
    body = grader_body("r1", ExecutionResult(status=RolloutStatus.SUCCESS, sample=context.sample))
    assert json.loads(body)["sample"]["extra_fields"] == {
        "grader_notes": {"notes": "well done", "parts": {"all": 1.0}}
    }
