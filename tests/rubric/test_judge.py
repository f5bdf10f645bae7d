"""Judges: which model a name means, what it is asked, and what comes of its answers."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from osmosis_ai.errors import OsmosisError
from osmosis_ai.rubric.judge import Judge
from osmosis_ai.rubric.judge_model import resolve_judge
from osmosis_ai.rubric.types import (
    JudgeArgumentError,
    JudgeTask,
    JudgeValueError,
    MissingAPIKeyError,
    ModelNotFoundError,
    ProviderRequestError,
    UnscoredError,
)
from tests.rollout.world import listening
from tests.standin_model import Reply, StandInModel, error_reply

pytestmark = pytest.mark.usefixtures("without_waiting")

CANARY = "sk-canary-7f3a9b2c"
OPENAI = {"provider": "openai", "model": "m"}
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
    assert (judgement.score, judgement.explanation, judgement.stated_score) == (0.75, "good", 0.75)
    assert (judgement.input_tokens, judgement.output_tokens, judgement.cost_usd) == (90, 10, 0.002)
    assert judgement.retries == 0
    assert judgement.raw["choices"][0]["finish_reason"] == "stop"
    request = model.requests[0]
    assert request.headers["Authorization"] == f"Bearer {CANARY}"
    asked = request.body["response_format"]["json_schema"]
    assert asked["strict"] and asked["schema"]["required"] == ["score", "explanation"]
    assert asked["schema"]["additionalProperties"] is False


@pytest.mark.parametrize(
    ("reply", "reason", "words"),
    [
        (Reply("I would rather talk about the weather."), "unparsable", "not valid JSON"),
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
        messages = model.requests[1].body["messages"]
        assert words in messages[-1]["content"], "the judge reads what was wrong"
        assert all(message["content"] for message in messages), "providers refuse a message without text"
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
    model.script(Reply("no", usage=used), verdict(0.5, usage=used), verdict(0.5, usage=False))
    async with judge_of(model) as judge:
        judgement = await judge.score(TASK)
        assert (await judge.score(TASK)).cost_usd is None, "unknown is not 0"
    assert (judgement.input_tokens, judgement.output_tokens, judgement.cost_usd) == (200, 10, 0.02)


async def test_rate_limits_and_failures_of_the_server_are_waited_out(model: StandInModel) -> None:
    model.script(
        error_reply(429, "slow down", retry_after="0.01"), error_reply(503, "busy"), Reply(disconnect=True)
    )
    async with judge_of(model) as judge:
        judgement = await judge.score(TASK)
        assert judge.limiter.refusals == 1
    assert (judgement.score, judgement.retries) == (0.5, 3)


@pytest.mark.parametrize(
    ("reply", "cls", "category", "words"),
    [
        (error_reply(404, "no such model"), ModelNotFoundError, "not_found", "no such model"),
        (error_reply(401, f"bad key {CANARY}"), ProviderRequestError, "auth", "rejected the API key"),
        (error_reply(400, "maximum context length"), ProviderRequestError, "context_length", "longer than"),
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


async def test_a_model_that_is_known_to_lack_strict_output_is_asked_for_json(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def complete(body: dict[str, Any], **_: object) -> None:
        assert body["response_format"]["type"] == "json_object"
        raise asyncio.CancelledError

    info = {"provider": "openai", "model": "gpt-3.5-turbo-16k", "api_key": CANARY}
    judge = Judge(resolve_judge(info, env={}))
    monkeypatch.setattr(judge._client, "complete", complete)
    with pytest.raises(asyncio.CancelledError):
        await judge.score(TASK)


async def test_calls_about_the_same_task_have_their_own_seeds_and_gpt_5_no_temperature(
    model: StandInModel,
) -> None:
    async with judge_of(model, model="openai/gpt-5") as judge:
        for index in range(3):
            await judge.score(TASK, call_index=index)
    assert [request.body.get("seed") for request in model.requests] == [None, 1, 2]
    assert not any("temperature" in request.body for request in model.requests)


async def test_a_timeout_of_zero_leaves_no_time_for_an_answer(model: StandInModel) -> None:
    async with judge_of(model, timeout=0.0) as judge:
        assert judge.model.timeout_s == 30.0, "in model_info, 0 means the default"
    judge_model = resolve_judge("openai/m", env={}, api_base=model.base_url, timeout_s=0)
    async with Judge(judge_model) as judge:
        with pytest.raises(ProviderRequestError, match="0 seconds"):
            await judge.score(TASK)
    assert model.calls == 0


async def test_half_a_surrogate_pair_in_the_candidate_does_no_harm(model: StandInModel) -> None:
    async with judge_of(model) as judge:
        assert (await judge.score(JudgeTask("Be brief.", "broken \ud83d"))).score == 0.5


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
            said += [caught.value, vars(caught.value), caught.value.__cause__]
            said.append(caught.getrepr(showlocals=False))
        model.respond = lambda _: Reply(f"my key is {CANARY}")
        with pytest.raises(UnscoredError) as unscored:
            await judge.score(TASK)
        said += [unscored.value, vars(unscored.value), judge.model, repr(judge)]
    assert "[REDACTED]" in repr(said[0])
    assert CANARY not in " ".join(f"{one!r} {one}" for one in said)
    assert CANARY not in caplog.text


async def test_a_key_in_the_address_is_redacted_as_well(model: StandInModel) -> None:
    async with judge_of(model, api_base=f"{model.base_url}?api-key=canary-in-address") as judge:
        model.script(verdict(0.5, "the key is canary-in-address"))
        judgement = await judge.score(TASK)
    assert "[REDACTED]" in judgement.explanation and "canary-in-address" not in repr(judgement)


DOWN = {"finish_reason": "error", "message": {}, "error": {"code": 502, "message": "it is down"}}


@pytest.mark.parametrize(
    ("choice", "category", "words"),
    [(DOWN, "server", "it is down"), (None, "invalid_reply", '{"choices":[null]}')],
    ids=["error", "null"],
)
async def test_a_failure_in_a_successful_response_is_retried_and_is_no_reply_of_the_judge(
    model: StandInModel, choice: Any, category: str, words: str
) -> None:
    failure = Reply(body={"choices": [choice]})
    model.script(failure)
    async with judge_of(model) as judge:
        assert (await judge.score(TASK)).score == 0.5
        model.respond = lambda _: failure
        with pytest.raises(ProviderRequestError, match=re.escape(words)) as caught:
            await judge.score(TASK)
    assert caught.value.category == category
    assert not isinstance(caught.value, UnscoredError)
    assert len(model.requests) > 3


OWN_SERVER = "http://localhost:8000/v1"
OTHER, AWS = {"OPENAI_API_KEY": "other"}, {"AWS_ACCESS_KEY_ID": CANARY}
BEDROCK = {"provider": "bedrock", "model": "m"}


@pytest.mark.parametrize(
    ("info", "env", "expected"),
    [
        (
            {"provider": " XAI ", "model": " grok-4-fast "},
            {"XAI_API_KEY": f"  {CANARY} "},
            {"provider": "xai", "model": "grok-4-fast", "timeout_s": 60, "api_key": CANARY},
        ),
        ("xai/grok-3", {"XAI_API_KEY": CANARY}, {"timeout_s": 45, "base_url": "https://api.x.ai/v1"}),
        ({"provider": "openai", "model": "GPT-5", "api_key": CANARY}, {}, {"timeout_s": 45}),
        ("openai/gpt-4o", {"OPENAI_API_KEY": CANARY}, {"timeout_s": 30, "transport": "openai"}),
        ("anthropic/m", {"ANTHROPIC_API_KEY": CANARY}, {"transport": "litellm", "base_url": None}),
        (
            {"provider": "anthropic", "model": "m", "api_base": "http://h:1/v1/chat/completions"},
            {},
            {"transport": "openai", "base_url": "http://h:1/v1"},
        ),
        ({**OPENAI, "api_key": f" {CANARY} ", "api_key_env": "NOT_SET"}, OTHER, {"api_key": CANARY}),
        ({**OPENAI, "api_key": " ", "api_key_env": " MINE "}, {**OTHER, "MINE": CANARY}, {"api_key": CANARY}),
        ({"provider": "mine", "model": "m", "api_base": OWN_SERVER}, {}, {"api_key": None}),
        ("hosted_vllm/q", {"HOSTED_VLLM_API_BASE": "http://h:1/v1"}, {"base_url": "http://h:1/v1"}),
        # Credentials of a cloud are not sent as a key.
        (BEDROCK, AWS, {"api_key": None}),
        ({**BEDROCK, "api_key_env": "AWS_ACCESS_KEY_ID"}, AWS, {"api_key": None}),
    ],
)
def test_a_judge_has_its_key_address_and_timeout(
    info: Any, env: dict[str, str], expected: dict[str, Any]
) -> None:
    judge = resolve_judge(info, env=env)
    assert {name: getattr(judge, name) for name in expected} == expected


def test_a_server_of_ones_own_may_call_its_model_anything() -> None:
    named = resolve_judge("Qwen/Qwen3-8B", env={}, api_base=OWN_SERVER)
    assert (named.provider, named.model) == ("openai", "Qwen/Qwen3-8B")


@pytest.mark.parametrize(
    ("info", "error", "words"),
    [
        ({}, JudgeArgumentError, "`model_info` needs `provider`"),
        ({"provider": "openai", "model": 5}, JudgeArgumentError, "`model_info` needs `model`"),
        ({**OPENAI, "api_key": 5}, JudgeArgumentError, "`api_key` .* not int"),
        ({**OPENAI, "api_base": "host:80"}, JudgeArgumentError, "http"),
        ({**OPENAI, "api_base": "http://u:p@h/v1"}, JudgeArgumentError, "password"),
        ({**OPENAI, "timeout": "soon"}, JudgeArgumentError, "`timeout`"),
        ({**OPENAI, "timeout": float("inf")}, JudgeValueError, "`timeout`"),
        ({**OPENAI, "api_key_env": "WE IRD"}, JudgeArgumentError, "must be the name of an environment var"),
        ({**OPENAI, "api_key_env": "TEAM_KEY"}, MissingAPIKeyError, "TEAM_KEY' is not set.*export TEAM_KEY="),
        ("google/m", MissingAPIKeyError, "GEMINI_API_KEY.* is not set.*export GEMINI"),
        ("bedrock/m", MissingAPIKeyError, "AWS_ACCESS_KEY_ID.* is not set.*export AWS"),
        ({"provider": "we ird-x", "model": "m"}, MissingAPIKeyError, "no known provider 'we ird-x'"),
        (
            {"provider": "nobody", "model": "m", "api_key": CANARY},
            ProviderRequestError,
            "no known provider 'nobody'.*set `api_base`",
        ),
        ("nobody/m", OsmosisError, "Unknown provider: nobody/m"),
        ("hosted_vllm/q", OsmosisError, "needs the address of its server: set `api_base`"),
    ],
)
def test_what_is_wrong_with_a_judge_is_named_before_any_call(
    info: Any, error: type[Exception], words: str
) -> None:
    env = {"OPENAI_API_KEY": CANARY, "WE IRD-X_API_KEY": CANARY, "TEAM_KEY": "  "}
    with pytest.raises(error, match=f"(?s){words}") as caught:
        resolve_judge(info, env=env)
    assert CANARY not in str(caught.value) and "WE IRD-X" not in str(caught.value)


@pytest.mark.imports_much
async def test_a_judge_of_a_provider_with_its_own_protocol_is_asked_through_litellm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bodies: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        assert request.headers["x-api-key"] == CANARY
        if bodies[-1]["model"] == "claude-3-gone":
            error = {"type": "not_found_error", "message": f"model: claude-3-gone, key: {CANARY}"}
            return web.json_response({"type": "error", "error": error}, status=404)
        if len(bodies) == 1:
            error = {"type": "rate_limit_error", "message": "slow down"}
            headers = {"retry-after": "0"}
            return web.json_response({"type": "error", "error": error}, status=429, headers=headers)
        verdict = {"score": 0.75, "explanation": "fine"}
        used = {"type": "tool_use", "id": "t", "name": bodies[-1]["tools"][0]["name"], "input": verdict}
        reply = {"id": "msg", "type": "message", "role": "assistant", "model": bodies[-1]["model"]}
        ended = {"content": [used], "stop_reason": "tool_use", "stop_sequence": None}
        return web.json_response({**reply, **ended, "usage": {"input_tokens": 100, "output_tokens": 10}})

    app = web.Application()
    app.router.add_post("/v1/messages", answer)
    info = {"provider": "anthropic", "model": "claude-3-haiku-20240307", "api_key": CANARY}
    async with listening(app) as url:
        monkeypatch.setenv("ANTHROPIC_API_BASE", url)
        async with Judge(resolve_judge(info, env={})) as judge:
            judgement = await judge.score(TASK, call_index=1)
        assert (judgement.score, judgement.explanation, judgement.retries) == (0.75, "fine", 1)
        assert (judgement.input_tokens, judgement.output_tokens) == (100, 10)
        assert bodies[-1]["temperature"] == 0
        assert bodies[-1]["tools"][0]["input_schema"]["required"] == ["score", "explanation"]
        async with Judge(resolve_judge({**info, "model": "claude-3-gone"}, env={})) as judge:
            with pytest.raises(ModelNotFoundError, match="claude-3-gone") as caught:
                await judge.score(TASK)
    assert CANARY not in f"{caught.value!r} {vars(caught.value)}"
