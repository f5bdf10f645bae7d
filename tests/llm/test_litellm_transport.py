"""LiteLLM against the stand-in model; test_client.py and tests/controller/test_model_proxy.py test both transports."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.llm.calls import HELLO, SECRET, chunks_of, client, failure, text_of
from tests.standin_model import Reply, StandInModel, error_reply

pytestmark = pytest.mark.imports_much


async def test_a_stream_has_its_tool_calls_logprobs_and_usage(model: StandInModel) -> None:
    model.script(Reply(content="one two", tool_calls=[("multiply", {"a": 6})], logprobs=[-1, -2]))
    async with client(model, transport="litellm") as calling:
        chunks = await chunks_of(calling, {**HELLO, "logprobs": True})
        assert calling.limiter.in_flight == 0
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert text_of(chunks) == "one two"
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls") or ()]
    assert "".join(call["function"].get("arguments") or "" for call in calls) == '{"a": 6}'
    assert sum(len((choice.get("logprobs") or {}).get("content", ())) for choice in choices) == 2
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["tool_calls"]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks if chunk.get("usage")] == [2]


@pytest.mark.parametrize(
    ("status", "words", "category", "calls"),
    [
        (401, "own words", "auth", 1),
        (404, "own words", "not_found", 1),
        (400, "own words", "bad_request", 1),
        (400, "maximum context length is 8 tokens", "context_length", 1),
        (429, "own words", "rate_limit", 2),
        (500, "own words", "server", 2),
        (503, "own words", "server", 2),
    ],
)
async def test_its_exceptions_have_our_categories(
    model: StandInModel, status: int, words: str, category: str, calls: int
) -> None:
    model.respond = lambda _: error_reply(status, words)
    async with client(model, transport="litellm", max_attempts=2) as calling:
        error = await failure(calling)
    assert (error.category, error.provider_message, model.calls) == (category, words, calls)


async def test_a_request_cannot_choose_its_address_or_key(
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
    async with client(model, transport="litellm") as calling:
        completion = await calling.complete(body)
    assert completion.response["choices"][0]["message"]["content"] == "ok"
    assert model.requests[0].headers["Authorization"] == f"Bearer {SECRET}"
    assert "X-Mine" not in model.requests[0].headers
    assert model.requests[0].body["top_k"] == 3
    assert "`mock_response` is not passed on" in caplog.text


@pytest.mark.integration
def test_lazy_import() -> None:
    program = (
        "import sys; from osmosis_ai.llm.prices import price_of; "
        "from osmosis_ai.llm.providers import resolve_model; "
        "assert price_of(resolve_model('claude-sonnet-4-5', {'ANTHROPIC_API_KEY': 'k'})); "
        "assert not {'litellm', 'aiohttp', 'openai'} & sys.modules.keys(); "
        "import osmosis_ai.llm.client, osmosis_ai.llm.litellm_backend; "
        "assert 'litellm' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


async def test_a_number_that_is_too_large_is_an_invalid_reply(model: StandInModel) -> None:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}
    body = json.dumps({"choices": [choice], "usage": {"cost": 10**400}}).encode()
    model.respond = lambda _: Reply(body=body)
    async with client(model, transport="litellm", max_attempts=2) as calling:
        error = await failure(calling)
    assert (error.category, model.calls) == ("invalid_reply", 2)
    assert "too large" in error.provider_message


async def test_tokens_that_the_provider_did_not_count_are_unknown(model: StandInModel) -> None:
    model.respond = lambda _: Reply(usage=False)
    async with client(model, transport="litellm") as calling:
        assert (await calling.complete(HELLO)).usage is None
        assert not any(chunk.get("usage") for chunk in await chunks_of(calling))
