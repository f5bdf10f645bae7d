"""Callbacks of rollouts: what is acknowledged, committed, refused and remembered."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import socket
from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
import yarl

from osmosis_ai.controller import callbacks
from osmosis_ai.controller.callbacks import (
    CallbackAddress,
    CallbackListener,
    CallbackStore,
    DuplicateRegistrationError,
    TerminalCallbackResult,
    UnknownRolloutIdError,
)
from osmosis_ai.controller.model_proxy import ProviderProxy
from osmosis_ai.errors import OsmosisError
from tests.controller.wire import ROLLOUT_ID, EchoBridge, completion_body, grader, grader_body

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
    async with CallbackListener(store, auth_token=TOKEN) as listener:
        yield listener


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def post(http: aiohttp.ClientSession, url: str | yarl.URL, body: Any) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with http.post(url, data=data, headers=headers) as reply:
        return reply.status, await reply.json()


async def test_a_failed_commit_answers_500_and_the_retry_200(
    listener: CallbackListener, journal: Journal, http: aiohttp.ClientSession
) -> None:
    journal.failures = [OSError("no space left on device")]
    status, reply = await post(http, listener.grader_url(ROLLOUT_ID), grader_body())
    assert status == 500
    assert "no space" not in json.dumps(reply)
    assert (await post(http, listener.grader_url(ROLLOUT_ID), grader_body()))[0] == 200
    assert len(journal.committed) == 1


OPEN_STATUSES = ("queued", "running", "grading", "unknown", "nonsense", None)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        *(("completion", completion_body(status=status)) for status in OPEN_STATUSES),
        ("grader", grader_body(status="pending")),
        ("grader", grader_body(rollout_id="another")),
        ("grader", grader_body(reward="much")),
        ("grader", []),
        ("grader", b"{"),
        ("grader", b""),
        ("grader", b'{"status": "success", "sample": {"reward": 1e999}}'),
    ],
)
async def test_an_invalid_body_is_refused(
    listener: CallbackListener, journal: Journal, http: aiohttp.ClientSession, kind: str, body: Any
) -> None:
    url = {"completion": listener.completion_url, "grader": listener.grader_url}[kind](ROLLOUT_ID)
    status, reply = await post(http, url, body)
    assert status == 422
    assert reply["detail"]
    assert not journal.committed


@pytest.mark.parametrize(
    ("rollout_id", "expected"),
    [("stranger", 404), ("a%2Fb", 422), ("%2E%2E", 422), ("a%5Cb", 422), ("a%00b", 422)],
)
async def test_unknown_and_invalid_ids(
    listener: CallbackListener, http: aiohttp.ClientSession, rollout_id: str, expected: int
) -> None:
    for kind, body in (("completion", completion_body), ("grader", grader_body)):
        url = yarl.URL(f"{listener.base_url}/v1/rollouts/{rollout_id}/{kind}", encoded=True)
        assert (await post(http, url, {**body(), "rollout_id": None}))[0] == expected


async def test_callbacks_may_omit_the_rollout_id(
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


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer of-another-run", f"Basic {TOKEN}", TOKEN, "Bearer \udcff", "the other key"],
)
async def test_every_route_needs_its_own_key(
    store: CallbackStore, journal: Journal, http: aiohttp.ClientSession, authorization: str | None
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
            other = BRIDGE_TOKEN if path.endswith(("/completion", "/grader")) else TOKEN
            given = f"Bearer {other}" if authorization == "the other key" else authorization
            headers = {} if given is None else {"Authorization": given}
            verb, url = "POST" if method == "*" else method, listener.base_url + path
            async with http.request(verb, url, json=grader_body(), headers=headers) as reply:
                assert reply.status == 401, (method, path)
    assert not journal.committed


async def test_a_callback_is_committed_after_a_disconnect(
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


def test_a_listener_without_a_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("socket.create_server", full)
    with pytest.raises(OsmosisError, match="Too many open files") as plain:
        CallbackAddress().socket()
    assert "agents" not in plain.value.message and plain.value.hint is None
    with pytest.raises(OsmosisError, match=r"cannot listen on train\.internal") as served:
        CallbackAddress("train.internal", ports=(9100, 9101)).socket()
    assert "OSMOSIS_BRIDGE_PORTS" in str(served.value.hint)


def test_callback_address_of_the_environment() -> None:
    found = CallbackAddress.from_environment({"OSMOSIS_BRIDGE_PORTS": "9100-9199"})
    assert (found.host, found.ports) == ("127.0.0.1", (9100, 9199))
    for wrong in ("x", "1-", "-1", "0", "70000", "9-x"):
        with pytest.raises(OsmosisError, match="OSMOSIS_BRIDGE_PORTS"):
            CallbackAddress.from_environment({"OSMOSIS_BRIDGE_PORTS": wrong})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OsmosisError, match=r"cannot listen on 127\.0\.0\.1"):
            CallbackAddress(ports=(port, port)).socket()


@pytest.mark.parametrize("when", ["committing", "accepted"])
async def test_a_conflicting_grader_callback_is_logged_and_the_first_counts(
    store: CallbackStore, journal: Journal, caplog: pytest.LogCaptureFixture, when: str
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


@pytest.mark.parametrize("method", ["finalize_timeout", "acknowledge_without_commit"])
async def test_a_running_commit_wins(store: CallbackStore, journal: Journal, method: str) -> None:
    journal.gate.clear()
    handler = asyncio.create_task(store.handle_grader(ROLLOUT_ID, grader()))
    await journal.started.wait()
    competitor = asyncio.create_task(getattr(store, method)(ROLLOUT_ID))
    waiter = asyncio.create_task(store.wait_terminal(ROLLOUT_ID))
    await asyncio.sleep(0)
    assert not competitor.done() and not waiter.done()
    journal.gate.set()
    assert (await competitor).source == (await waiter).source == "grader"
    assert await handler == {"ok": True}


async def test_the_limit_of_remembered_rollouts(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "REMEMBERED_BYTES", 1100)
    store = CallbackStore(on_terminal_commit=journal)
    for index in range(5):
        journal.acknowledgment = {"ok": True, "trajectory": str(index) * 40} if index != 3 else None
        await store.register(str(index))
        await store.handle_grader(str(index), grader(str(index)))
        await store.discard(str(index))
    for forgotten in "01":
        with pytest.raises(UnknownRolloutIdError):
            await store.handle_grader(forgotten, grader(forgotten))
    answers = {key: await store.handle_grader(key, grader(key)) for key in "34"}
    assert answers == {"3": {"ok": True}, "4": {"ok": True, "trajectory": "4" * 40}}
    with pytest.raises(DuplicateRegistrationError):
        await store.register("4")


@pytest.mark.parametrize("token", ["", "  "])
def test_blank_keys_are_refused(token: str) -> None:
    async def commit(result: TerminalCallbackResult) -> None:
        return None

    store = CallbackStore(on_terminal_commit=commit)
    with pytest.raises(ValueError, match="auth_token"):
        CallbackListener(store, auth_token=token)
    with pytest.raises(ValueError, match="bridge_token"):
        CallbackListener(store, auth_token=TOKEN, bridge=EchoBridge(), bridge_token=token or None)
