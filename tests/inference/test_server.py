from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from aiohttp.web import TCPSite

from osmosis_ai.inference.engine import InferenceEngine
from osmosis_ai.inference.model import Model
from osmosis_ai.inference.openai_api import ChatCompletions
from osmosis_ai.inference.server import MAX_BODY_BYTES, Endpoint
from osmosis_ai.inference.template import ChatTemplate
from osmosis_ai.inference.tokenizer import Tokenizer
from tests.inference.conftest import HERMES, body

KEY = "a key for the tests"


@pytest.fixture
async def client(api: ChatCompletions) -> AsyncIterator[aiohttp.ClientSession]:
    async with TestServer(Endpoint(api, api_key=KEY).application()) as server:
        headers = {"Authorization": f"Bearer {KEY}"}
        async with aiohttp.ClientSession(server.make_url("/"), headers=headers) as session:
            yield session


async def error_of(response: aiohttp.ClientResponse) -> dict[str, Any]:
    assert response.content_type == "application/json"
    error: dict[str, Any] = (await response.json())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


async def test_a_completion_over_http(client: aiohttp.ClientSession) -> None:
    async with client.post("/v1/chat/completions", json=body(seed=1)) as response:
        assert response.status == 200
        assert (await response.json())["object"] == "chat.completion"


async def test_a_stream_is_server_sent_events_up_to_done(client: aiohttp.ClientSession) -> None:
    async with client.post("/v1/chat/completions", json=body(seed=1, stream=True)) as response:
        assert response.content_type == "text/event-stream"
        text = await response.text()
    events = text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: {") for event in events[:-2])
    assert json.loads(events[-3].removeprefix("data: "))["choices"][0]["finish_reason"]


@pytest.mark.parametrize("given", [None, "Bearer wrong", "Basic abc", "Bearer", "Bearer ключ"])
async def test_without_the_key_nothing_is_answered(client: aiohttp.ClientSession, given: str | None) -> None:
    headers = {"Authorization": given} if given else {}
    async with (
        aiohttp.ClientSession(headers=headers) as stranger,
        stranger.get(client._base_url / "v1/models") as response,  # type: ignore[operator]
    ):
        assert response.status == 401
        error = await error_of(response)
    assert error["code"] == "invalid_api_key"
    assert KEY not in error["message"]


async def test_models_and_health(client: aiohttp.ClientSession) -> None:
    async with client.get("/v1/models") as response:
        (model,) = (await response.json())["data"]
    assert (model["id"], model["owned_by"], model["max_model_len"]) == ("osmosis/tiny", "osmosis", 2048)
    async with aiohttp.ClientSession() as stranger, stranger.get(client._base_url / "health") as response:  # type: ignore[operator]
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
async def test_a_bad_body_is_refused(
    client: aiohttp.ClientSession, data: bytes, status: int, words: str
) -> None:
    async with client.post("/v1/chat/completions", data=data) as response:
        assert response.status == status
        assert words in (await error_of(response))["message"]


async def test_refusals_of_streams_are_plain_responses(client: aiohttp.ClientSession) -> None:
    async with client.post("/v1/chat/completions", json=body(stream=True, n=0)) as response:
        assert response.status == 400
        assert (await error_of(response))["param"] == "n"


async def test_unknown_routes_and_methods_are_refused_in_the_same_shape(
    client: aiohttp.ClientSession,
) -> None:
    async with client.get("/v1/chat/completions") as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")
        await error_of(response)
    async with client.post("/v1/embeddings", json={}) as response:
        assert response.status == 404
        await error_of(response)


async def test_a_full_queue_is_429_with_retry_after(
    model: Model, tokenizer: Tokenizer, template: ChatTemplate, prompts: list[tuple[int, ...]]
) -> None:
    idle = InferenceEngine(model, max_waiting=2)  # not started: what is queued stays
    api = ChatCompletions(idle, tokenizer, template, ["osmosis/tiny"], HERMES)
    await api.create(body(stream=True, n=2))
    async with (
        TestServer(Endpoint(api, api_key=None).application()) as server,
        aiohttp.ClientSession() as session,
        session.post(server.make_url("/v1/chat/completions"), json=body()) as response,
    ):
        assert (response.status, response.headers["Retry-After"]) == (429, "1")
        assert (await error_of(response))["type"] == "rate_limit_error"


async def test_a_stopped_engine_shows_in_health_and_in_replies(api: ChatCompletions) -> None:
    api.engine.close()
    async with (
        TestServer(Endpoint(api, api_key=None).application()) as server,
        aiohttp.ClientSession() as session,
    ):
        async with session.get(server.make_url("/health")) as response:
            assert (response.status, (await response.json())["status"]) == (503, "failed")
        async with session.post(server.make_url("/v1/chat/completions"), json=body()) as response:
            assert response.status == 503
            assert (await error_of(response))["code"] == "engine_stopped"


async def test_an_engine_that_fails_under_a_stream_ends_it_with_an_error_event(
    tireless_model: Model, tokenizer: Tokenizer, template: ChatTemplate
) -> None:
    with InferenceEngine(tireless_model) as engine:
        api = ChatCompletions(engine, tokenizer, template, ["osmosis/tiny"], HERMES)
        async with (
            TestServer(Endpoint(api, api_key=None).application()) as server,
            aiohttp.ClientSession() as session,
            session.post(
                server.make_url("/v1/chat/completions"), json=body(stream=True, max_tokens=1900)
            ) as response,
        ):
            await response.content.readline()
            engine.close()
            events = (await response.text()).split("\n\n")
    assert json.loads(events[-3].strip().removeprefix("data: "))["error"]["type"] == "server_error"
    assert events[-2] == "data: [DONE]"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_away_takes_its_generation_with_it(
    tireless_model: Model, tokenizer: Tokenizer, template: ChatTemplate, stream: bool
) -> None:
    with InferenceEngine(tireless_model, max_batch=8) as engine:
        api = ChatCompletions(engine, tokenizer, template, ["osmosis/tiny"], HERMES)
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
                while not engine.stats().running:
                    assert not request.done()
                    await asyncio.sleep(0)
                request.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await request
            while engine.stats().running or engine.stats().waiting:  # noqa: ASYNC110 - another thread's work
                await asyncio.sleep(0)
            assert engine.stats().finished == 0
        finally:
            await runner.cleanup()
