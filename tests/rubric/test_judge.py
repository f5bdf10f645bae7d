from __future__ import annotations

import asyncio
import json
import logging
import pickle
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from osmosis_ai.rubric.judge import Judge
from osmosis_ai.rubric.judge_model import resolve_judge
from osmosis_ai.rubric.types import JudgeTask, ModelNotFoundError, ProviderRequestError, UnscoredError
from tests.standin_model import Reply, StandInModel, error_reply

pytestmark = pytest.mark.usefixtures("without_waiting")

CANARY = "sk-canary-7f3a9b2c"
TASK = JudgeTask("Names the capital.", "Paris is the capital.", ground_truth="Paris")


def verdict(score: object, explanation: str = "fine", **reply: Any) -> Reply:
    return Reply(json.dumps({"score": score, "explanation": explanation}), **reply)


@pytest.fixture
async def model() -> AsyncIterator[StandInModel]:
    async with StandInModel(lambda _: verdict(0.5)) as server:
        yield server


def judge_of(model: StandInModel, /, **info: Any) -> Judge:
    named = {"provider": "openai", "model": "gpt-4o", "api_key": CANARY, **info}
    return Judge(resolve_judge({"api_base": model.base_url, **named}, env={}))


async def test_a_score_comes_with_its_explanation_tokens_and_cost(model: StandInModel) -> None:
    model.script(verdict(0.75, "good", usage={"prompt_tokens": 90, "completion_tokens": 10, "cost": 0.002}))
    async with judge_of(model) as judge:
        judgement = await judge.score(TASK)
    assert (judgement.score, judgement.explanation, judgement.stated_score) == (0.75, "good", None)
    assert (judgement.input_tokens, judgement.output_tokens, judgement.cost_usd) == (90, 10, 0.002)
    assert judgement.retries == 0
    assert judgement.raw["choices"][0]["finish_reason"] == "stop"
    request = model.requests[0]
    assert request.headers["Authorization"] == f"Bearer {CANARY}"
    assert request.body["temperature"] == 0
    assert request.body["response_format"] == {
        "type": "json_schema",
        "json_schema": {
            "name": "reward_rubric_response",
            "strict": True,
            "schema": {
                "type": "object",
                "properties": {
                    "score": {"type": "number", "description": "The score, within the range."},
                    "explanation": {"type": "string", "description": "Why, in a few sentences."},
                },
                "required": ["score", "explanation"],
                "additionalProperties": False,
            },
        },
    }
    assert "seed" not in request.body


async def test_the_path_goes_before_the_query_of_an_address(model: StandInModel) -> None:
    async with judge_of(model, api_base=f"{model.base_url}/?api-version=1") as judge:
        await judge.score(TASK)
    assert model.requests[0].path == "/v1/chat/completions?api-version=1"


@pytest.mark.parametrize(("stated", "kept"), [(7, 1.0), (-0.5, 0.0)])
async def test_a_score_out_of_bounds_is_clamped_and_the_judges_own_number_kept(
    model: StandInModel, stated: float, kept: float
) -> None:
    model.script(verdict(stated))
    async with judge_of(model) as judge:
        judgement = await judge.score(TASK)
    assert (judgement.score, judgement.stated_score) == (kept, stated)


@pytest.mark.parametrize(
    ("reply", "reason", "words"),
    [
        (Reply("I would rather talk about the weather."), "unparsable", "not valid JSON"),
        (Reply('[{"score": 1, "explanation": "x"}]'), "no_score", "JSON list"),
        (Reply('{"score": NaN, "explanation": "x"}'), "not_finite", "not finite: nan"),
        (Reply('{"score": "high", "explanation": "x"}'), "no_score", "numeric 'score'; it is a string"),
        (Reply("I'm sorry, but I can't help with that."), "refused", "the judge refused"),
        (Reply(None), "empty", "did not include any content"),
    ],
)
async def test_a_reply_without_a_score_is_asked_for_once_more_and_then_unscored(
    model: StandInModel, reply: Reply, reason: str, words: str
) -> None:
    model.script(reply, verdict(0.25), reply, reply)
    async with judge_of(model) as judge:
        recovered = await judge.score(TASK)
        assert (recovered.score, recovered.retries) == (0.25, 1)
        assert words in model.requests[1].body["messages"][-1]["content"], "the judge is told what was wrong"
        with pytest.raises(UnscoredError) as caught:
            await judge.score(TASK)
    error = caught.value
    assert error.reason == reason
    assert words in str(error)
    assert len(str(error).splitlines()) == 1
    assert len(model.requests) == 4
    assert error.input_tokens == recovered.input_tokens > 0, "a budget counts what failed, too"
    assert error.retries == 1
    assert isinstance(error, ProviderRequestError)
    assert isinstance(error, RuntimeError)


async def test_tokens_and_cost_of_both_questions_are_added(model: StandInModel) -> None:
    used = {"prompt_tokens": 100, "completion_tokens": 5, "cost": 0.01}
    model.script(Reply("no", usage=used), verdict(0.5, usage=used))
    async with judge_of(model) as judge:
        judgement = await judge.score(TASK)
    assert (judgement.input_tokens, judgement.output_tokens, judgement.cost_usd) == (200, 10, 0.02)


async def test_a_cost_that_is_not_known_is_none(model: StandInModel) -> None:
    model.script(verdict(0.5, usage=False))
    async with judge_of(model) as judge:
        assert (await judge.score(TASK)).cost_usd is None


async def test_rate_limits_and_failures_of_the_server_are_waited_out(model: StandInModel) -> None:
    model.script(
        error_reply(429, "slow down", retry_after="0.01"), error_reply(503, "busy"), Reply(disconnect=True)
    )
    async with judge_of(model) as judge:
        judgement = await judge.score(TASK)
        assert judge.snapshot().rate_limited == 1
    assert (judgement.score, judgement.retries) == (0.5, 3)


@pytest.mark.parametrize(
    ("reply", "cls", "category", "words"),
    [
        (error_reply(404, "no such model"), ModelNotFoundError, "not_found", "no such model"),
        (error_reply(401, f"bad key {CANARY}"), ProviderRequestError, "auth", "refused the key"),
        (
            error_reply(400, "maximum context length is 8192"),
            ProviderRequestError,
            "context_length",
            "longer than",
        ),
        (error_reply(400, "nonsense"), ProviderRequestError, "bad_request", "nonsense"),
        (error_reply(500, "oops"), ProviderRequestError, "server", "oops"),
        (Reply(body=b"<html>a proxy</html>"), ProviderRequestError, "invalid_reply", "a proxy"),
    ],
)
async def test_every_other_failure_is_a_provider_error_that_names_the_judge(
    model: StandInModel, reply: Reply, cls: type[Exception], category: str, words: str
) -> None:
    model.respond = lambda _: reply
    async with judge_of(model) as judge:
        with pytest.raises(ProviderRequestError) as caught:
            await judge.score(TASK)
    error = caught.value
    assert type(error) is cls
    assert (error.provider, error.model, error.category) == ("openai", "gpt-4o", category)
    assert str(error).startswith("Provider 'openai' request for model 'gpt-4o' failed. ")
    assert words in error.detail
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.category, copy.hint) == (str(error), category, error.hint)


async def test_what_the_endpoint_refuses_is_left_out_from_then_on(model: StandInModel) -> None:
    def respond(body: dict[str, Any]) -> Reply:
        asked = (body.get("response_format") or {}).get("type")
        if asked:
            return error_reply(400, f"This response_format type is unavailable now: {asked}")
        if "temperature" in body:
            return error_reply(400, "Unsupported value: 'temperature' does not support 0")
        return verdict(1.0)

    model.respond = respond
    async with judge_of(model, reasoning_effort="low") as judge:
        assert (await judge.score(TASK)).score == 1.0
        before = model.calls
        assert (await judge.score(TASK)).score == 1.0
    assert model.calls == before + 1
    assert model.requests[0].body["reasoning_effort"] == "low"


@pytest.mark.parametrize(
    ("info", "asked"),
    [
        ({"provider": "openai", "model": "gpt-4o"}, "json_schema"),
        ({"provider": "openai", "model": "gpt-3.5-turbo-16k"}, "json_object"),
        ({"provider": "anthropic", "model": "a-model-from-the-future"}, "json_schema"),
    ],
)
async def test_strict_output_is_asked_for_where_the_model_is_not_known_to_lack_it(
    info: dict[str, str], asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    async def complete(body: dict[str, Any], **_: object) -> None:
        seen.update(body)
        raise asyncio.CancelledError

    judge = Judge(resolve_judge({**info, "api_key": CANARY}, env={}))
    monkeypatch.setattr(judge._client, "complete", complete)
    with pytest.raises(asyncio.CancelledError):
        await judge.score(TASK)
    assert seen["response_format"]["type"] == asked


@pytest.mark.parametrize("name", ["gpt-5-mini", "openai/gpt-5"])
async def test_no_temperature_is_sent_to_models_that_refuse_one(model: StandInModel, name: str) -> None:
    async with judge_of(model, model=name) as judge:
        await judge.score(TASK)
    assert "temperature" not in model.requests[0].body


async def test_askings_of_the_same_task_have_seeds_of_their_own(model: StandInModel) -> None:
    async with judge_of(model) as judge:
        for index in range(3):
            await judge.score(TASK, call_index=index)
    assert [request.body.get("seed") for request in model.requests] == [None, 1, 2]


async def test_a_timeout_of_zero_leaves_no_time_for_an_answer(model: StandInModel) -> None:
    async with judge_of(model, timeout=0.0) as judge:
        assert judge.model.timeout_s == 30.0, "in model_info, 0 means the default"
    judge_model = resolve_judge("openai/m", env={}, api_base=model.base_url, timeout_s=0)
    async with Judge(judge_model) as judge:
        with pytest.raises(ProviderRequestError, match="0 seconds"):
            await judge.score(TASK)
    assert model.calls == 0


async def test_a_candidate_of_ten_megabytes_arrives_whole(model: StandInModel) -> None:
    text = "ten bytes " * 1_000_000
    async with judge_of(model) as judge:
        await judge.score(JudgeTask("Be brief.", text))
    assert text in model.requests[0].body["messages"][1]["content"]


async def test_half_a_surrogate_pair_in_the_candidate_does_no_harm(model: StandInModel) -> None:
    async with judge_of(model) as judge:
        assert (await judge.score(JudgeTask("Be brief.", "broken \ud83d"))).score == 0.5


async def test_as_many_calls_run_at_once_as_were_asked_for(model: StandInModel) -> None:
    hold = asyncio.Event()
    model.respond = lambda _: verdict(0.5, wait_for=hold)
    judge_model = resolve_judge("openai/m", env={}, api_base=model.base_url)
    async with Judge(judge_model, max_in_flight=3) as judge:
        calls = [asyncio.create_task(judge.score(TASK)) for _ in range(6)]
        while model.in_flight < 3:  # noqa: ASYNC110 (the stand-in counts, it does not signal)
            await asyncio.sleep(0)
        assert judge.snapshot().waiting == 3
        hold.set()
        await asyncio.gather(*calls)
    assert model.most_in_flight == 3


async def test_the_key_shows_up_nowhere(model: StandInModel, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    said: list[object] = []
    async with judge_of(model) as judge:
        model.script(verdict(0.5, f"the key is {CANARY}"))
        said.append(await judge.score(TASK))
        for status in (400, 401, 404, 500):
            model.respond = lambda _, status=status: error_reply(status, f"Wrong key: {CANARY}")  # type: ignore[misc]
            with pytest.raises(ProviderRequestError) as caught:
                await judge.score(TASK)
            said += [
                caught.value,
                vars(caught.value),
                caught.value.__cause__,
                caught.getrepr(showlocals=False),
            ]
        model.respond = lambda _: Reply(f"my key is {CANARY}")
        with pytest.raises(UnscoredError) as unscored:
            await judge.score(TASK)
        said += [unscored.value, vars(unscored.value), judge.model, repr(judge)]
    assert "[REDACTED]" in repr(said[0])
    assert CANARY not in " ".join(f"{one!r} {one}" for one in said)
    assert CANARY not in caplog.text


@pytest.mark.parametrize(
    ("body", "category", "words"),
    [
        (
            {
                "choices": [
                    {
                        "index": 0,
                        "finish_reason": "error",
                        "message": {"role": "assistant", "content": ""},
                        "error": {"code": 502, "message": "upstream is down"},
                    }
                ]
            },
            "server",
            "upstream is down",
        ),
        ({"choices": [None]}, "invalid_reply", '{"choices":[null]}'),
        ({"choices": [{"index": 0, "message": "hi"}]}, "invalid_reply", '"message":"hi"'),
    ],
)
async def test_a_failure_in_a_successful_response_is_retried_and_is_no_reply_of_the_judge(
    model: StandInModel, body: Any, category: str, words: str
) -> None:
    model.script(Reply(body=body))
    async with judge_of(model) as judge:
        assert (await judge.score(TASK)).score == 0.5
        model.respond = lambda _: Reply(body=body)
        with pytest.raises(ProviderRequestError, match=re.escape(words)) as caught:
            await judge.score(TASK)
    assert caught.value.category == category
    assert not isinstance(caught.value, UnscoredError)
    assert len(model.requests) > 3
