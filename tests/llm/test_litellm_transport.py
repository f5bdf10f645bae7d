"""LiteLLM for real, against the stand-in: what survives the way through it, both ways."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from osmosis_ai.llm.client import ModelClient
from osmosis_ai.llm.errors import ModelCallError
from osmosis_ai.llm.providers import ModelEndpoint
from tests.standin_model import Reply, StandInModel, error_reply

pytestmark = pytest.mark.imports_much

SECRET = "sk-very-secret-0123456789"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hello there"}]}
TOOL = {
    "type": "function",
    "function": {
        "name": "multiply",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}


def client(model: StandInModel, **options: Any) -> ModelClient:
    endpoint = ModelEndpoint("some/m", "openai", "m", "litellm", model.base_url, SECRET)
    return ModelClient(endpoint, **options)


async def test_weakness_12_tools_and_all_they_bring_survive_both_ways(model: StandInModel) -> None:
    model.script(
        Reply(
            content="two words",
            reasoning="let me see",
            tool_calls=[("multiply", {"a": 6})],
            logprobs=[-0.25, -0.5],
            choice_extra={"token_ids": [3, 4]},
        )
    )
    asked = {
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "multiply"}},
        "parallel_tool_calls": False,
        "response_format": {"type": "json_object"},
        "logprobs": True,
        "top_logprobs": 1,
        "stop": ["x"],
        "seed": 7,
        "max_tokens": 9,
    }
    async with client(model) as calling:
        completion = await calling.complete({**HELLO, **asked})
    assert {name: model.requests[0].body.get(name) for name in asked} == asked
    choice = completion.response["choices"][0]
    assert choice["message"]["content"] == "two words"
    assert choice["message"]["reasoning_content"] == "let me see"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "multiply", "arguments": '{"a": 6}'}
    assert choice["finish_reason"] == "tool_calls"
    assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == [-0.25, -0.5]
    assert completion.usage is not None
    assert completion.usage.total_tokens == 4


async def test_a_stream_survives_with_tools_logprobs_reasoning_and_usage(model: StandInModel) -> None:
    model.script(
        Reply(content="one two", reasoning="hm", tool_calls=[("multiply", {"a": 6})], logprobs=[-1, -2])
    )
    async with client(model) as calling:
        chunks = [
            chunk
            async for chunk in calling.stream({**HELLO, "tools": [TOOL], "logprobs": True}, restarted=list)
        ]
        assert calling.limiter.in_flight == 0
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == "one two"
    assert "".join(choice["delta"].get("reasoning_content") or "" for choice in choices) == "hm"
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls") or ()]
    assert "".join(call["function"].get("arguments") or "" for call in calls) == '{"a": 6}'
    assert sum(len((choice.get("logprobs") or {}).get("content", ())) for choice in choices) == 2
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["tool_calls"]
    usages = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    assert [usage["completion_tokens"] for usage in usages] == [2]


@pytest.mark.parametrize(
    ("trouble", "category", "tries"),
    [
        (error_reply(401, "own words"), "auth", 1),
        (error_reply(404, "own words"), "not_found", 1),
        (error_reply(400, "own words"), "bad_request", 1),
        (error_reply(400, "maximum context length is 8 tokens"), "context_length", 1),
        (error_reply(429, "own words"), "rate_limit", 2),
        (error_reply(500, "own words"), "server", 2),
        (error_reply(503, "own words"), "server", 2),
    ],
)
async def test_its_exceptions_become_ours(
    model: StandInModel, trouble: Reply, category: str, tries: int
) -> None:
    model.respond = lambda _: trouble
    async with client(model, max_attempts=2) as calling:
        with pytest.raises(ModelCallError) as caught:
            await calling.complete(HELLO)
    words = trouble.body["error"]["message"]
    assert (caught.value.category, caught.value.provider_message) == (category, words)
    assert len(model.requests) == tries


async def test_a_broken_stream_is_an_error_of_ours(model: StandInModel) -> None:
    first = {"id": "x", "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]}
    model.script(Reply(chunks=[first, ConnectionResetError()]))
    async with client(model, max_attempts=1) as calling:
        stream = calling.stream(HELLO, restarted=list)
        await anext(stream)
        with pytest.raises(ModelCallError):
            await anext(stream)
        assert calling.limiter.in_flight == 0


async def test_a_request_cannot_choose_where_it_goes_nor_with_which_key(
    model: StandInModel, caplog: pytest.LogCaptureFixture
) -> None:
    body = {
        **HELLO,
        "api_base": "http://127.0.0.1:9",
        "api_key": "x",
        "mock_response": "made up",
        "aws_secret_access_key": "x",
        "extra_headers": {"X-Mine": "1"},
        "fallbacks": ["other/model"],
        "top_k": 3,
    }
    async with client(model) as calling:
        completion = await calling.complete(body)
    assert completion.response["choices"][0]["message"]["content"] == "ok"
    assert model.requests[0].headers["Authorization"] == f"Bearer {SECRET}"
    assert "X-Mine" not in model.requests[0].headers
    assert model.requests[0].body["top_k"] == 3
    assert "`mock_response` is not passed on" in caplog.text


def test_it_is_not_imported_before_the_first_call() -> None:
    program = (
        "import sys; from osmosis_ai.llm.client import ModelClient; "
        "from osmosis_ai.llm.providers import resolve_model; "
        "assert resolve_model('claude-sonnet-4-5', {'ANTHROPIC_API_KEY': 'k'}); "
        "import osmosis_ai.llm.litellm_backend; "
        "assert 'litellm' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


OK = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}
SAID = {"index": 0, "delta": {"role": "assistant", "content": "hi"}, "finish_reason": None}
LAST = {"index": 0, "delta": {}, "finish_reason": "stop"}
DOWN = {"code": 502, "message": "upstream is down"}
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("trouble", "category", "words"),
    [
        (
            Reply(body={"choices": [{**OK, "finish_reason": "error", "error": DOWN}]}),
            "server",
            "upstream is down",
        ),
        (Reply(body={"choices": [{**OK, "finish_reason": "error"}]}), "server", "finish reason 'error'"),
        (Reply(body={"choices": [OK], "error": DOWN}), "server", "upstream is down"),
        (Reply(body={"choices": [OK], "error": "down"}), "server", ""),
        (Reply(body={"error": DOWN}), "server", "upstream is down"),
        (Reply(body={"choices": [None]}), "invalid_reply", "{'choices': [None]}"),
        (Reply(body={"choices": [{"message": "hi"}]}), "invalid_reply", "{'choices': [{'message': 'hi'}]}"),
        (Reply(body={"choices": []}), "invalid_reply", '"choices":[]'),
        (Reply(body={}), "invalid_reply", "no 'choices'"),
        (Reply(body=[]), "invalid_reply", "[]"),
        (Reply(body=b"<html>"), "invalid_reply", ""),
        (
            Reply(body=f'{{"choices": [{json.dumps(OK)}], "usage": {{"cost": 1{"0" * 400}}}}}'.encode()),
            "invalid_reply",
            "too large",
        ),
    ],
)
async def test_a_failure_in_a_successful_response_is_tried_again(
    model: StandInModel, trouble: Reply, category: str, words: str
) -> None:
    model.respond = lambda _: trouble
    async with client(model, max_attempts=2) as calling:
        with pytest.raises(ModelCallError) as caught:
            await calling.complete(HELLO)
    assert (caught.value.category, len(model.requests)) == (category, 2)
    assert words in caught.value.provider_message
    assert "Traceback" not in caught.value.message


@pytest.mark.parametrize(
    "chunks",
    [
        [{"choices": [SAID]}, {"choices": [{**LAST, "finish_reason": "error"}]}, DONE],
        [{"choices": [SAID]}, {"choices": [LAST], "error": DOWN}, DONE],
        [{"choices": [SAID]}, {"error": DOWN}, DONE],
        [{"choices": [SAID]}, b'event: error\ndata: {"message": "upstream is down"}\n\n', DONE],
        [{"choices": [SAID]}],
        [{"choices": [None]}, DONE],
        [{"choices": [SAID]}, {"object": "error", "message": "engine died", "code": 500}, DONE],
        [{"choices": [SAID]}, {"detail": "Internal Server Error"}, DONE],
        [{"choices": [SAID]}, DONE],
        [DONE],
        [],
    ],
)
async def test_a_stream_that_fails_is_tried_again(model: StandInModel, chunks: list[Any]) -> None:
    model.respond = lambda _: Reply(chunks=chunks)
    restarts: list[int] = []

    async def follow() -> None:
        async for _ in calling.stream(HELLO, restarted=lambda: restarts.append(1)):
            pass

    async with client(model, max_attempts=2) as calling:
        with pytest.raises(ModelCallError):
            await follow()
    assert (len(model.requests), restarts) == (2, [1])


async def test_tokens_that_the_provider_did_not_count_are_unknown(model: StandInModel) -> None:
    model.respond = lambda _: Reply(usage=False)
    async with client(model) as calling:
        assert (await calling.complete(HELLO)).usage is None
        chunks = [chunk async for chunk in calling.stream(HELLO, restarted=list)]
    assert not any(chunk.get("usage") for chunk in chunks)
