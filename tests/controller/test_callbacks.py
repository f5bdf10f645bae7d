"""Callbacks of rollouts: what is acknowledged, committed, refused and remembered."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from osmosis_ai.controller import callbacks
from osmosis_ai.controller.callbacks import (
    CallbackAddress,
    CallbackListener,
    CallbackStore,
    TerminalCallbackResult,
    UnknownRolloutIdError,
)
from osmosis_ai.controller.model_proxy import ProviderProxy
from osmosis_ai.errors import OsmosisError
from tests.controller.wire import ROLLOUT_ID, completion, completion_body, grader, grader_body

TOKEN = "callback-secret"
BRIDGE_TOKEN = "model-secret"


class Journal:
    """A commit hook that records results, and can be blocked or made to fail."""

    def __init__(self) -> None:
        self.committed: list[TerminalCallbackResult] = []
        self.failures: list[Exception] = []
        self.calls = 0
        self.acknowledgment: Mapping[str, Any] | None = None
        self.started = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, result: TerminalCallbackResult) -> Mapping[str, Any] | None:
        self.calls += 1
        self.started.set()
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.committed.append(result)
        return self.acknowledgment


class EchoBridge:
    """Echoes a model call."""

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/rollouts/{rollout_id}/chat/completions", self.complete)]

    async def complete(self, request: web.Request) -> web.Response:
        return web.json_response({"id": request.match_info["rollout_id"], "body": await request.json()})


@pytest.fixture
async def journal() -> Journal:
    return Journal()


@pytest.fixture
async def store(journal: Journal) -> CallbackStore:
    store = CallbackStore(on_terminal_commit=journal)
    await store.register(ROLLOUT_ID)
    return store


@pytest.fixture
async def listener(store: CallbackStore) -> AsyncIterator[CallbackListener]:
    async with CallbackListener(
        store, auth_token=TOKEN, bridge=EchoBridge(), bridge_token=BRIDGE_TOKEN
    ) as listener:
        yield listener


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def post(
    http: aiohttp.ClientSession, url: str, body: Any, *, authorization: str | None = f"Bearer {TOKEN}"
) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"}
    if authorization is not None:
        headers["Authorization"] = authorization
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with http.post(url, data=data, headers=headers) as reply:
        return reply.status, await reply.json()


async def test_both_callbacks_are_taken_and_acknowledged(
    listener: CallbackListener, journal: Journal, http: aiohttp.ClientSession
) -> None:
    assert await post(http, listener.completion_url(ROLLOUT_ID), completion_body()) == (200, {"ok": True})
    assert await post(http, listener.grader_url(ROLLOUT_ID), grader_body()) == (200, {"ok": True})
    (result,) = journal.committed
    assert result.completion is not None and result.completion.status.value == "success"
    assert result.grader is not None and result.grader.sample is not None
    assert result.grader.sample.reward == 1.0
    assert result.grader.sample.messages == grader_body()["sample"]["messages"]
    assert result.grader.sample.trajectory_messages is None


async def test_a_failed_commit_answers_500_and_the_retry_200(
    listener: CallbackListener, journal: Journal, http: aiohttp.ClientSession
) -> None:
    journal.failures = [OSError("no space left on device")]
    status, reply = await post(http, listener.grader_url(ROLLOUT_ID), grader_body())
    assert status == 500
    assert "no space" not in json.dumps(reply)
    assert (await post(http, listener.grader_url(ROLLOUT_ID), grader_body()))[0] == 200
    assert len(journal.committed) == 1


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {BRIDGE_TOKEN}", "Bearer \udcff"],
)
async def test_callbacks_need_the_controllers_key(
    listener: CallbackListener,
    journal: Journal,
    http: aiohttp.ClientSession,
    authorization: str | None,
) -> None:
    for url in (listener.completion_url(ROLLOUT_ID), listener.grader_url(ROLLOUT_ID)):
        assert (await post(http, url, grader_body(), authorization=authorization))[0] == 401
    assert not journal.committed


@pytest.mark.parametrize("status", ["queued", "running", "grading", "unknown", "nonsense", None])
async def test_a_completion_with_a_status_that_is_not_terminal_is_refused(
    listener: CallbackListener, http: aiohttp.ClientSession, status: str | None
) -> None:
    reply = await post(http, listener.completion_url(ROLLOUT_ID), completion_body(status=status))
    assert reply[0] == 422


@pytest.mark.parametrize(
    "body",
    [
        grader_body(status="pending"),
        grader_body(rollout_id="another"),
        grader_body(reward="much"),  # type: ignore[arg-type]
        [],
        b"{",
        b"",
        b'{"status": "success", "rollout_id": "%b", "sample": {"reward": 1e999}}' % ROLLOUT_ID.encode(),
    ],
    ids=["pending", "other id", "bad reward", "a list", "torn", "empty", "infinite reward"],
)
async def test_an_invalid_grader_body_is_refused(
    listener: CallbackListener, journal: Journal, http: aiohttp.ClientSession, body: Any
) -> None:
    status, reply = await post(http, listener.grader_url(ROLLOUT_ID), body)
    assert status == 422
    assert reply["detail"]
    assert not journal.committed


async def test_callbacks_need_not_repeat_the_rollout_id_of_their_path(
    listener: CallbackListener,
    journal: Journal,
    http: aiohttp.ClientSession,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for url, whole in (
        (listener.completion_url(ROLLOUT_ID), completion_body()),
        (listener.grader_url(ROLLOUT_ID), grader_body()),
    ):
        without_id = {name: value for name, value in whole.items() if name != "rollout_id"}
        assert await post(http, url, without_id) == (200, {"ok": True})
        assert await post(http, url, {**whole, "rollout_id": None}) == (200, {"ok": True})
        assert await post(http, url, whole) == (200, {"ok": True})
    assert [result.rollout_id for result in journal.committed] == [ROLLOUT_ID]
    assert "conflicting" not in caplog.text, "with and without the id it is the same callback"


async def test_a_lone_surrogate_does_not_lose_the_result(
    listener: CallbackListener, journal: Journal, http: aiohttp.ClientSession
) -> None:
    body = grader_body()
    body["sample"]["messages"][1]["content"] = "half a pair: \ud83d"
    assert (await post(http, listener.grader_url(ROLLOUT_ID), body))[0] == 200
    assert (await post(http, listener.grader_url(ROLLOUT_ID), body))[0] == 200
    assert len(journal.committed) == 1


@pytest.mark.parametrize("rollout_id", ["a/b", "..", "a\\b", "a\0b"])
async def test_ids_that_are_not_a_path_segment_are_refused(
    listener: CallbackListener, http: aiohttp.ClientSession, rollout_id: str
) -> None:
    import yarl

    quoted = "%2E%2E" if rollout_id == ".." else listener.grader_url(rollout_id).split("/")[-2]
    url = yarl.URL(f"{listener.base_url}/v1/rollouts/{quoted}/grader", encoded=True)
    async with http.post(
        url, json=grader_body(rollout_id), headers={"Authorization": f"Bearer {TOKEN}"}
    ) as reply:
        assert reply.status == 422


async def test_the_bridge_is_served_and_needs_its_own_key(
    listener: CallbackListener, http: aiohttp.ClientSession
) -> None:
    url = f"{listener.chat_completions_url(ROLLOUT_ID)}/chat/completions"
    status, reply = await post(http, url, {"model": "m"}, authorization=f"Bearer {BRIDGE_TOKEN}")
    assert (status, reply) == (200, {"id": ROLLOUT_ID, "body": {"model": "m"}})
    status, reply = await post(http, url, {"model": "m"}, authorization=f"Bearer {TOKEN}")
    assert (status, reply["error"]["code"]) == (401, "invalid_api_key")


async def test_no_route_takes_the_key_of_another_run(
    store: CallbackStore, journal: Journal, http: aiohttp.ClientSession
) -> None:
    endpoint = SimpleNamespace(model_path="openai/m")
    bridge = ProviderProxy(SimpleNamespace(endpoint=endpoint))  # type: ignore[arg-type]
    bridge.open(ROLLOUT_ID)
    listener = CallbackListener(store, auth_token=TOKEN, bridge=bridge, bridge_token=BRIDGE_TOKEN)
    routes = [(route.method, route.resource) for route in listener._app.router.routes()]
    assert len(routes) >= 6
    async with listener:
        for method, resource in routes:
            assert resource is not None
            known = {"rollout_id": ROLLOUT_ID, "endpoint": "responses", "recorded": "recorded"}
            path = str(
                resource.url_for(**{name: known[name] for name in known if name in resource.canonical})
            )
            for key in ("the callbacks' of another run", "the model's of another run"):
                asked = http.request(
                    "POST" if method == "*" else method,
                    listener.base_url + path,
                    json=grader_body(),
                    headers={"Authorization": f"Bearer {key}"},
                )
                async with asked as reply:
                    assert reply.status == 401, (method, path)
    assert not journal.committed


async def test_a_callback_whose_client_disconnects_is_committed(
    store: CallbackStore, listener: CallbackListener, journal: Journal
) -> None:
    body = json.dumps(grader_body()).encode()
    host, port = "127.0.0.1", int(listener.base_url.rsplit(":", 1)[1])
    _, writer = await asyncio.open_connection(host, port)
    writer.write(
        f"POST /v1/rollouts/{ROLLOUT_ID}/grader HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    await writer.drain()
    writer.close()
    assert (await asyncio.wait_for(store.wait_terminal(ROLLOUT_ID), 60)).source == "grader"
    assert len(journal.committed) == 1


def test_a_listener_without_a_free_port_fails_with_a_hint_only_if_an_address_is_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("socket.create_server", full)
    with pytest.raises(OsmosisError, match="Too many open files") as plain:
        CallbackAddress().socket()
    assert "agents" not in plain.value.message and plain.value.hint is None
    with pytest.raises(OsmosisError, match=r"cannot listen on train\.internal") as served:
        CallbackAddress("train.internal", ports=(9100, 9101)).socket()
    assert "OSMOSIS_BRIDGE_PORTS" in str(served.value.hint)


async def test_the_acknowledgement_waits_for_the_commit(store: CallbackStore, journal: Journal) -> None:
    journal.gate.clear()
    handler = asyncio.create_task(store.handle_grader(ROLLOUT_ID, grader()))
    waiter = asyncio.create_task(store.wait_terminal(ROLLOUT_ID))
    await journal.started.wait()
    assert not handler.done() and not waiter.done()
    journal.gate.set()
    assert await handler == {"ok": True}
    assert (await waiter).source == "grader"


async def test_a_repeated_callback_gets_the_first_answer_without_a_second_commit(
    store: CallbackStore,
    journal: Journal,
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal.gate.clear()
    first = asyncio.create_task(store.handle_grader(ROLLOUT_ID, grader()))
    await journal.started.wait()
    second = asyncio.create_task(store.handle_grader(ROLLOUT_ID, grader()))
    journal.gate.set()
    assert await first == await second == await store.handle_grader(ROLLOUT_ID, grader())
    assert journal.calls == 1
    assert not caplog.records


@pytest.mark.parametrize("when", ["committing", "accepted"])
async def test_a_conflicting_grader_callback_is_logged_and_the_first_counts(
    store: CallbackStore,
    journal: Journal,
    caplog: pytest.LogCaptureFixture,
    when: str,
) -> None:
    if when == "committing":
        journal.gate.clear()
    first = asyncio.create_task(store.handle_grader(ROLLOUT_ID, grader()))
    await journal.started.wait()
    if when != "committing":
        await first
    second = asyncio.create_task(store.handle_grader(ROLLOUT_ID, grader(reward=0.0)))
    journal.gate.set()
    assert await second == await first == {"ok": True}
    assert [result.grader for result in journal.committed] == [grader()]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "conflicting duplicate" in caplog.text


async def test_a_timeout_is_committed_and_late_callbacks_get_its_acknowledgement(
    store: CallbackStore,
    journal: Journal,
    caplog: pytest.LogCaptureFixture,
) -> None:
    acknowledgment = {"ok": True, "error_type": "callback_timeout"}
    result = await store.finalize_timeout(ROLLOUT_ID, acknowledgment=acknowledgment)
    assert result.source == "timeout"
    assert journal.committed == [result]
    assert await store.handle_grader(ROLLOUT_ID, grader()) == acknowledgment
    await store.discard(ROLLOUT_ID)
    assert await store.handle_completion(ROLLOUT_ID, completion()) == acknowledgment
    assert await store.handle_grader(ROLLOUT_ID, grader()) == acknowledgment
    assert journal.calls == 1
    assert not caplog.records


@pytest.mark.parametrize("method", ["finalize_timeout", "acknowledge_without_commit"])
async def test_a_timeout_and_a_cancellation_lose_to_a_running_commit(
    store: CallbackStore, journal: Journal, method: str
) -> None:
    journal.gate.clear()
    handler = asyncio.create_task(store.handle_grader(ROLLOUT_ID, grader()))
    await journal.started.wait()
    competitor = asyncio.create_task(getattr(store, method)(ROLLOUT_ID))
    await asyncio.sleep(0)
    assert not competitor.done()
    journal.gate.set()
    assert (await competitor).source == "grader"
    assert await handler == {"ok": True}


async def test_finished_rollouts_are_remembered_within_both_bounds(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callbacks, "REMEMBERED_ROLLOUTS", 3)
    monkeypatch.setattr(callbacks, "REMEMBERED_ACKNOWLEDGMENT_BYTES", 100)
    store = CallbackStore(on_terminal_commit=journal)
    for index in range(5):
        journal.acknowledgment = {"ok": True, "trajectory": str(index) * 40} if index != 3 else None
        await store.register(str(index))
        await store.handle_grader(str(index), grader(str(index)))
        await store.discard(str(index))
    for forgotten in "01":
        with pytest.raises(UnknownRolloutIdError):
            await store.handle_grader(forgotten, grader(forgotten))
    answers = {key: await store.handle_grader(key, grader(key)) for key in "234"}
    assert answers == {"2": {"ok": True}, "3": {"ok": True}, "4": {"ok": True, "trajectory": "4" * 40}}


async def test_an_unknown_rollout_is_not_found(
    listener: CallbackListener, http: aiohttp.ClientSession
) -> None:
    for url, body in (
        (listener.completion_url("stranger"), completion_body("stranger")),
        (listener.grader_url("stranger"), grader_body("stranger")),
    ):
        assert (await post(http, url, body))[0] == 404


@pytest.mark.parametrize("token", ["", "  "])
def test_blank_keys_are_refused(token: str) -> None:
    async def commit(result: TerminalCallbackResult) -> None:
        return None

    store = CallbackStore(on_terminal_commit=commit)
    with pytest.raises(ValueError, match="auth_token"):
        CallbackListener(store, auth_token=token)
    with pytest.raises(ValueError, match="bridge_token"):
        CallbackListener(store, auth_token=TOKEN, bridge=EchoBridge(), bridge_token=token or None)
