"""`/v1` as a client of OpenAI's meets it: models, keys, refusals, answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web
from fastapi.testclient import TestClient

from osmosis_ai.platform import models as served_module
from osmosis_ai.platform.models import (
    ModelServerPool,
    ModelUnavailableError,
    ServableModel,
    TooManyRequestsError,
)
from tests.platform.conftest import Member, World, application, assert_openai_error
from tests.platform.model_servers import CHAT, TINY, StandIn, Starts, echo
from tests.platform.viewer.runs_world import add_model, add_run

# -- through the real model --------------------------------------------------------------------


@pytest.fixture
def v1(client: TestClient, api_key: str) -> TestClient:
    client.headers["Authorization"] = f"Bearer {api_key}"
    return client


@pytest.mark.integration
def test_the_built_in_model_answers_and_streams_the_same(v1: TestClient) -> None:
    body = {**CHAT, "seed": 7, "max_tokens": 8}
    whole = v1.post("/v1/chat/completions", json=body).json()
    assert whole["object"] == "chat.completion"
    assert whole["model"] == "osmosis/tiny"

    with v1.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert reply.headers["x-accel-buffering"] == "no"
        events = [line.removeprefix("data: ") for line in reply.iter_lines() if line]
    assert events[-1] == "[DONE]"
    text = "".join(json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events[:-1])
    assert text == whole["choices"][0]["message"]["content"]

    bad = v1.post("/v1/chat/completions", json={**CHAT, "temperature": "hot"})
    assert bad.status_code == 400
    assert bad.json()["error"]["param"] == "temperature"


# -- without a model ---------------------------------------------------------------------------


def test_models_are_listed_and_shown_without_starting_one(v1: TestClient, world: World) -> None:
    model = {
        "id": "osmosis/tiny",
        "object": "model",
        "created": world.services.model_servers.created,
        "owned_by": "osmosis",
    }

    assert v1.get("/v1/models").json() == {"object": "list", "data": [model]}
    for name in ("osmosis/tiny", "osmosis%2Ftiny", "tiny"):
        assert v1.get(f"/v1/models/{name}").json() == model
    assert "'other' is not served here" in assert_openai_error(
        v1.get("/v1/models/other"), 404, "model_not_found"
    )


@pytest.mark.parametrize(
    "authorization", ["", "Bearer", "Basic abc", "Bearer osm_wrong", "Bearer sk-12345", "Bearer ä"]
)
def test_without_an_api_key_nothing_is_answered(client: TestClient, authorization: str) -> None:
    headers = {"Authorization": authorization.encode()} if authorization else {}
    for reply in (
        client.post("/v1/chat/completions", json=CHAT, headers=headers),
        client.get("/v1/models", headers=headers),
    ):
        assert_openai_error(reply, 401, "invalid_api_key")


def test_a_token_of_the_command_line_is_no_api_key_and_the_error_says_how_to_make_one(
    client: TestClient, member: Member
) -> None:
    reply = client.get("/v1/models", headers={"Authorization": f"Bearer {member.token}"})
    assert "osmosis platform token create" in assert_openai_error(reply, 401, "invalid_api_key")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ('{"model": "gpt-5"}', 404, "model_not_found"),
        ('{"model": "osmosis/tiny/../x"}', 404, "model_not_found"),
        ("{}", 400, "missing_required_parameter"),
        ('{"model": 7}', 400, "missing_required_parameter"),
        ("[]", 400, "missing_required_parameter"),
        ("not json", 400, None),
        ("", 400, None),
    ],
)
def test_a_request_for_no_model_that_is_served_is_refused(
    v1: TestClient, body: str, status: int, code: str | None
) -> None:
    assert_openai_error(v1.post("/v1/chat/completions", content=body), status, code)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_other_routes_are_refused_in_the_shape_clients_read(v1: TestClient, method: str) -> None:
    assert_openai_error(v1.request(method, "/v1/embeddings"), 404, "unknown_url")


def _add_adapter(world: World, member: Member, step: int, status: str | None) -> str:
    """Add an adapter whose stored files are damaged, so that no process can serve it; return its name."""
    run = add_run(world, member, f"finch-{step}", id=f"run_{step}", kind="training")
    world.store(f"adapters/{step}", b"damaged")
    files = {"adapter_config.json": {"blob_key": f"adapters/{step}", "size": 7, "sha256": "0" * 64}}
    now = world.services.clock.now()
    return (
        f"osmosis/tiny:{add_model(world, run, step, files=files, deployment_status=status, deployed_at=now)}"
    )


def test_deployed_adapters_are_listed_for_members_of_their_workspace_alone(
    v1: TestClient, world: World, member: Member, stranger: Member
) -> None:
    deployed = _add_adapter(world, member, 1, "active")
    others = [_add_adapter(world, member, 2, "inactive"), _add_adapter(world, member, 3, None)]
    theirs = _add_adapter(world, stranger, 4, "active")
    shown = v1.get("/v1/models").json()["data"][1:]
    assert [(model["id"], model["parent"]) for model in shown] == [(deployed, "osmosis/tiny")]
    assert v1.get(f"/v1/models/{deployed}").json() == shown[0]
    for name in (*others, theirs):
        refused = v1.post("/v1/chat/completions", json={**CHAT, "model": name})
        said = assert_openai_error(refused, 404, "model_not_found")
        assert f"'{deployed}'" in said
        assert "osmosis model deploy" in said
        assert_openai_error(v1.get(f"/v1/models/{name}"), 404, "model_not_found")


def test_an_adapter_whose_files_are_damaged_says_so(v1: TestClient, world: World, member: Member) -> None:
    name = _add_adapter(world, member, 1, "active")
    reply = v1.post("/v1/chat/completions", json={**CHAT, "model": name})
    said = assert_openai_error(reply, 503, "model_unavailable")
    assert name in said
    assert "adapter_config.json of the adapter 'finch-1-step-1' is damaged" in said


class _Client:
    """Speaks ASGI to the platform, so that a test decides when it reads and when it hangs up."""

    def __init__(self, world: World, api_key: str) -> None:
        self._app = application(world)
        self._key = api_key
        self.hung_up = asyncio.Event()
        self.received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def post(self, body: dict[str, Any]) -> asyncio.Task[None]:
        content = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

        async def receive() -> dict[str, Any]:
            if content:
                return content.pop()
            await self.hung_up.wait()
            return {"type": "http.disconnect"}

        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/v1/chat/completions",
            "raw_path": b"/v1/chat/completions",
            "query_string": b"",
            "root_path": "",
            "headers": [(b"authorization", f"Bearer {self._key}".encode())],
        }
        return asyncio.ensure_future(self._app(scope, receive, self.received.put))


class Upstream:
    """A model that sends when the test says so, and tells when its client has gone."""

    def __init__(self) -> None:
        self.asked, self.gone, self.more = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.set()
        try:
            if not (await request.json()).get("stream"):
                await self.more.wait()
                return web.json_response({"done": True})
            reply = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
            await reply.prepare(request)
            await reply.write(b"data: 1\n\n")
            await self.more.wait()
            await reply.write(b"data: [DONE]\n\n")
            return reply
        finally:
            self.gone.set()


@pytest.fixture
def upstream() -> Upstream:
    return Upstream()


@pytest.fixture
async def platform(world: World, upstream: Upstream) -> AsyncIterator[World]:
    """The platform over a model that ``upstream`` speaks for."""
    served = ModelServerPool(Starts(StandIn(upstream.answer)))
    world.services.model_servers = served
    yield world
    await served.close()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_hangs_up_takes_its_generation_with_it(
    platform: World, api_key: str, upstream: Upstream, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = _Client(platform, api_key)
    request = client.post({**CHAT, "stream": stream})
    await upstream.asked.wait()
    if stream:
        assert (await client.received.get())["status"] == 200
        await client.received.get()
    client.hung_up.set()

    await asyncio.wait_for(upstream.gone.wait(), 300)
    await asyncio.wait_for(request, 300)
    monkeypatch.setattr(served_module, "MAX_REQUESTS", 1)
    with platform.services.model_servers.place("its place is free again", TINY):
        pass


async def test_a_model_that_dies_in_the_middle_of_a_stream_is_an_event(
    world: World, api_key: str, member: Member
) -> None:
    async def die(request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        await reply.write(b"data: 1\n\n")
        assert request.transport is not None
        request.transport.abort()
        return reply

    world.services.model_servers = ModelServerPool(Starts(StandIn(die)))
    client = _Client(world, api_key)
    await client.post({**CHAT, "stream": True})
    await world.services.model_servers.close()

    body = b"".join(client.received.get_nowait().get("body", b"") for _ in range(client.received.qsize()))
    error = json.loads(body.decode().split("data: ")[-1])["error"]
    assert "stopped before its reply was complete" in error["message"]


async def _asked(served: ModelServerPool, body: bytes = b"{}") -> Any:
    async with await served.post(TINY, "/chat/completions", body) as reply:
        return await reply.json()


async def test_one_server_is_started_for_all_who_ask_at_once_and_is_stopped_in_the_end() -> None:
    server = StandIn(echo)
    served = ModelServerPool(Starts(server))

    replies = await asyncio.gather(*(_asked(served, b'{"n": 1}') for _ in range(20)))
    await served.close()

    assert replies == [{"echo": {"n": 1}, "key": "Bearer inner-key"}] * 20
    assert (server.started, server.stopped) == (1, 1)
    with pytest.raises(ModelUnavailableError, match="the platform is stopping"):
        await _asked(served)


async def test_a_server_that_died_is_replaced_and_the_request_does_not_notice() -> None:
    first, second = StandIn(echo), StandIn(echo)
    served = ModelServerPool(Starts(first, second))
    await _asked(served)
    await first.die()

    replies = await asyncio.gather(*(_asked(served) for _ in range(5)))
    await served.close()

    assert len(replies) == 5
    assert (second.started, first.stopped > 0) == (1, True)


async def test_a_server_that_does_not_start_is_left_alone_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken, sound = StandIn(echo, broken="no memory"), StandIn(echo)
    served = ModelServerPool(Starts(broken, sound))
    again: list[Callable[[], object]] = []
    monkeypatch.setattr(
        asyncio.get_running_loop(),
        "call_later",
        lambda _delay, call, *args: again.append(lambda: call(*args)),
    )

    for _ in range(3):
        with pytest.raises(ModelUnavailableError, match="cannot be served: no memory"):
            await _asked(served)
    assert broken.started == 1
    monkeypatch.undo()
    again[0]()
    assert (await _asked(served))["echo"] == {}
    await served.close()


def test_places_are_limited_in_all_and_for_each_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_module, "MAX_REQUESTS", 3)
    monkeypatch.setattr(served_module, "MAX_REQUESTS_PER_KEY", 2)
    served = ModelServerPool(Starts())

    with served.place("a", TINY), served.place("a", TINY):
        with (
            pytest.raises(TooManyRequestsError, match="this key has 2 concurrent requests"),
            served.place("a", TINY),
        ):
            pass
        with (
            served.place("b", TINY),
            pytest.raises(TooManyRequestsError, match="too many concurrent requests"),
            served.place("c", TINY),
        ):
            pass
        with served.place("c", TINY):
            pass
    with served.place("a", TINY), served.place("b", TINY):
        pass


# -- adapters ----------------------------------------------------------------------------------


def adapters(count: int) -> list[ServableModel]:
    return [ServableModel(f"osmosis/tiny:finch-step-{number}", f"lora_{number}") for number in range(count)]


async def _ask_adapter(served: ModelServerPool, model: ServableModel) -> None:
    with served.place("key", model):
        (await served.post(model, "/chat/completions", b"{}")).close()


async def test_the_adapter_asked_longest_ago_makes_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_module, "MAX_ADAPTERS", 2)
    first, second, third = adapters(3)
    servers = {model: StandIn(echo) for model in (first, second, third, TINY)}
    served = ModelServerPool(Starts(of=servers))
    for model in (TINY, first, second, first, third):
        await _ask_adapter(served, model)
    await asyncio.wait_for(servers[second].has_stopped.wait(), 60)
    assert {model.name: servers[model].stopped for model in (TINY, first, third)} == {
        "osmosis/tiny": 0,
        first.name: 0,
        third.name: 0,
    }
    await served.close()
    assert all(server.stopped for server in servers.values())


async def test_an_adapter_that_is_answering_is_not_ended_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_module, "MAX_ADAPTERS", 1)
    first, second = adapters(2)
    servers = {model: StandIn(echo) for model in (first, second)}
    served = ModelServerPool(Starts(of=servers))
    with served.place("key", first):
        (await served.post(first, "/chat/completions", b"{}")).close()
        with pytest.raises(ModelUnavailableError, match="which is the maximum"):
            await _ask_adapter(served, second)
    await _ask_adapter(served, second)
    assert (servers[first].stopped, servers[second].stopped) == (1, 0)
    await served.close()


async def test_an_adapter_that_nobody_asks_for_ends_and_is_started_again_when_somebody_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(served_module, "ADAPTER_IDLE_S", 0.0)
    (model,) = adapters(1)
    servers = [StandIn(echo), StandIn(echo)]
    left = iter(servers)
    served = ModelServerPool(Starts(*left))
    await _ask_adapter(served, model)
    await asyncio.wait_for(servers[0].has_stopped.wait(), 60)
    await _ask_adapter(served, model)
    assert servers[1].started == 1
    await served.close()


async def test_an_adapter_that_is_withdrawn_ends_at_once_or_when_it_has_answered() -> None:
    idle, answering = adapters(2)
    servers = {model: StandIn(echo) for model in (idle, answering)}
    served = ModelServerPool(Starts(of=servers))
    await _ask_adapter(served, idle)
    with served.place("key", answering):
        (await served.post(answering, "/chat/completions", b"{}")).close()
        for model in (idle, answering, idle):
            served.withdraw(model.adapter_id or "")
        await asyncio.wait_for(servers[idle].has_stopped.wait(), 60)
        assert servers[answering].stopped == 0
    await asyncio.wait_for(servers[answering].has_stopped.wait(), 60)
    await served.close()
