"""Model calls: requests, retries, streams, errors and redaction."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any
from urllib.parse import quote

import pytest
import stamina
from hypothesis import example, given
from hypothesis import strategies as st

from osmosis_ai.llm import transport
from osmosis_ai.llm.client import ModelClient
from osmosis_ai.llm.errors import ModelCallError, error_from_reply, redact
from osmosis_ai.llm.providers import ModelEndpoint, resolve_model
from osmosis_ai.llm.transport import EventParser, environment_proxy, open_session
from tests.llm.calls import (
    DIED,
    DONE,
    FIRST,
    HELLO,
    LAST,
    SECRET,
    chunks_of,
    client,
    endpoint,
    failure,
    text_of,
)
from tests.standin_model import Reply, StandInModel, error_reply


async def test_a_call_returns_the_reply_its_usage_and_its_cost(model: StandInModel) -> None:
    body = {**HELLO, "model": "osmosis-rollout", "user": "u", "made_up": {"deep": [1]}}
    async with client(model) as calling:
        completion = await calling.complete(body)
    assert completion.response["choices"][0]["message"]["content"] == "ok"
    assert (completion.usage.prompt_tokens, completion.usage.total_tokens) == (2, 3)
    assert (completion.cost_usd, completion.attempts) == (0.0, 1)
    assert completion.latency_s > 0
    assert model.requests[0].body == {**body, "model": "m"}
    assert model.requests[0].headers["Authorization"] == f"Bearer {SECRET}"


async def test_a_reply_or_stream_that_is_too_large_is_not_retried(
    model: StandInModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MAX_REPLY_BYTES", 10_000)
    async with client(model) as calling:
        for status in (200, 500):
            model.script(Reply(status=status, body=b"x" * 20_000))
            assert "larger than 10000 bytes" in (await failure(calling)).message
        model.script(Reply(chunks=[{"choices": [{"delta": {"content": "x" * 1000}}]}] * 20))
        with pytest.raises(ModelCallError, match="larger than 10000 bytes"):
            await chunks_of(calling)
    assert model.calls == 3


BOTH = pytest.mark.parametrize(
    "transport", ["openai", pytest.param("litellm", marks=pytest.mark.imports_much)]
)
OK = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}
FAILED = {**OK, "finish_reason": "error"}
DOWN = {"code": 502, "message": "upstream is down"}


@BOTH
@pytest.mark.parametrize(
    ("body", "category", "words"),
    [
        ({"choices": [{**FAILED, "error": DOWN}]}, "server", "upstream is down"),
        ({"choices": [FAILED]}, "server", "finish reason 'error'"),
        ({"choices": [OK], "error": DOWN}, "server", "upstream is down"),
        ({"choices": [OK], "error": "down"}, "server", ""),
        ({"error": DOWN}, "server", "upstream is down"),
        ({"choices": [None]}, "invalid_reply", "choices"),
        ({"choices": [{"message": "hi"}]}, "invalid_reply", "hi"),
        ({"choices": []}, "invalid_reply", '"choices":[]'),
        ({}, "invalid_reply", ""),
        ([], "invalid_reply", "[]"),
        (b"<html>", "invalid_reply", ""),
    ],
)
async def test_a_failure_in_a_successful_response_is_retried(
    model: StandInModel, body: Any, category: str, words: str, transport: str
) -> None:
    model.respond = lambda _: Reply(body=body)
    async with client(model, transport=transport, max_attempts=2) as calling:
        error = await failure(calling)
    assert (error.category, model.calls) == (category, 2)
    assert words in error.provider_message
    assert "Traceback" not in error.message


def with_field(value: bytes) -> Reply:
    return Reply(body=b'{"choices": [{"message": {"content": "ok"}}], "more": ' + value + b"}")


@pytest.mark.parametrize(
    "trouble",
    [
        error_reply(503, "overloaded", retry_after_ms="1"),
        Reply(disconnect=True),
        Reply(body={"object": "error", "message": "engine died", "code": 500}),
        Reply(body={"error": {"message": "boom", "code": "9" * 5000}}),
        Reply(body={"error": {"detail": [{"loc": None, "msg": "boom"}]}}),
        Reply(body=b'{"error": {"deep": ' + b"[" * 950 + b"]" * 950 + b"}}"),
        Reply(choice_extra={"message": {}}),
        Reply(choice_extra={"message": {"role": "assistant", "content": 5}}),
        Reply(finish_reason="failed"),
        Reply(finish_reason="server_error"),
        pytest.param(
            with_field(b"[" * 1015 + b"]" * 1015),
            marks=pytest.mark.skipif(sys.version_info >= (3, 12), reason="newer Python writes deeper JSON"),
        ),
        with_field(b'[NaN, "\\ud83d"]'),
    ],
)
async def test_a_transient_failure_is_retried(model: StandInModel, trouble: Reply) -> None:
    model.script(trouble, trouble, Reply(content="at last"))
    async with client(model) as calling:
        completion = await calling.complete(HELLO)
    assert completion.attempts == 3
    assert completion.response["choices"][0]["message"]["content"] == "at last"
    model.respond = lambda _: trouble
    async with client(model, max_attempts=2) as calling:
        await failure(calling)
    assert model.calls == 5


@pytest.mark.parametrize("end", ["?api-version=1", "/?api-version=1", "/chat/completions?api-version=1#part"])
async def test_the_path_goes_before_the_query_of_an_address(model: StandInModel, end: str) -> None:
    env = {"OPENAI_BASE_URL": model.base_url + end, "OPENAI_API_KEY": SECRET}
    async with ModelClient(resolve_model("openai/m", env)) as calling:
        await calling.complete(HELLO)
        await chunks_of(calling)
    assert [request.path for request in model.requests] == ["/v1/chat/completions?api-version=1"] * 2


async def test_an_unreachable_server_is_a_connection_error_with_its_address_without_the_query() -> None:
    env = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1?key=abc", "OPENAI_API_KEY": SECRET}
    async with ModelClient(resolve_model("openai/m", env), max_attempts=2) as calling:
        error = await failure(calling)
    assert (error.category, error.retryable, error.status) == ("connection", True, None)
    assert "`http://127.0.0.1:9/v1`" in (error.hint or "")
    assert "abc" not in f"{error} {error.hint} {error.details}"


async def test_a_reply_that_takes_too_long_is_a_timeout(model: StandInModel) -> None:
    model.respond = lambda _: Reply(wait_for=asyncio.Event())
    async with client(model, request_timeout_s=0.05, max_attempts=2) as calling:
        error = await failure(calling)
    assert error.category == "timeout"
    assert "0.05 s" in error.provider_message


async def test_a_rate_limit_cuts_the_concurrency_and_is_counted(model: StandInModel) -> None:
    model.script(error_reply(429, "slow down"))
    async with client(model, max_connections=10) as calling:
        completion = await calling.complete(HELLO)
        limiter = calling.limiter
    assert (limiter.limit, limiter.refusals, completion.attempts) == (8, 1, 2)
    assert (limiter.in_flight, limiter.waiting) == (0, 0)


async def test_all_clients_of_an_account_wait_as_long_as_the_provider_asks(model: StandInModel) -> None:
    model.script(error_reply(429, "slow down", retry_after="3600"))
    async with client(model) as one, client(model) as other:
        with stamina.set_testing(True, attempts=1, cap=True):
            await failure(one)
        assert one.limiter.refusals == 1
        model.script(error_reply(429, "slow down", retry_after_ms="120000"))
        with stamina.set_testing(True, attempts=1, cap=True):
            waiting = asyncio.create_task(failure(other))
            for _ in range(5):
                await asyncio.sleep(0)
        assert other.limiter.waiting == 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.parametrize(
    ("words", "asked", "optional", "sent"),
    [
        ("Unrecognized request argument supplied: seed", {"seed": 7}, {"seed"}, {}),
        (
            "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.",
            {"max_tokens": 5},
            (),
            {"max_completion_tokens": 5},
        ),
    ],
)
async def test_a_rejected_parameter_is_left_out_or_renamed_from_then_on(
    model: StandInModel, words: str, asked: dict[str, Any], optional: Collection[str], sent: dict[str, Any]
) -> None:
    model.respond = lambda body: error_reply(400, words) if asked.keys() & body else Reply()
    async with client(model) as calling:
        for _ in range(2):
            assert (await calling.complete({**HELLO, **asked}, optional=optional)).attempts == 1
        assert calling.refused_parameters == set(optional)
    added = [
        {key: value for key, value in request.body.items() if key not in (*HELLO, "model")}
        for request in model.requests
    ]
    assert added == [asked, sent, sent]


async def test_a_seed_of_the_caller_is_never_left_out(model: StandInModel) -> None:
    model.respond = lambda _: error_reply(400, "no seed please")
    async with client(model) as calling:
        error = await failure(calling, {**HELLO, "seed": 7})
    assert (error.category, len(model.requests)) == ("bad_request", 1)


async def test_mistral_gets_the_seed_under_its_own_name(model: StandInModel) -> None:
    async with ModelClient(endpoint(model, provider="mistral")) as calling:
        await calling.complete({**HELLO, "seed": 7}, optional={"seed"})
    assert model.requests[0].body["random_seed"] == 7
    assert "seed" not in model.requests[0].body


async def test_a_lone_surrogate_passes_in_both_directions(model: StandInModel) -> None:
    model.script(Reply(body=b'{"choices": [{"message": {"content": "half \\ud83d"}}]}'))
    async with client(model) as calling:
        completion = await calling.complete({"messages": [{"role": "user", "content": "half \ud83d"}]})
    assert completion.response["choices"][0]["message"]["content"] == "half \ud83d"


# Streams


async def test_a_stream_yields_the_chunks_of_the_provider_and_the_usage_last(model: StandInModel) -> None:
    model.script(Reply(content="one two three", reasoning="hm", tool_calls=[("multiply", {"a": 1})]))
    async with client(model) as calling:
        chunks = await chunks_of(calling)
    assert (text_of(chunks), text_of(chunks, "reasoning_content")) == ("one two three", "hm")
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
    assert "".join(call["function"]["arguments"] for call in calls) == '{"a": 1}'
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 3
    assert model.requests[0].body["stream_options"] == {"include_usage": True}


async def test_chunks_arrive_as_they_are_produced(model: StandInModel) -> None:
    hold = asyncio.Event()
    model.script(Reply(chunks=[FIRST, hold, LAST, DONE]))
    async with client(model) as calling:
        stream = calling.stream(HELLO, restarted=list)
        assert await asyncio.wait_for(anext(stream), 60) == FIRST
        hold.set()
        assert [chunk async for chunk in stream] == [LAST]


@pytest.mark.parametrize(
    "trouble",
    [
        error_reply(429, "slow"),
        error_reply(500, "boom"),
        Reply(disconnect=True),
        Reply(chunks=[FIRST, {"choices": [{"index": 1, "delta": {"content": "b"}}]}, LAST]),
    ],
)
async def test_a_stream_is_retried_without_its_first_reply(model: StandInModel, trouble: Reply) -> None:
    model.script(trouble)
    async with client(model) as calling:
        assert text_of(await chunks_of(calling)) == "ok"
        assert calling.limiter.in_flight == 0
    assert len(model.requests) == 2


END = {"index": 0, "delta": {}, "finish_reason": "stop"}


@BOTH
@pytest.mark.parametrize(
    ("chunks", "category"),
    [
        ([FIRST, ConnectionResetError()], "connection"),
        ([FIRST], "connection"),
        ([FIRST, DONE], "connection"),
        ([FIRST, {"error": DOWN}, DONE], "server"),
        ([FIRST, {"choices": [END], "error": DOWN}, DONE], "server"),
        ([FIRST, {"choices": [{**END, "finish_reason": "error"}]}, DONE], "server"),
        ([FIRST, b'event: error\ndata: {"message": "upstream is down"}\n\n', DONE], "server"),
        ([FIRST, DIED, DONE], "server"),
        ([FIRST, b"data: not json\n\n"], "invalid_reply"),
        ([FIRST, {"detail": "Internal Server Error"}, DONE], "invalid_reply"),
        ([FIRST, {"choices": None, "base_resp": {"status_code": 1004}}, DONE], "invalid_reply"),
        ([FIRST, {"choices": [{"index": {"a": 1}, "delta": {"tool_calls": [{}]}}]}, DONE], "invalid_reply"),
        ([{"choices": [None]}, DONE], "invalid_reply"),
        ([DONE], "invalid_reply"),
        ([], "invalid_reply"),
    ],
)
async def test_a_stream_that_fails_is_retried(
    model: StandInModel, chunks: list[Any], category: str, transport: str
) -> None:
    model.script(Reply(chunks=chunks), Reply(content="whole"), *[Reply(chunks=chunks)] * 2)
    async with client(model, transport=transport, max_attempts=2) as calling:
        assert text_of(await chunks_of(calling)) == "whole"
        with pytest.raises(ModelCallError) as caught:
            await chunks_of(calling)
        assert calling.limiter.in_flight == 0
    assert model.calls == 4
    assert transport == "litellm" or caught.value.category == category


@pytest.mark.parametrize("delta", [{}, {"delta": None}, {"delta": {}}])
async def test_a_whole_message_in_a_chunk_is_its_delta(model: StandInModel, delta: dict[str, Any]) -> None:
    message = {"role": "assistant", "content": "hi", "tool_calls": [{"id": "c", "function": {"name": "f"}}]}
    role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
    whole = {"choices": [{"index": 0, **delta, "message": message, "finish_reason": "tool_calls"}]}
    model.script(Reply(chunks=[role, whole, DONE]))
    async with client(model) as calling:
        _, chunk = await chunks_of(calling)
    delta = chunk["choices"][0]["delta"]
    assert (delta["content"], delta["tool_calls"][0]["index"]) == ("hi", 0)
    assert delta["tool_calls"][-1]["function"]["arguments"] == "{}"


async def test_the_whole_reply_of_a_server_that_does_not_stream_is_one_chunk(model: StandInModel) -> None:
    message = {"role": "assistant", "content": "hi", "tool_calls": [{"id": "c", "function": {"name": "f"}}]}
    usage = {"prompt_tokens": 2, "completion_tokens": 1}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    model.script(Reply(body={"choices": [choice], "usage": usage}))
    async with client(model) as calling:
        (chunk,) = await chunks_of(calling)
    (choice,) = chunk["choices"]
    assert (choice["delta"]["content"], choice["finish_reason"], chunk["usage"]) == (
        "hi",
        "tool_calls",
        usage,
    )
    assert choice["delta"]["tool_calls"][0]["index"] == 0
    assert len(model.requests) == 1


def fragment(call_id: str, arguments: str, **function: str) -> dict[str, Any]:
    return {"id": call_id, "function": {"arguments": arguments, **function}}


def f(call_id: str, arguments: str) -> dict[str, Any]:
    return fragment(call_id, arguments, name="f")


def g(call_id: str, arguments: str) -> dict[str, Any]:
    return fragment(call_id, arguments, name="g")


X, Y = '{"x": 1}', '{"y": 2}'


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([[f("a", '{"x": ')], [f("a", "null")], [f("a", "}")], [f("b", "null")]], ['af{"x": null}', "bf{}"]),
        ([[f("a", X), g("a", Y)]], [f"af{X}", f"ag{Y}"]),
        ([[f("a", X), f("a", Y)]], [f"af{X}", f"af{Y}"]),
        ([[f("a", X)], [g("a", Y)]], [f"af{X}", f"ag{Y}"]),
        (
            [[f("a", X[:5]), g("b", Y[:5])], [fragment("a", X[5:]), fragment("b", Y[5:], name="")]],
            [f"af{X}", f"bg{Y}"],
        ),
        ([[f("a", X[:5])], [g("b", Y[:5])], [f("a", X[5:])], [g("b", Y[5:])]], [f"af{X}", f"bg{Y}"]),
    ],
    ids=["repeated", "one chunk", "one chunk and name", "another name", "interleaved", "interleaved chunks"],
)
async def test_fragments_without_index_continue_the_call_with_their_id(
    model: StandInModel, chunks: list[list[dict[str, Any]]], expected: list[str]
) -> None:
    streamed = [{"choices": [{"index": 0, "delta": {"tool_calls": calls}}]} for calls in chunks]
    model.script(Reply(chunks=[*streamed, LAST, DONE]))
    async with client(model) as calling:
        received = await chunks_of(calling)
    calls: dict[int, list[str]] = {}
    for chunk in received:
        for call in chunk["choices"][0]["delta"].get("tool_calls", ()):
            parts = calls.setdefault(call["index"], ["", "", ""])
            for place, part in enumerate((call.get("id"), call["function"].get("name"))):
                parts[place] += part or ""
            parts[2] += call["function"]["arguments"]
    assert {index: "".join(parts) for index, parts in calls.items()} == dict(enumerate(expected))


async def test_tool_calls_of_a_whole_reply_are_completed(model: StandInModel) -> None:
    asked = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": " "}}] * 2}
    model.script(Reply(body={"choices": [{"index": 0, "message": asked, "finish_reason": "tool_calls"}]}))
    async with client(model) as calling:
        (choice,) = (await calling.complete(HELLO)).response["choices"]
    calls = choice["message"]["tool_calls"]
    assert [call["function"] for call in calls] == [{"name": "f", "arguments": "{}"}] * 2
    assert len({call["id"] for call in calls}) == 2 and all(call["id"].startswith("call_") for call in calls)


async def test_an_error_object_with_code_0_next_to_a_completion_is_not_a_failure(model: StandInModel) -> None:
    success = {"error": {"code": 0, "message": "success"}}
    model.script(Reply(extra=success), Reply(extra=success), Reply(body=success))
    async with client(model) as calling:
        assert (await calling.complete(HELLO)).attempts == 1
        assert await chunks_of(calling)
        assert (await calling.complete(HELLO)).attempts == 2


@pytest.mark.parametrize("choices", [[], None])
async def test_a_stream_may_have_chunks_without_choices(
    model: StandInModel, choices: list[Any] | None
) -> None:
    filters = {"object": "", "choices": choices, "prompt_filter_results": []}  # Azure
    begun = {"object": "chat.completion.chunk", "id": "x"}
    usage = {"usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    model.script(Reply(chunks=[filters, begun, FIRST, LAST, usage, DONE]))
    async with client(model) as calling:
        assert await chunks_of(calling) == [filters, begun, FIRST, LAST, usage]


@pytest.mark.parametrize(
    "keep_alive",
    [
        b'event: ping\ndata: {"type": "ping"}\n\n',
        b"event: heartbeat\ndata: 12:00\n\n",
        b"event: keepalive\ndata:\n\n",
        b"data:\n\n",
        b"data:   \n\n",
    ],
)
async def test_keep_alive_events_are_not_part_of_a_stream(model: StandInModel, keep_alive: bytes) -> None:
    model.script(Reply(chunks=[keep_alive, FIRST, keep_alive, LAST, keep_alive, b"data: [DONE] \n\n"]))
    async with client(model) as calling:
        assert await chunks_of(calling) == [FIRST, LAST]
    assert len(model.requests) == 1


async def test_stream_options_are_left_out_if_the_endpoint_rejects_them(model: StandInModel) -> None:
    rejection = error_reply(400, "stream_options: extra fields not permitted")
    model.respond = lambda body: rejection if "stream_options" in body else Reply()
    async with client(model) as calling:
        assert await chunks_of(calling)
        assert await chunks_of(calling)
    assert len(model.requests) == 3


async def test_closing_a_stream_early_releases_its_slot(model: StandInModel) -> None:
    model.script(Reply(content="one two three"))
    async with client(model, max_connections=1) as calling:
        stream = calling.stream(HELLO, restarted=list)
        await anext(stream)
        assert calling.limiter.in_flight == 1
        await stream.aclose()
        assert calling.limiter.in_flight == 0


# Preflight


@pytest.mark.parametrize(
    ("status", "code"), [(401, None), (400, None), (500, None), (429, "insufficient_quota")]
)
async def test_the_preflight_fails_with_the_message_of_the_provider(
    model: StandInModel, status: int, code: str | None
) -> None:
    model.respond = lambda _: error_reply(status, "own words", code=code)
    async with client(model) as calling:
        with pytest.raises(ModelCallError, match="own words"):
            await calling.preflight()
    assert len(model.requests) <= 2


@pytest.mark.parametrize("call", [ModelClient.complete, chunks_of])
async def test_a_redirect_is_an_error_and_is_not_followed(
    model: StandInModel, call: Callable[[ModelClient, Any], Awaitable[object]]
) -> None:
    elsewhere = {"Location": f"{model.base_url}/chat/completions?key=sk-canary"}
    model.respond = lambda _: Reply(status=307, headers=elsewhere, body=b"")
    async with client(model) as calling:
        with pytest.raises(ModelCallError, match=r"redirects to http://127\.0\.0\.1 \(HTTP 307\)") as refused:
            await call(calling, HELLO)
    assert model.calls == 1 and "canary" not in refused.value.message


@pytest.mark.parametrize(
    ("reply", "calls"),
    [
        (Reply(), 1),
        (error_reply(429, "slow down", retry_after_ms="1"), 2),
        (error_reply(400, "Could not finish because max_tokens or model output limit was reached."), 1),
    ],
)
async def test_the_preflight_passes_if_the_model_is_busy_or_its_reply_is_truncated(
    model: StandInModel, reply: Reply, calls: int
) -> None:
    model.respond = lambda _: reply
    async with client(model) as calling:
        await calling.preflight()
    assert [request.body["max_tokens"] for request in model.requests] == [16] * calls


# Secrets


@pytest.mark.parametrize("transport", ["openai", "litellm"])
async def test_the_key_appears_in_no_error_no_log_and_no_output(
    model: StandInModel, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], transport: str
) -> None:
    caplog.set_level(logging.DEBUG if transport == "openai" else logging.INFO)
    shown = []
    async with ModelClient(endpoint(model, transport=transport), max_attempts=2) as calling:
        shown.append(f"{calling.endpoint!r}{calling!r}")
        for status in (400, 401, 403, 404, 422, 429, 500):
            model.respond = lambda _, status=status: error_reply(status, f"the key {SECRET} is wrong")
            error = await failure(calling)
            shown.append(f"{error!r}{error}{error.hint}{error.details}{error.body}{error.__cause__}")
        model.respond = lambda _: Reply(body=f"<p>{SECRET}".encode())
        shown.append(repr(await failure(calling)))
        model.script(*[Reply(chunks=[FIRST, {"error": {"message": SECRET}}])] * 2)
        with pytest.raises(ModelCallError) as caught:
            await chunks_of(calling)
        shown.append(repr(caught.value))
    output = capfd.readouterr()
    assert SECRET not in "".join([*shown, caplog.text, output.out, output.err])


PLAIN = "plain0123456789key"
ESCAPED = PLAIN.replace("9", "\\u0039").encode()
IN_QUERY = "a/key+of=16chars"


@pytest.mark.parametrize("transport", ["openai", "litellm"])
@pytest.mark.parametrize(
    "reply",
    [
        Reply(body=b"x" * 290 + PLAIN.encode()),
        Reply(body={"x": "y" * 280, "key": PLAIN}),
        Reply(body=b'{"key": "%s"}' % ESCAPED),
        Reply(body=b'{"error": {"message": "%s"}}' % ESCAPED),
        Reply(status=400, body={"error": {"message": "bad", "param": {"k": PLAIN}, "code": [PLAIN]}}),
        Reply(body=b'data: {"key": "%s", "object": "chat.completion.chunk"}\n\n%s' % (ESCAPED, DONE)),
        Reply(status=401, body=f"wrong: {IN_QUERY}".encode()),
        Reply(body={"error": {"message": "GET /?api-key=a%2Fkey%2Bof%3D16chars"}}),
    ],
)
async def test_no_part_of_a_key_is_shown(model: StandInModel, reply: Reply, transport: str) -> None:
    model.respond = lambda _: reply
    address = f"{model.base_url}?api-version=2026-01-01&api-key=a/key%2Bof=16chars"
    facts = endpoint(model, api_key=PLAIN, base_url=address, transport=transport)
    async with ModelClient(facts, max_attempts=1) as calling:
        for call in (lambda: calling.complete(HELLO), lambda: chunks_of(calling)):
            with pytest.raises(ModelCallError) as caught:
                await call()
            shown = f"{caught.value}{caught.value.hint}{caught.value.body}{caught.value.details}"
            assert not any(part in shown for part in ("plain", "a/key", "a%2Fkey")), shown


TOO_BIG = {"detail": [{"loc": ["body", "n"], "msg": "too big"}]}
TOO_LONG = {"message": "This model's maximum context length is 4096 tokens"}


@pytest.mark.parametrize(
    ("reply", "category", "calls"),
    [
        (error_reply(401, "Incorrect API key"), "auth", 1),
        (error_reply(402, "Insufficient credits"), "auth", 1),
        (error_reply(403, "not allowed"), "auth", 1),
        (error_reply(404, "no such model"), "not_found", 1),
        (error_reply(400, "bad temperature"), "bad_request", 1),
        (Reply(status=422, body=TOO_BIG), "bad_request", 1),
        (error_reply(400, "x", code="context_length_exceeded"), "context_length", 1),
        (Reply(status=400, body=TOO_LONG), "context_length", 1),
        (Reply(status=400, body={"error": "prompt is too long: 9 tokens > 8"}), "context_length", 1),
        (Reply(status=408, body={}), "timeout", 2),
        (Reply(status=409, body={}), "server", 2),
        (error_reply(429, "slow down"), "rate_limit", 2),
        (error_reply(429, "quota", code="insufficient_quota"), "rate_limit", 1),
        (error_reply(429, "You exceeded your current quota"), "rate_limit", 1),
        (error_reply(429, "come back tomorrow", retry_after="86400"), "rate_limit", 1),
        (Reply(status=500, body=b"<html><body>Internal <b>error</b></body></html>"), "server", 2),
        (Reply(status=501, body={}), "server", 1),
        (Reply(status=503, body={}), "server", 2),
        (Reply(status=504, body={}), "timeout", 2),
        (error_reply(529, "overloaded"), "server", 2),
        (Reply(status=500, body={}, headers={"x-should-retry": "false"}), "server", 1),
        (Reply(status=400, body={}, headers={"x-should-retry": "true"}), "bad_request", 2),
    ],
)
async def test_an_error_has_a_category_and_is_retried_only_if_that_can_help(
    model: StandInModel, reply: Reply, category: str, calls: int
) -> None:
    model.respond = lambda _: reply
    async with client(model, max_attempts=2) as calling:
        error = await failure(calling)
    assert (error.category, error.status, model.calls) == (category, reply.status, calls)


def refusal(status: int, payload: Any) -> ModelCallError:
    return error_from_reply(
        ModelEndpoint("openai/m", "openai", "m", "openai", None, SECRET), status, payload, {}
    )


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ({"error": {"message": f"the key {SECRET} is wrong"}}, "the key [redacted] is wrong"),
        ({"error": "own words"}, "own words"),
        ({"detail": "own words"}, "own words"),
        ([{"error": {"message": "own words"}}], "own words"),
        (b"<p>own\n words</p>", "own words"),
        (
            {"error": {"message": "Provider returned error", "metadata": {"raw": "own words"}}},
            "Provider returned error: own words",
        ),
        (TOO_BIG, "body.n: too big"),
    ],
)
def test_the_message_of_the_provider_is_found_in_every_format(payload: Any, words: str) -> None:
    error = refusal(400, payload)
    assert error.provider_message == words
    assert words in str(error)


def test_a_page_of_unclosed_tags_is_read_in_linear_time() -> None:
    started = time.process_time()
    refusal(500, b"<" * (1 << 16))
    assert time.process_time() - started < 1


def test_the_body_of_an_error_has_only_scalars() -> None:
    said = {"message": "bad", "type": SECRET, "param": {"k": SECRET}, "code": [SECRET]}
    assert refusal(400, {"error": said}).body == {"message": "bad", "type": "[redacted]"}
    assert refusal(400, {"error": {"code": 7, "param": None}}).body == {"code": 7, "param": None}


KEY = "abc/def+ghi=jkl0123456"


@pytest.mark.parametrize(
    "written",
    [
        KEY,
        quote(KEY, safe=""),
        "abc%2fdef%2bghi%3djkl0123456",
        "abc/def%2Bghi%3Djkl0123456",
        "".join(f"%{ord(character):02x}" for character in KEY),
        json.dumps(KEY.replace("/", "\\/")),
        json.dumps("".join(f"\\u{ord(character):04X}" for character in KEY)),
        quote(json.dumps({"url": KEY.replace("/", "\\/")})),
        KEY.replace("/", "&#x2F;").replace("+", "&#43;").replace("=", "&amp;#061;"),
    ],
)
def test_a_key_is_redacted_however_it_is_written(written: str) -> None:
    shown = redact(f"the key {written} is wrong", KEY)
    assert "[redacted]" in shown
    assert not any(part in shown for part in ("abc", "ghi", "0123", "61", "66")), shown


@pytest.mark.parametrize("text", ["a", "abc/def+ghi=jkl012345", "\\", "\\u0061", "abc\\", "%", "&#0"])
def test_redaction_takes_linear_time(text: str) -> None:
    started = time.process_time()
    redact(text * ((1 << 20) // len(text)), KEY)
    redact(KEY[:3] + text * ((1 << 20) // len(text)), KEY)
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    "text",
    [
        "Incorrect API key provided: sk-abcd****wxyz.",
        "header Authorization: Bearer abcdefghijk",
        "gsk_0123456789abcdef",
        "AIzaSyA01234567890123456789",
    ],
)
def test_text_that_looks_like_a_key_is_redacted(text: str) -> None:
    assert "[redacted]" in redact(text)


STREAM = (
    b": ping\n\n"
    b'data: {"a": "\xc3\xa9"}\r\n\r\n'
    b"event: error\nid: 7\ndata:no space\n\n"
    b"data: two\ndata: lines\n\n\n"
    b"data: [DONE]\n"
)
EVENTS = [("", b'{"a": "\xc3\xa9"}'), ("error", b"no space"), ("", b"two\nlines"), ("", b"[DONE]")]


def parse(pieces: list[bytes]) -> list[tuple[str, bytes]]:
    parser = EventParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return [*events, *parser.feed(b"\n\n")]


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=20))
@example(cuts=[])
def test_events_may_be_split_anywhere(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[start:end] for start, end in itertools.pairwise(places)]
    assert parse(pieces) == EVENTS


def test_one_byte_order_mark_before_the_stream_is_skipped() -> None:
    assert parse([b"\xef", b"\xbb\xbfdata: a\n\ndata: b\n\n"]) == [("", b"a"), ("", b"b")]
    assert parse([b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n"]) == []


def test_the_time_for_a_line_is_linear_in_its_length() -> None:
    started = time.process_time()
    assert len(parse([b"data: ", *[b"x" * 512] * 8_192, b"\n\n"])[0][1]) == 4 << 20
    assert time.process_time() - started < 1


async def test_a_session_never_queues_inside_its_pool() -> None:
    async with open_session(timeout_s=3, headers={"X-A": "1"}) as session:
        assert (session.connector.limit, session.connector.limit_per_host) == (0, 0)
        assert session.timeout.total == 3
        assert session.headers["X-A"] == "1"
        assert session.headers["User-Agent"].startswith("osmosis/")


def test_a_proxy_is_used_except_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "inside.example")
    assert environment_proxy("https://api.example/v1") == "http://proxy.example:3128"
    assert environment_proxy("https://host.inside.example/v1") is None
    assert environment_proxy("http://127.0.0.1:8000/v1") is None
    assert environment_proxy("http://localhost:8000/v1") is None
    assert environment_proxy("http://[::1]:8000/v1") is None
    assert environment_proxy("http://localhost.example/v1") == "http://proxy.example:3128"
    assert environment_proxy("http://10.0.0.1/v1") == "http://proxy.example:3128"


async def test_events_with_another_name_may_be_parts_of_a_stream(model: StandInModel) -> None:
    def named(data: Any) -> bytes:
        return b"event: chunk\ndata: %s\n\n" % json.dumps(data).encode()

    usage = {"usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    failed = {"error": {"message": "boom"}}
    model.script(
        Reply(chunks=[named(FIRST), named(failed), DONE]),
        Reply(chunks=[named(FIRST), b"event: error\ndata:\n\n", DONE]),
        Reply(chunks=[named(FIRST), named(LAST), named(usage), DONE]),
    )
    async with client(model) as calling:
        assert await chunks_of(calling) == [FIRST, LAST, usage]
    assert len(model.requests) == 3
