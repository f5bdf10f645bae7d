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
from osmosis_ai.rubric.judge_model import DEFAULT_API_KEY_ENV, resolve_judge
from osmosis_ai.rubric.types import (
    JudgeArgumentError,
    JudgeTask,
    JudgeValueError,
    MissingAPIKeyError,
    ModelNotFoundError,
    ProviderRequestError,
    UnscoredError,
)
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
        assert words in messages[-1]["content"], "the judge is told what was wrong"
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


async def test_no_temperature_is_sent_to_models_that_refuse_one(model: StandInModel) -> None:
    async with judge_of(model, model="openai/gpt-5") as judge:
        await judge.score(TASK)
    assert "temperature" not in model.requests[0].body


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
                    {"finish_reason": "error", "message": {}, "error": {"code": 502, "message": "it is down"}}
                ]
            },
            "server",
            "it is down",
        ),
        ({"choices": [None]}, "invalid_reply", '{"choices":[null]}'),
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


@pytest.mark.parametrize(
    ("provider", "model", "timeout_s"),
    [("xai", "grok-4-fast", 60), ("xai", "grok-3", 45), ("openai", "GPT-5", 45), ("openai", "gpt-4o", 30)],
)
def test_a_documented_provider_has_its_key_and_its_timeout(
    provider: str, model: str, timeout_s: float
) -> None:
    env = {DEFAULT_API_KEY_ENV[provider]: f"  {CANARY} "}
    judge = resolve_judge({"provider": f" {provider.upper()} ", "model": f" {model} "}, env=env)
    assert (judge.provider, judge.model, judge.api_key) == (provider, model, CANARY)
    assert judge.timeout_s == timeout_s
    assert resolve_judge(f"{provider}/{model}", env=env) == judge, "the LiteLLM name says the same"


@pytest.mark.parametrize(
    ("info", "transport", "base"),
    [
        ({"provider": "xai", "model": "grok-4"}, "openai", "https://api.x.ai/v1"),
        ({"provider": "anthropic", "model": "claude-sonnet-4-5"}, "litellm", None),
        (
            {"provider": "anthropic", "model": "m", "api_base": "http://h:1/v1/chat/completions"},
            "openai",
            "http://h:1/v1",
        ),
    ],
)
def test_openai_compatible_endpoints_are_called_directly(
    info: dict[str, Any], transport: str, base: str | None
) -> None:
    endpoint = resolve_judge({**info, "api_key": CANARY}, env={}).endpoint
    assert (endpoint.transport, endpoint.base_url) == (transport, base)


def test_a_key_in_model_info_wins_over_every_variable() -> None:
    info = {"provider": "openai", "model": "gpt-4o", "api_key": f" {CANARY} ", "api_key_env": "NOT_SET"}
    assert resolve_judge(info, env={"OPENAI_API_KEY": "other"}).api_key == CANARY
    named = {"provider": "openai", "model": "gpt-4o", "api_key": " ", "api_key_env": " MINE "}
    assert resolve_judge(named, env={"OPENAI_API_KEY": "other", "MINE": CANARY}).api_key == CANARY


@pytest.mark.parametrize(
    ("info", "variable"),
    [
        ({"provider": "openai"}, "OPENAI_API_KEY"),
        ({"provider": "google"}, "GEMINI_API_KEY"),
        ({"provider": "bedrock"}, "AWS_ACCESS_KEY_ID"),
        ({"provider": "openai", "api_key_env": "TEAM_KEY"}, "TEAM_KEY"),
    ],
)
def test_a_missing_key_is_an_error_with_the_export_line(info: dict[str, Any], variable: str) -> None:
    with pytest.raises(MissingAPIKeyError) as caught:
        resolve_judge({**info, "model": "m"}, env={variable: "  "})
    message = str(caught.value)
    assert f"Environment variable '{variable}' is not set." in message
    assert f'export {variable}="..."' in message
    assert isinstance(caught.value, RuntimeError)
    assert "\n" not in message


def test_an_unknown_provider_with_a_key_is_refused_before_any_call() -> None:
    with pytest.raises(ProviderRequestError, match=r"no known provider 'nobody'.*set `api_base`"):
        resolve_judge({"provider": "nobody", "model": "m", "api_key": CANARY}, env={})
    with pytest.raises(OsmosisError, match="`nobody/m` names no known provider"):
        resolve_judge("nobody/m", env={})


def test_a_server_of_ones_own_needs_neither_a_known_provider_nor_a_key() -> None:
    judge = resolve_judge({"provider": "mine", "model": "m", "api_base": "http://localhost:8000/v1"}, env={})
    assert judge.api_key is None
    named = resolve_judge("Qwen/Qwen3-8B", env={}, api_base="http://localhost:8000/v1")
    assert (named.provider, named.model) == ("openai", "Qwen/Qwen3-8B")
    assert (
        resolve_judge("hosted_vllm/q", env={"HOSTED_VLLM_API_BASE": "http://h:1/v1"}).api_base
        == "http://h:1/v1"
    )
    with pytest.raises(OsmosisError, match="needs the address of its server: set `api_base`"):
        resolve_judge("hosted_vllm/q", env={})


def test_cloud_credentials_are_not_sent_as_a_key() -> None:
    info = {"provider": "bedrock", "model": "claude"}
    assert resolve_judge(info, env={"AWS_ACCESS_KEY_ID": CANARY}).api_key is None
    named = {**info, "api_key_env": "AWS_ACCESS_KEY_ID"}
    assert resolve_judge(named, env={"AWS_ACCESS_KEY_ID": "x"}).api_key is None


@pytest.mark.parametrize(
    ("info", "error", "words"),
    [
        ({}, JudgeArgumentError, "`model_info` needs `provider`"),
        ({"provider": "openai", "model": 5}, JudgeArgumentError, "`model_info` needs `model`"),
        ({"provider": "openai", "model": "m", "api_key": 5}, JudgeArgumentError, "`api_key` .* not int"),
        ({"provider": "openai", "model": "m", "api_base": "host:80"}, JudgeArgumentError, "http"),
        ({"provider": "openai", "model": "m", "api_base": "http://u:p@h/v1"}, JudgeArgumentError, "password"),
        ({"provider": "openai", "model": "m", "timeout": "soon"}, JudgeArgumentError, "`timeout`"),
        ({"provider": "openai", "model": "m", "timeout": float("inf")}, JudgeValueError, "`timeout`"),
    ],
)
def test_what_is_wrong_with_model_info_is_named(
    info: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        resolve_judge(info, env={"OPENAI_API_KEY": CANARY})
    assert CANARY not in str(caught.value)
    assert isinstance(caught.value, TypeError | ValueError)


def test_what_no_environment_variable_can_be_called_is_refused_as_a_name_of_one() -> None:
    with pytest.raises(JudgeArgumentError, match="must be the name of an environment variable"):
        resolve_judge({"provider": "openai", "model": "m", "api_key_env": "WE IRD-KEY"}, env={})
    with pytest.raises(MissingAPIKeyError) as refused:
        resolve_judge({"provider": "we ird-x", "model": "m"}, env={"WE IRD-X_API_KEY": CANARY})
    assert "WE IRD" not in str(refused.value)


# Providers that do not speak the protocol of OpenAI: here a stand-in for the one of Anthropic.

VERDICT = {"score": 0.75, "explanation": "fine"}


class StandInAnthropic:
    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        self.keys.append(request.headers.get("x-api-key"))
        if body["model"] == "claude-3-gone":
            error = {"type": "not_found_error", "message": f"model: claude-3-gone, key: {CANARY}"}
            return web.json_response({"type": "error", "error": error}, status=404)
        if len(self.bodies) == 1:
            error = {"type": "rate_limit_error", "message": "slow down"}
            return web.json_response(
                {"type": "error", "error": error}, status=429, headers={"retry-after": "0"}
            )
        content = {"type": "tool_use", "id": "t", "name": body["tools"][0]["name"], "input": VERDICT}
        return web.json_response(
            {
                "id": "msg",
                "type": "message",
                "role": "assistant",
                "model": body["model"],
                "content": [content],
                "stop_reason": "tool_use",
                "stop_sequence": None,
                "usage": {"input_tokens": 100, "output_tokens": 10},
            }
        )


@pytest.fixture
async def anthropic(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StandInAnthropic]:
    provider = StandInAnthropic()
    app = web.Application()
    app.router.add_post("/v1/messages", provider.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setenv("ANTHROPIC_API_BASE", f"http://127.0.0.1:{runner.addresses[0][1]}")
    yield provider
    await runner.cleanup()


@pytest.mark.imports_much
async def test_a_judge_behind_litellm_scores_after_a_rate_limit(anthropic: StandInAnthropic) -> None:
    info = {"provider": "anthropic", "model": "claude-3-haiku-20240307", "api_key": CANARY}
    async with Judge(resolve_judge(info, env={})) as judge:
        judgement = await judge.score(JudgeTask("Be kind.", "hello"), call_index=1)
    assert (judgement.score, judgement.explanation, judgement.retries) == (0.75, "fine", 1)
    assert (judgement.input_tokens, judgement.output_tokens) == (100, 10)
    assert anthropic.keys == [CANARY, CANARY]
    assert anthropic.bodies[-1]["temperature"] == 0
    schema = anthropic.bodies[-1]["tools"][0]["input_schema"]
    assert schema["required"] == ["score", "explanation"]


@pytest.mark.imports_much
async def test_a_model_that_is_not_there_is_said_without_the_key(anthropic: StandInAnthropic) -> None:
    info = {"provider": "anthropic", "model": "claude-3-gone", "api_key": CANARY}
    async with Judge(resolve_judge(info, env={})) as judge:
        with pytest.raises(ModelNotFoundError, match="claude-3-gone") as caught:
            await judge.score(JudgeTask("Be kind.", "hello"))
    assert CANARY not in f"{caught.value!r} {vars(caught.value)}"
