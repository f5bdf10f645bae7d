"""The model server's HTTP interface: what it accepts, answers, streams, and refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from aiohttp.web import TCPSite

from osmosis_ai.inference.chat import BuiltInChat
from osmosis_ai.inference.engine import InferenceEngine
from osmosis_ai.inference.model import Model
from osmosis_ai.inference.openai_api import ChatCompletion, ChatCompletions
from osmosis_ai.inference.protocol import OpenAIError, parse_request
from osmosis_ai.inference.server import MAX_BODY_BYTES, Endpoint
from tests.inference.conftest import END, body, multiply_tool, question
from tests.inference.test_model import log_softmax, teacher_forced

Json = dict[str, Any]


async def complete(api: ChatCompletions, **changes: Any) -> Json:
    result = await api.create(body(**changes))
    assert isinstance(result, dict)
    return result


async def chunks(api: ChatCompletions, **changes: Any) -> list[Json]:
    result = await api.create(body(stream=True, **changes))
    assert isinstance(result, ChatCompletion)
    return [chunk async for chunk in result]


async def seed_that(api: ChatCompletions, *, calls: bool) -> int:
    """A seed with which the first answer is a tool call, or is not."""
    for seed in range(50):
        if bool((await complete(api, seed=seed))["choices"][0]["message"].get("tool_calls")) is calls:
            return seed
    raise AssertionError("the model always does the same")


def joined(stream: list[Json], index: int = 0) -> Json:
    """The message that a client puts together from the deltas of one choice."""
    content, calls, finish = "", [], None
    for choice in (choice for chunk in stream for choice in chunk["choices"] if choice["index"] == index):
        content += choice["delta"].get("content") or ""
        calls += choice["delta"].get("tool_calls", [])
        finish = choice["finish_reason"] or finish
    return {"content": content, "tool_calls": calls, "finish_reason": finish}


@pytest.mark.integration
async def test_completion(api: ChatCompletions) -> None:
    completion = await complete(api, seed=await seed_that(api, calls=False))
    assert completion["object"] == "chat.completion"
    assert completion["model"] == "osmosis/tiny"
    assert completion["id"].startswith("chatcmpl-")
    assert completion["system_fingerprint"] == f"fp_{api.engine.model.fingerprint[:12]}"
    (choice,) = completion["choices"]
    assert choice["message"]["content"].startswith("####")
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    usage = completion["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert "prompt_token_ids" not in completion and "token_ids" not in choice


@pytest.mark.integration
async def test_tool_round_trip(api: ChatCompletions) -> None:
    first = await complete(api, seed=await seed_that(api, calls=True))
    message = first["choices"][0]["message"]
    assert first["choices"][0]["finish_reason"] == "tool_calls"
    assert message["content"] is None
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "multiply", "arguments": '{"a": 12, "b": 34}'}
    answer = {"role": "tool", "tool_call_id": call["id"], "content": "408"}
    second = await complete(api, messages=[*question(), message, answer], temperature=0)
    assert second["choices"][0]["message"]["content"] == "#### 408"


@pytest.mark.integration
async def test_several_choices(api: ChatCompletions) -> None:
    many = await complete(api, seed=3, n=6, temperature=1.5, return_token_ids=True)
    single = await complete(api, seed=3, temperature=1.5, return_token_ids=True)
    ids = [tuple(choice["token_ids"]) for choice in many["choices"]]
    assert [choice["index"] for choice in many["choices"]] == list(range(6))
    assert ids[0] == tuple(single["choices"][0]["token_ids"])
    assert len(set(ids)) > 1
    assert many["usage"]["completion_tokens"] == sum(map(len, ids))


@pytest.mark.integration
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_p": 0.9}, {"temperature": 0}])
async def test_log_probabilities(api: ChatCompletions, model: Model, settings: Json) -> None:
    seed = await seed_that(api, calls=True)
    completion = await complete(
        api, seed=seed, logprobs=True, top_logprobs=3, return_token_ids=True, **settings
    )
    prompt, (choice,) = completion["prompt_token_ids"], completion["choices"]
    sampled = choice["token_ids"]
    assert len(prompt) == completion["usage"]["prompt_tokens"]
    assert len(sampled) == completion["usage"]["completion_tokens"] == len(choice["logprobs"]["content"])
    assert sampled[-1] == END and choice["logprobs"]["content"][-1]["token"] == "<|im_end|>"
    distributions = log_softmax(
        teacher_forced(model, prompt + sampled) / (settings.get("temperature", 1.0) or 1.0)
    )
    for place, (token, entry) in enumerate(zip(sampled, choice["logprobs"]["content"], strict=True)):
        expected = distributions[len(prompt) - 1 + place]
        assert entry["logprob"] == pytest.approx(expected[token], abs=1e-9)
        best = sorted(expected, reverse=True)[:3]
        assert [top["logprob"] for top in entry["top_logprobs"]] == pytest.approx(best, abs=1e-9)
        assert entry["bytes"] == list(entry["token"].encode())


@pytest.mark.integration
@pytest.mark.parametrize("calls", [True, False])
async def test_a_stream_equals_the_whole_reply(api: ChatCompletions, calls: bool) -> None:
    seed = await seed_that(api, calls=calls)
    options = {"seed": seed, "logprobs": True, "return_token_ids": True}
    whole, stream = await complete(api, **options), await chunks(api, **options)
    message = whole["choices"][0]["message"]
    put_together = joined(stream)
    assert put_together["content"] == (message["content"] or "")
    assert put_together["finish_reason"] == whole["choices"][0]["finish_reason"]
    functions = [call["function"] for call in put_together["tool_calls"]]
    assert functions == [call["function"] for call in message.get("tool_calls", [])]
    assert [call["index"] for call in put_together["tool_calls"]] == list(range(len(functions)))
    details = [choice for chunk in stream for choice in chunk["choices"]]
    assert [i for d in details for i in d["token_ids"]] == whole["choices"][0]["token_ids"]
    logprobs = [entry["logprob"] for d in details for entry in d["logprobs"]["content"]]
    expected = [entry["logprob"] for entry in whole["choices"][0]["logprobs"]["content"]]
    assert logprobs == pytest.approx(expected, abs=1e-9)
    assert stream[0]["prompt_token_ids"] == whole["prompt_token_ids"]


@pytest.mark.integration
async def test_chunks_of_a_stream(api: ChatCompletions) -> None:
    seed = await seed_that(api, calls=False)
    stream = await chunks(api, seed=seed, n=2, stream_options={"include_usage": True})
    assert {chunk["object"] for chunk in stream} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in stream}) == 1
    assert stream[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert [chunk["usage"] for chunk in stream[:-1]] == [None] * (len(stream) - 1)
    assert stream[-1]["choices"] == []
    whole = await complete(api, seed=seed, n=2)
    assert stream[-1]["usage"] == whole["usage"]
    for index, choice in enumerate(whole["choices"]):
        own = [c for chunk in stream for c in chunk["choices"] if c["index"] == index]
        assert own[-1]["delta"] == {} and own[-1]["finish_reason"] == choice["finish_reason"]
        assert all(c["finish_reason"] is None for c in own[:-1])


@pytest.mark.integration
async def test_stop_strings(api: ChatCompletions) -> None:
    seed = await seed_that(api, calls=False)
    whole = await complete(api, seed=seed)
    text = whole["choices"][0]["message"]["content"]
    cut = await complete(api, seed=seed, stop=[text[5:7]])
    assert cut["choices"][0]["message"]["content"] == text[:5]
    assert cut["choices"][0]["finish_reason"] == "stop"
    assert cut["usage"]["completion_tokens"] < whole["usage"]["completion_tokens"]
    assert joined(await chunks(api, seed=seed, stop=text[5:7]))["content"] == text[:5]


@pytest.mark.integration
async def test_max_tokens(api: ChatCompletions) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        cut = await complete(api, seed=1, **{name: 2})
        assert (cut["choices"][0]["finish_reason"], cut["usage"]["completion_tokens"]) == ("length", 2)


@pytest.mark.integration
async def test_tool_choice_and_parallel_tool_calls(api: ChatCompletions) -> None:
    plain = await complete(api, tool_choice="none", seed=1)
    assert plain["usage"]["prompt_tokens"] == (await complete(api, tools=None))["usage"]["prompt_tokens"]
    assert "tool_calls" not in plain["choices"][0]["message"]
    one = await complete(api, seed=await seed_that(api, calls=True), parallel_tool_calls=False)
    assert len(one["choices"][0]["message"]["tool_calls"]) == 1
    assert one["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.integration
@pytest.mark.parametrize("length", [2040, 1_000_000])
async def test_a_prompt_that_is_too_long(api: ChatCompletions, length: int) -> None:
    with pytest.raises(OpenAIError) as refused:
        await complete(api, messages=[{"role": "user", "content": "7" * length}])
    error = refused.value.body()["error"]
    assert refused.value.status == 400
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert "2048" in error["message"]


@pytest.mark.integration
async def test_names_of_the_model(api: ChatCompletions) -> None:
    with pytest.raises(
        OpenAIError, match="'gpt-9' does not exist; this server has 'osmosis/tiny'"
    ) as refused:
        await api.create(body(model="gpt-9"))
    assert (refused.value.status, refused.value.body()["error"]["code"]) == (404, "model_not_found")
    assert (await complete(api, model="tiny"))["model"] == "osmosis/tiny"


KEY = "a key for the tests"


@asynccontextmanager
async def serving(
    api: ChatCompletions, *, key: str | None = None, sent: str | None = None
) -> AsyncIterator[aiohttp.ClientSession]:
    """Serve ``api``; the session's requests have the header Authorization ``sent``."""
    async with TestServer(Endpoint(api, api_key=key).application()) as server:
        headers = {"Authorization": sent} if sent else {}
        async with aiohttp.ClientSession(server.make_url("/"), headers=headers) as session:
            yield session


@pytest.fixture
async def client(api: ChatCompletions) -> AsyncIterator[aiohttp.ClientSession]:
    async with serving(api, key=KEY, sent=f"Bearer {KEY}") as session:
        yield session


async def error_of(response: aiohttp.ClientResponse) -> dict[str, Any]:
    assert response.content_type == "application/json"
    error: dict[str, Any] = (await response.json())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


async def test_http_replies(client: aiohttp.ClientSession) -> None:
    async with client.post("/v1/chat/completions", json=body(seed=1)) as response:
        assert response.status == 200
        assert (await response.json())["object"] == "chat.completion"
    async with client.post("/v1/chat/completions", json=body(seed=1, stream=True)) as response:
        assert response.content_type == "text/event-stream"
        text = await response.text()
    events = text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: {") for event in events[:-2])
    assert json.loads(events[-3].removeprefix("data: "))["choices"][0]["finish_reason"]


@pytest.mark.parametrize("sent", [None, "Bearer wrong", "Basic abc", "Bearer", "Bearer ключ"])
async def test_the_key_is_required_except_for_health(api: ChatCompletions, sent: str | None) -> None:
    async with serving(api, key=KEY, sent=sent) as stranger:
        async with stranger.get("/v1/models") as response:
            assert response.status == 401
            error = await error_of(response)
        assert error["code"] == "invalid_api_key"
        assert KEY not in error["message"]
        async with stranger.get("/health") as response:
            assert (await response.json())["status"] == "ok"


@pytest.mark.parametrize(
    ("data", "status", "words"),
    [
        (b"{", 400, "not valid JSON"),
        (b"[]", 400, "JSON object"),
        (b"\xff", 400, "not valid JSON"),
        (b" " * (MAX_BODY_BYTES + 1), 413, "/v1/chat/completions"),
    ],
)
async def test_an_invalid_body(client: aiohttp.ClientSession, data: bytes, status: int, words: str) -> None:
    async with client.post("/v1/chat/completions", data=data) as response:
        assert response.status == status
        assert words in (await error_of(response))["message"]


async def test_unknown_routes_and_methods(client: aiohttp.ClientSession) -> None:
    async with client.get("/v1/chat/completions") as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")
        await error_of(response)
    async with client.post("/v1/embeddings", json={}) as response:
        assert response.status == 404
        await error_of(response)


async def test_a_full_queue(model: Model, chat: BuiltInChat, prompts: list[tuple[int, ...]]) -> None:
    idle = InferenceEngine(model, max_waiting=2)  # not started: what is queued stays
    api = ChatCompletions(idle, chat, ["osmosis/tiny"])
    first = await api.create(body(stream=True, n=2))
    assert isinstance(first, ChatCompletion)
    async with serving(api) as client, client.post("/v1/chat/completions", json=body()) as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "1")
        assert (await error_of(response))["type"] == "rate_limit_error"
    await first.aclose()  # never read, and its places are free again
    assert idle.stats()["waiting"] == 0


async def test_a_stopped_engine(api: ChatCompletions) -> None:
    api.engine.close()
    async with serving(api) as client:
        async with client.get("/health") as response:
            assert (response.status, (await response.json())["status"]) == (503, "failed")
        async with client.post("/v1/chat/completions", json=body()) as response:
            assert response.status == 503
            assert (await error_of(response))["code"] == "engine_stopped"


async def test_an_engine_that_stops_during_a_stream(tireless_model: Model, chat: BuiltInChat) -> None:
    with InferenceEngine(tireless_model) as engine:
        api = ChatCompletions(engine, chat, ["osmosis/tiny"])
        long = body(stream=True, max_tokens=1900)
        async with serving(api) as client, client.post("/v1/chat/completions", json=long) as response:
            await response.content.readline()
            engine.close()
            events = (await response.text()).split("\n\n")
    assert json.loads(events[-3].strip().removeprefix("data: "))["error"]["type"] == "server_error"
    assert events[-2] == "data: [DONE]"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_disconnect_ends_generation(tireless_model: Model, chat: BuiltInChat, stream: bool) -> None:
    with InferenceEngine(tireless_model, max_batch=8) as engine:
        api = ChatCompletions(engine, chat, ["osmosis/tiny"])
        runner = Endpoint(api, api_key=None).runner()
        await runner.setup()
        try:
            await TCPSite(runner, "127.0.0.1", 0).start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/chat/completions"
            long = body(n=16, max_tokens=1900, stream=stream)

            async def ask(session: aiohttp.ClientSession) -> None:
                async with session.post(url, json=long) as response:
                    await response.read()

            async with aiohttp.ClientSession() as session:
                request = asyncio.create_task(ask(session))
                while not engine.stats()["running"]:
                    assert not request.done()
                    await asyncio.sleep(0)
                request.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await request
            while engine.stats()["running"] or engine.stats()["waiting"]:  # noqa: ASYNC110 - another thread's work
                await asyncio.sleep(0)
            assert engine.stats()["finished"] == 0
        finally:
            await runner.cleanup()


def refusal(request: Any) -> dict[str, Any]:
    with pytest.raises(OpenAIError) as refused:
        parse_request(request)
    assert refused.value.status == 400
    error: dict[str, Any] = refused.value.body()["error"]
    assert error["type"] == "invalid_request_error"
    return error


def test_all_supported_parameters() -> None:
    numbers = {"temperature": 0, "top_p": 1, "seed": -5, "n": 2, "max_tokens": 9, "max_completion_tokens": 7}
    logprobs = {"logprobs": True, "top_logprobs": 20, "return_token_ids": True}
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    tools = {"tool_choice": "auto", "parallel_tool_calls": False}
    neutral = {
        "response_format": {"type": "text"},
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "logit_bias": {},
    }
    ignored = {"user": "someone", "metadata": {"a": "b"}}
    request = parse_request(body(stop="x", **numbers, **logprobs, **stream, **tools, **neutral, **ignored))
    assert (request.stop, request.token_limit) == (["x"], 7)


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"temperature": 3}, "temperature", "less than or equal to 2"),
        ({"temperature": "hot"}, "temperature", "valid number"),
        ({"temperature": float("nan")}, "temperature", "less than or equal to 2"),
        ({"top_p": -0.1}, "top_p", "greater than or equal to 0"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"n": True}, "n", "valid integer"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"seed": 2**63}, "seed", "less than"),
        ({"stop": ["a"] * 5}, "stop", "up to four"),
        ({"stop": ""}, "stop", "none of them empty"),
        ({"stop": [1]}, "stop[0]", "valid string"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
        ({"top_logprobs": 2}, None, "'logprobs': true"),
        ({"stream_options": {"include_usage": True}}, None, "'stream': true"),
        ({"tool_choice": "required"}, "tool_choice", "cannot be forced"),
        ({"tool_choice": {"type": "function"}}, "tool_choice", "'auto' or 'none'"),
        ({"response_format": {"type": "json_object"}}, "response_format", "'json_object' is not supported"),
        ({"presence_penalty": 0.5}, "presence_penalty", "penalties"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "biases"),
        ({"tools": [{"type": "code"}]}, "tools[0].type", "'function'"),
        ({"tools": [multiply_tool("no spaces")]}, "tools[0].function.name", "pattern"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": "hi"}, "messages", "valid list"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "'assistant'"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "'assistant'"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "valid string"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content",
            "text only",
        ),
        (
            {"messages": [*question(), {"role": "tool", "content": "1"}]},
            "messages[1].tool_call_id",
            "missing",
        ),
    ],
)
def test_invalid_values(change: dict[str, Any], param: str | None, words: str) -> None:
    error = refusal(body(**change))
    assert error["param"] == param
    assert words in error["message"]


def test_unknown_parameter() -> None:
    error = refusal(body(temprature=1.0))
    assert error["message"] == "unrecognized request argument: 'temprature'; did you mean 'temperature'?"
    assert error["code"] == "unknown_parameter"


def test_missing_model_and_invalid_body() -> None:
    assert refusal({"messages": question()})["param"] == "model"
    assert "JSON object" in refusal([1])["message"]


def test_text_parts_and_developer_messages() -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "2 * 3?"}]
    messages = [{"role": "developer", "content": "Be exact."}, {"role": "user", "content": parts}]
    assert parse_request(body(messages=messages)).template_messages() == [
        {"role": "system", "content": "Be exact."},
        {"role": "user", "content": "What is 2 * 3?"},
    ]


def test_a_reply_can_be_sent_back() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "multiply", "arguments": "{}"}}
    reply = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call], "annotations": []}
    answer = {"role": "tool", "tool_call_id": "call_1", "content": "6"}
    request = parse_request(body(messages=[*question(), reply, answer]))
    assert request.template_messages()[1]["tool_calls"][0]["function"]["name"] == "multiply"
