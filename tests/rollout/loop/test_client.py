"""The client that a served agent loop has of its controller, and the mock trainer that users test with."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from aiohttp import web
from fastapi.testclient import TestClient

from osmosis_ai.rollout import (
    OpenAIFunctionSchema,
    OpenAIFunctionToolSchema,
    OsmosisLLMClient,
    OsmosisServerError,
    OsmosisTransportError,
    OsmosisValidationError,
    RolloutClientSettings,
    create_app,
)
from osmosis_ai.rollout import client as client_module
from osmosis_ai.rollout.testing import (
    RolloutCompletionTracker,
    create_mock_trainer_app,
    patch_httpx_for_mock_trainer,
)
from tests.rollout.world import listening

from .agents import Echo

REPLY = {
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "length"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
    "token_ids": [1, 2],
    "logprobs": [-0.5, -0.25],
}
Answer = httpx.Response | Exception


class Controller:
    """Gives the scripted answers, the last one repeatedly, and records the requests."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers) or [httpx.Response(200, json=REPLY)]
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers[min(len(self.requests), len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Skip sleeps and return their lengths; the loops of other threads sleep as they did."""
    waited: list[float] = []
    real, own = asyncio.sleep, threading.get_ident()

    async def sleep(seconds: float) -> None:
        if threading.get_ident() != own:
            await real(seconds)
        else:
            waited.append(seconds)

    monkeypatch.setattr(client_module.asyncio, "sleep", sleep)
    return waited


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch, waits: list[float]) -> Callable[..., OsmosisLLMClient]:
    def connect(controller: Callable[[httpx.Request], httpx.Response], **given: Any) -> OsmosisLLMClient:
        client = OsmosisLLMClient("http://controller/", "r1", **{"api_key": "CB", **given})
        client._client = httpx.AsyncClient(transport=httpx.MockTransport(controller))
        return client

    return connect


async def test_chat_request_and_reply(connect: Callable[..., OsmosisLLMClient]) -> None:
    controller = Controller()
    as_dict = {"type": "function", "function": {"name": "sub", "parameters": {"type": "object"}}}
    as_schema = OpenAIFunctionToolSchema(
        type="function", function=OpenAIFunctionSchema(name="add", description="adds")
    )

    async with connect(controller) as client:
        result = await client.chat_completions(
            [], seed=3, tools=[as_schema, as_dict], model="m", user=None, rollout_id="another"
        )

    (request,) = controller.requests
    assert str(request.url) == "http://controller/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer CB"
    body = json.loads(request.content)
    assert (body["seed"], body["model"], body["rollout_id"]) == (3, "m", "r1")
    assert [tool["function"]["name"] for tool in body["tools"]] == ["add", "sub"]
    assert body["tools"][1] == as_dict
    assert "user" not in body and "stop" not in body
    assert (result.content, result.finish_reason) == ("hi", "length")
    assert (result.token_ids, result.logprobs, result.usage) == ([1, 2], [-0.5, -0.25], REPLY["usage"])
    metrics = client.get_metrics()
    assert (metrics.num_llm_calls, metrics.prompt_tokens, metrics.response_tokens) == (1, 5, 3)
    assert metrics.llm_latency_ms > 0


@pytest.mark.parametrize(
    "trouble",
    [
        httpx.Response(503),
        httpx.ReadTimeout(""),
        httpx.ConnectError("refused"),
        httpx.Response(200, json={"choices": [None]}),
        httpx.Response(200, json={**REPLY, "error": {"code": 502, "message": "upstream is down"}}),
        httpx.Response(200, json={"choices": [{"message": {"content": ""}, "finish_reason": "error"}]}),
    ],
)
async def test_transient_failures_are_retried_with_growing_delays(
    trouble: Answer, connect: Callable[..., OsmosisLLMClient], waits: list[float]
) -> None:
    settings = RolloutClientSettings(retry_base_delay=1.0, retry_max_delay=3.0)
    controller = Controller(trouble, trouble, trouble, httpx.Response(200, json=REPLY))

    result = await connect(controller, max_retries=3, settings=settings).chat_completions([])

    assert result.content == "hi" and waits == [1.0, 2.0, 3.0]
    # The bridge recognizes a retry by this header and samples nothing twice.
    counts = [request.headers.get("x-stainless-retry-count") for request in controller.requests]
    assert counts == [None, "1", "2", "3"]
    assert len({request.content for request in controller.requests}) == 1


@pytest.mark.parametrize("status", [302, 400, 401, 404, 429])
async def test_refusals_and_redirects_are_not_retried(
    status: int, connect: Callable[..., OsmosisLLMClient]
) -> None:
    controller = Controller(httpx.Response(status, text="no", headers={"Location": "http://elsewhere"}))

    with pytest.raises(OsmosisValidationError, match=f"answered {status}: no") as raised:
        await connect(controller).chat_completions([])

    assert raised.value.status_code == status and len(controller.requests) == 1


@pytest.mark.parametrize(
    "body",
    [
        "<html>\n" + "x" * 1000,
        "null",
        "[]",
        "{}",
        '{"choices": []}',
        '{"choices": [{}]}',
        '{"choices": [null]}',
        '{"choices": [{"message": null}]}',
        '{"choices": [{"message": {}}], "usage": 3}',
        '{"choices": [{"message": {}}], "token_ids": 3}',
    ],
)
async def test_an_invalid_reply_is_a_server_error(
    body: str, connect: Callable[..., OsmosisLLMClient]
) -> None:
    controller = Controller(httpx.Response(200, text=body))

    with pytest.raises(OsmosisServerError, match="an invalid completion") as raised:
        await connect(controller, max_retries=1).chat_completions([])

    assert len(controller.requests) == 2 and len(str(raised.value)) < 500 and "\n" not in str(raised.value)


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("body", ['{"key": "plain012345\\u0036789"}', "x" * 190 + "plain0123456789"])
async def test_errors_do_not_show_the_key(
    body: str, status: int, connect: Callable[..., OsmosisLLMClient]
) -> None:
    controller = Controller(httpx.Response(status, text=body))

    with pytest.raises(OsmosisServerError, match="redac") as raised:
        await connect(controller, api_key="plain0123456789", max_retries=0).chat_completions([])

    assert "plain" not in str(raised.value)


async def gzipped(request: web.Request) -> web.Response:
    return web.Response(body=gzip.compress(b"x" * 3_000_000), headers={"Content-Encoding": "gzip"})


async def endless(request: web.Request) -> web.StreamResponse:
    reply = web.StreamResponse()
    await reply.prepare(request)
    with contextlib.suppress(ConnectionError):
        while True:
            await reply.write(b"x" * 100_000)
    return reply


async def no_gzip(request: web.Request) -> web.Response:
    return web.Response(body=b"no gzip", headers={"Content-Encoding": "gzip"})


async def cut_off(request: web.Request) -> web.StreamResponse:
    reply = web.StreamResponse(headers={"Content-Length": "1000"})
    await reply.prepare(request)
    await reply.write(b"{")
    assert request.transport is not None
    request.transport.abort()
    return reply


async def elsewhere(request: web.Request) -> web.Response:
    assert request.path != "/elsewhere", "the key stays with the address it is meant for"
    return web.Response(status=307, headers={"Location": "/elsewhere"})


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (gzipped, OsmosisTransportError, "larger than 2000000 bytes"),
        (endless, OsmosisTransportError, "larger than 2000000 bytes"),
        (no_gzip, OsmosisServerError, "cannot be decoded"),
        (cut_off, OsmosisTransportError, "cannot be reached"),
        (elsewhere, OsmosisValidationError, "answered 307"),
    ],
)
async def test_hostile_replies(
    answer: Any, error: type[Exception], message: str, shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MAX_REPLY_BYTES", 2_000_000)

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    async with listening(app) as url, OsmosisLLMClient(url, "r1", api_key="k", max_retries=0) as client:
        if shares:
            client.share_connections()
        with pytest.raises(error, match=message):
            await client.chat_completions([])


async def test_incomplete_tool_calls_are_completed(connect: Callable[..., OsmosisLLMClient]) -> None:
    calls = [
        {"type": "function", "function": {"name": "look", "arguments": ""}},
        {"function": {"name": "look"}},
    ]
    reply = {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": calls}}]}
    controller = Controller(httpx.Response(200, json=reply))

    first, again = [(await connect(controller).chat_completions([])).tool_calls for _ in range(2)]

    assert [call["function"]["arguments"] for call in first] == ["{}", "{}"]
    assert len({call["id"] for call in first}) == 2
    assert first == again


async def test_a_controller_address_with_a_query(waits: list[float]) -> None:
    controller = Controller()
    client = OsmosisLLMClient("http://controller/base/?run=1", "r1")
    client._client = httpx.AsyncClient(transport=httpx.MockTransport(controller))
    await client.chat_completions([])
    assert str(controller.requests[0].url) == "http://controller/base/v1/chat/completions?run=1"


async def test_retries_of_a_report(connect: Callable[..., OsmosisLLMClient], waits: list[float]) -> None:
    broken, refusing = Controller(httpx.Response(503)), Controller(httpx.Response(400))

    with pytest.raises(OsmosisServerError):
        await connect(broken, complete_rollout_retries=1).complete_rollout("COMPLETED", [])
    with pytest.raises(OsmosisValidationError):
        await connect(refusing).complete_rollout("COMPLETED", [])

    assert (len(broken.requests), len(refusing.requests), waits) == (2, 1, [1.0])


async def test_invalid_reports(connect: Callable[..., OsmosisLLMClient]) -> None:
    client = connect(Controller())

    for bad in ({"status": "DONE"}, {"status": "success"}, {"status": "COMPLETED", "reward": float("nan")}):
        with pytest.raises(ValueError):
            await client.complete_rollout(final_messages=[], **bad)


async def test_mock_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = RolloutCompletionTracker()
    trainer = TestClient(create_mock_trainer_app(tracker))
    patch_httpx_for_mock_trainer(trainer, monkeypatch)

    async with OsmosisLLMClient("http://trainer", "r1") as client:
        plain = await client.chat_completions([{"role": "user", "content": "Hello"}])
        calling = await client.chat_completions([{"role": "user", "content": "Please ADD 5 and 3"}])
        final = await client.chat_completions([{"role": "tool", "content": "8"}])
        assert tracker.wait(timeout=0) is False
        await client.complete_rollout("COMPLETED", [])

    assert (plain.content, plain.finish_reason, plain.token_ids) == ("OK.", "stop", [0, 1, 2])
    (call,) = calling.tool_calls
    assert (call["id"], call["function"]) == (
        "call_mock_add",
        {"name": "add", "arguments": '{"a": 5, "b": 3}'},
    )
    assert final.content == "The calculation is complete." and not final.has_tool_calls
    assert tracker.wait() and tracker.responses[0]["rollout_id"] == "r1"
    assert tracker.responses[0]["metrics"]["num_llm_calls"] == 3
    assert trainer.get("/v1/rollout/completed/r1").json()["status"] == "COMPLETED"
    assert trainer.get("/v1/rollout/completed/other").json() == {}
    assert trainer.get("/health").json() == {"status": "healthy", "service": "mock-trainer"}
    tracker.clear()
    assert (tracker.responses, tracker.event.is_set()) == ([], False)


async def test_a_served_agent_with_the_mock_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = RolloutCompletionTracker()
    patch_httpx_for_mock_trainer(TestClient(create_mock_trainer_app(tracker)), monkeypatch)
    init = {
        "rollout_id": "r1",
        "server_url": "http://trainer",
        "messages": [{"role": "user", "content": "Hello"}],
        "completion_params": {},
    }

    with TestClient(create_app(Echo())) as server:
        assert server.post("/v1/rollout/init", json=init).status_code == 202
        assert tracker.wait(60)

    assert [message["content"] for message in tracker.responses[0]["final_messages"]] == ["Hello", "OK."]


async def test_tool_calls_of_the_mock_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    trainer = TestClient(create_mock_trainer_app(tool_call_generator=lambda message: calls))

    reply = trainer.post(
        "/v1/chat/completions", json={"rollout_id": "r", "messages": [{"role": "user"}] * 2}
    ).json()
    assert reply["id"] == "r" and reply["choices"][0]["message"]["tool_calls"] == calls
    assert len(reply["prompt_token_ids"]) == reply["usage"]["prompt_tokens"] == 20

    patch_httpx_for_mock_trainer(trainer, monkeypatch)
    elsewhere = httpx.MockTransport(lambda request: httpx.Response(204))
    async with httpx.AsyncClient(transport=elsewhere) as other:
        assert (await other.post("http://x/y")).status_code == 204
