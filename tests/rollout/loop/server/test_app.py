"""A served agent over HTTP: the protocol, the one outcome of every rollout, and its registration."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import respx

from osmosis_ai.api.credentials import Credentials
from osmosis_ai.errors import OsmosisError
from osmosis_ai.rollout import RolloutClientSettings, RolloutServerSettings, RolloutSettings, network
from osmosis_ai.rollout.server import callback_delivery
from osmosis_ai.rollout.server.registration import Registration, reachable_host
from osmosis_ai.rollout.server.state import AppState
from tests.logins import make_checkout
from tests.workspace.builders import git, make_workspace

from .agents import ADD, Calculator, Does, Held, Unready
from .trainer import Trainer, ended, served


@pytest.fixture
async def trainer() -> AsyncIterator[Trainer]:
    async with Trainer().serving() as running:
        yield running


KEY = {"Authorization": "Bearer osm_rollout_k"}
GOOD_KEYS = ("bearer osm_rollout_k", "osm_rollout_k")
TOLD_TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "number", "description": "The first.", "enum": None},
                "b": {"type": "number", "description": None, "enum": None},
            },
            "required": ["a", "b"],
        },
        "strict": False,
    },
}


async def test_messages_of_a_rollout(trainer: Trainer, tmp_path: Path) -> None:
    async with served(Calculator(), api_key="osm_rollout_k", debug_dir=tmp_path) as server:
        accepted = await server.post("/v1/rollout/init", json=trainer.init(), headers=KEY)
        assert (accepted.status_code, accepted.json()) == (202, {"rollout_id": "R1", "tools": [TOLD_TOOL]})
        (completion,) = await trainer.completed()
    (chat,) = trainer.chats
    assert chat == {
        "model": "default",
        "messages": [{"role": "user", "content": "What is 6 * 7?"}],
        "rollout_id": "R1",
        "temperature": 0.5,
        "top_p": 1.0,
        "max_tokens": 64,
        "stop": ["END"],
        "logprobs": True,
        "authorization": "Bearer CB",
    }
    metrics = completion.pop("metrics")
    assert completion == {
        "rollout_id": "R1",
        "status": "COMPLETED",
        "final_messages": [
            {"role": "user", "content": "What is 6 * 7?"},
            {"role": "assistant", "content": "#### 42"},
        ],
        "finish_reason": "stop",
        "reward": 1.0,
        "extra_fields": {},
        "authorization": "Bearer CB",
    }
    assert metrics.pop("total_latency_ms") >= metrics.pop("llm_latency_ms") > 0
    assert metrics == {
        "tool_latency_ms": 2.0,
        "num_llm_calls": 1,
        "num_tool_calls": 1,
        "prompt_tokens": 5,
        "response_tokens": 3,
        "max_context_tokens": 0,
    }
    event = json.loads((tmp_path / "R1.jsonl").read_text())
    assert event == {"event": "start", "rollout_id": "R1", "row": {"ground_truth": "42"}}


@pytest.mark.parametrize("key", [None, "Bearer wrong", "Bearer k\u00e9y".encode(), *GOOD_KEYS])
async def test_the_key_is_checked_before_the_body_is_read(key: Any) -> None:
    read = []

    async def body() -> AsyncIterator[bytes]:
        read.append(True)
        yield b"{}"

    headers = {} if key is None else {"Authorization": key}
    async with served(Calculator(), api_key="osm_rollout_k") as server:
        reply = await server.post("/v1/rollout/init", content=body(), headers=headers)
        health = await server.get("/platform/health", headers=headers)
    if key in GOOD_KEYS:
        assert (reply.status_code, read, health.status_code) == (422, [True], 200)
    else:
        assert (reply.status_code, read, health.status_code) == (401, [], 401)
        assert reply.json() == {"detail": "Invalid or missing API key"}


async def test_health_routes() -> None:
    expected = {
        "status": "healthy",
        "agent_loop": "calculator",
        "active_rollouts": 0,
        "completed_rollouts": 0,
    }
    async with served(Calculator()) as server:
        assert (await server.get("/health")).json() == expected
        assert (await server.get("/platform/health")).status_code == 404
        schema = (await server.get("/openapi.json")).json()
    assert "calculator" in schema["info"]["title"]
    assert "/v1/rollout/init" in schema["paths"]


@pytest.mark.parametrize(
    "changes",
    [
        {"rollout_id": "../x"},
        {"rollout_id": "a\\b"},
        {"rollout_id": ".."},
        {"rollout_id": "a\nb"},
        {"rollout_id": "a" * 257},
        {"rollout_id": "  "},
        {"rollout_id": ""},
        {"server_url": "ftp://controller"},
        {"server_url": "file:///etc/passwd"},
        {"server_url": "http://controller/\r\nX-Other: y"},
        {"server_url": "http://controller/\0"},
        {"server_url": "http://"},
        {"server_url": "http://controller:99999"},
        {"server_url": "http://" + "\u2603" * 300},
        {"server_url": "http://user:password@controller"},
        {"server_url": "http://controller/?path="},
        {"api_key": "k\r\nX-Other: y"},
        {"api_key": "schl\u00fcssel"},
        {"metadata": {"much": "m" * 1_100_000}},
        {"messages": None},
    ],
)
async def test_invalid_requests(trainer: Trainer, changes: dict[str, Any], tmp_path: Path) -> None:
    """Also weakness 1: no id leads a debug file out of its directory."""
    agent = Calculator()
    async with served(agent, debug_dir=tmp_path / "log") as server:
        reply = await server.post("/v1/rollout/init", json=trainer.init(**changes))
    assert reply.status_code == 422
    (problem,) = reply.json()["detail"]
    assert problem["loc"] == ["body", next(iter(changes))]
    assert (agent.asked_for_tools, list(tmp_path.rglob("*.jsonl"))) == (0, [])


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"<html>", b'{"rollout_id":' * 5000])
async def test_malformed_bodies(body: bytes) -> None:
    async with served(Calculator()) as server:
        assert (await server.post("/v1/rollout/init", content=body)).status_code == 422


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_of_50_mb_is_refused_early(declared: bool) -> None:
    sent = []

    async def body() -> AsyncIterator[bytes]:
        for _ in range(50):
            sent.append(1)
            yield b"x" * 1_000_000

    headers = {"Content-Length": "50000000"} if declared else {}
    async with served(Calculator()) as server:
        reply = await server.post("/v1/rollout/init", content=body(), headers=headers)
    assert reply.status_code == 413
    assert len(sent) == 0 if declared else len(sent) < 20


async def test_weakness_2_nothing_runs_without_tools_and_a_retry_runs_once(trainer: Trainer) -> None:
    agent = Unready()
    async with served(agent) as server:
        refused = await server.post("/v1/rollout/init", json=trainer.init())
        assert refused.status_code == 500
        assert "the tool server is unavailable" in refused.json()["detail"]
        assert (agent.runs, (await server.get("/health")).json()["active_rollouts"]) == (0, 0)
        assert (await server.post("/v1/rollout/init", json=trainer.init())).status_code == 202
        await ended(server)
    assert (agent.runs, len(trainer.offers)) == (1, 1)


async def test_a_repeated_request_gets_the_first_reply(trainer: Trainer) -> None:
    agent = Calculator()
    async with served(agent) as server:
        first = await server.post("/v1/rollout/init", json=trainer.init("R1", idempotency_key="once"))
        again = await server.post("/v1/rollout/init", json=trainer.init("R2", idempotency_key="once"))
        await ended(server)
        after = await server.post("/v1/rollout/init", json=trainer.init("R3", idempotency_key="once"))
        assert first.content == again.content == after.content
    assert (agent.asked_for_tools, agent.runs, len(trainer.offers)) == (1, 1, 1)


async def test_weakness_13_valid_tools_need_no_description(trainer: Trainer) -> None:
    from osmosis_ai.rollout import validate_agent_loop

    bare = {"type": "function", "function": {"name": "look-up"}}

    class Bare(Calculator):
        def get_tools(self, request: Any) -> list[Any]:
            return [bare, ADD]

    assert validate_agent_loop(Bare()).valid
    async with served(Bare()) as server:
        accepted = await server.post("/v1/rollout/init", json=trainer.init())
        assert accepted.status_code == 202
        described = [
            (tool["function"]["name"], tool["function"]["description"]) for tool in accepted.json()["tools"]
        ]
        assert described == [("look-up", ""), ("add", "Add two numbers.")]
        assert (await trainer.completed())[0]["status"] == "COMPLETED"


class Mute(Exception):
    """An error without text."""

    def __str__(self) -> str:
        raise RuntimeError


def _raise(error: Exception) -> Any:
    raise error


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (lambda ctx: 1 / 0, "division by zero"),
        (lambda ctx: ctx.error("no tools today"), "no tools today"),
        (lambda ctx: "done", "returned str"),
        (lambda ctx: ctx.complete([], reward=float("nan")), "not a finite number"),
        (lambda ctx: ctx.complete([{"role": "user", "content": object()}]), "cannot be reported"),
        (lambda ctx: ctx.complete("all of it"), "cannot be reported"),
        (lambda ctx: exec("raise SystemExit(3)"), "tried to exit the process (status 3)"),
        (lambda ctx: _raise(Mute()), "Mute, whose message is unavailable (RuntimeError)"),
    ],
)
async def test_a_failing_agent_is_reported_once(trainer: Trainer, end: Any, message: str) -> None:
    async with served(Does(end)) as server:
        assert (await server.post("/v1/rollout/init", json=trainer.init())).status_code == 202
        await ended(server)
    (completion,) = trainer.completions
    assert (completion["status"], completion["finish_reason"]) == ("ERROR", "error")
    assert message in completion["error_message"]
    assert (completion["final_messages"], len(trainer.offers)) == ([], 1)
    assert "reward" not in completion
    assert completion["metrics"]["total_latency_ms"] > 0


def hurried(*, timeout_s: int = 60) -> RolloutSettings:
    """Return settings without retries of single calls."""
    client = RolloutClientSettings(timeout_seconds=timeout_s, max_retries=0, complete_rollout_retries=0)
    return RolloutSettings(client=client)


def room_for(waiting: int) -> RolloutSettings:
    return RolloutSettings(server=RolloutServerSettings(max_queued_rollouts=waiting))


async def start(server: Any, trainer: Trainer, rollout_id: str = "R1", **changes: Any) -> None:
    reply = await server.post("/v1/rollout/init", json=trainer.init(rollout_id, **changes))
    assert reply.status_code == 202, reply.text


@pytest.mark.parametrize(
    ("statuses", "lost"),
    [([201], False), ([202], False), ([204], False), ([503, 429, 500, 200], False), ([400], True)],
)
async def test_weaknesses_3_and_4_a_completion_is_offered_until_2xx_or_refusal(
    trainer: Trainer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    statuses: list[int],
    lost: bool,
) -> None:
    monkeypatch.setattr(callback_delivery, "FIRST_PAUSE_S", 0.0)
    trainer.refusals = [*statuses]
    async with served(Calculator(), settings=hurried()) as server:
        await start(server, trainer)
        await ended(server)
    first = trainer.offers[0]
    assert first["status"] == "COMPLETED"
    assert trainer.offers == [first] * len(statuses)
    message = "rollout R1: its outcome (COMPLETED) is lost: the controller refused it"
    assert (message in caplog.text) is lost


async def test_a_shutdown_reports_running_and_waiting_rollouts(trainer: Trainer) -> None:
    agent = Held()
    async with served(agent, max_concurrent=1) as server:
        await start(server, trainer, "R1")
        await start(server, trainer, "R2")
        await agent.started.wait()
    reports = {offer["rollout_id"]: offer for offer in trainer.completions}
    assert sorted(reports) == ["R1", "R2"]
    assert len(trainer.offers) == 2
    for offer in reports.values():
        # By this finish reason the controller runs the rollout again instead of counting it.
        assert (offer["status"], offer["finish_reason"]) == ("ERROR", "cancelled")
        assert "shut down" in offer["error_message"]


async def test_a_full_server_asks_to_retry_later(trainer: Trainer) -> None:
    agent = Held()
    async with served(agent, max_concurrent=1, settings=room_for(1)) as server:
        await start(server, trainer, "R1")
        await start(server, trainer, "R2")
        refused = await server.post("/v1/rollout/init", json=trainer.init("R3"))
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "5")
        again = await server.post("/v1/rollout/init", json=trainer.init("R1"))
        assert again.status_code == 202
        agent.released.set()
        await trainer.completed(2)
        await start(server, trainer, "R3")
        await ended(server, 3)
    assert sorted(offer["rollout_id"] for offer in trainer.offers) == ["R1", "R2", "R3"]


SOON = RolloutSettings(
    server=RolloutServerSettings(
        registration_readiness_timeout_seconds=60, registration_readiness_poll_interval_seconds=0.05
    )
)
REMOTE = Registration(
    Credentials(token="osm_u_canary", platform_url="https://platform.example", source="environment"),
    host="0.0.0.0",
    port=9000,
    agent_loop_name="calculator",
)


PLATFORM_URL = "http://127.0.0.1:8484"
REGISTERED = {
    "id": "rs_1",
    "status": "healthy",
    "health_check_result": {"server_info": {"active_rollouts": 0}},
}


class Platform:
    """Routes of a platform that accepts registrations, and the health of the server under test, which has no socket."""

    def __init__(self, router: respx.MockRouter) -> None:
        self.register = router.post(f"{PLATFORM_URL}/api/cli/rollout-server/register").respond(
            json=REGISTERED
        )
        self.servers = router.get(f"{PLATFORM_URL}/api/cli/rollout-servers").respond(
            json={"rollout_servers": [], "total_count": 0}
        )
        self.remove = router.delete(f"{PLATFORM_URL}/api/cli/rollout-servers/calculator").respond(json={})
        router.get("http://127.0.0.1:9000/health").respond(json={})

    def registrations(self) -> list[dict[str, Any]]:
        return [json.loads(call.request.content) for call in self.register.calls]


@pytest.fixture
def platform() -> Iterator[Platform]:
    with respx.mock(assert_all_called=False) as router:
        yield Platform(router)


@pytest.fixture
def detected(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record each detection of the public address, which needs no network here."""
    calls: list[bool] = []
    monkeypatch.setattr(network, "detect_public_ip", lambda: calls.append(True) or "203.0.113.7")
    return calls


async def register(**options: Any) -> str:
    """Serve an agent until the outcome of its registration is printed, and return that line."""
    lines: asyncio.Queue[str] = asyncio.Queue()
    login = Credentials(token="osm_u_canary", platform_url=PLATFORM_URL, source="environment")
    options = {"server_host": "127.0.0.1", "server_port": 9000, "credentials": login, **options}
    async with served(Calculator(), settings=SOON, say=lines.put_nowait, **options) as server:
        line = await asyncio.wait_for(lines.get(), 60)
        assert (await server.get("/health")).status_code == 200
    return line


async def test_registration(platform: Platform, detected: list[bool]) -> None:
    line = await register(api_key="osm_rollout_k")
    assert line == f"[OK] Registered with {PLATFORM_URL} as 127.0.0.1:9000 (0 active rollouts)"
    assert platform.registrations() == [
        {"host": "127.0.0.1", "port": 9000, "agent_loop_name": "calculator", "api_key": "osm_rollout_k"}
    ]
    assert platform.register.calls.last.request.headers["Authorization"] == "Bearer osm_u_canary"
    platform.register.respond(json={**REGISTERED, "status": "unhealthy"})
    assert (await register()).startswith("[WARNING] Registered but health check failed: ")
    assert detected == []


async def test_weakness_10_the_public_address_is_detected_only_to_register_an_unknown_one(
    platform: Platform, detected: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(Calculator(), server_host="0.0.0.0", server_port=1) as server:
        assert (await server.get("/health")).status_code == 200
    await register(server_host="0.0.0.0", public_host="agents.example")
    await register(server_host="0.0.0.0")  # for a platform on this machine
    assert detected == []
    assert [sent["host"] for sent in platform.registrations()] == ["agents.example", "127.0.0.1"]
    assert reachable_host(REMOTE) == "203.0.113.7"
    assert detected == [True]

    def fail() -> str:
        raise network.PublicIPDetectionError("no answer")

    monkeypatch.setattr(network, "detect_public_ip", fail)
    with pytest.raises(OsmosisError, match="this machine's public address is not known") as refused:
        reachable_host(REMOTE)
    assert refused.value.hint == "give it with --public-host"


async def test_an_agent_is_registered_with_its_git_repository(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    await register()
    repository = make_workspace(tmp_path / "maze").root
    git(repository, "remote", "add", "origin", "git@github.com:Fern/Maze.git")
    monkeypatch.chdir(repository)
    await register()
    sent = [call.request.headers.get("X-Osmosis-Git") for call in platform.register.calls]
    assert sent == [None, "fern/maze"]


@pytest.mark.parametrize("status", [401, 403, 500])
async def test_a_refused_registration_is_one_line_without_the_key(platform: Platform, status: int) -> None:
    platform.register.respond(status, json={"error": "no, not with osm_rollout_canary"})
    line = await register(api_key="osm_rollout_canary")
    assert line.startswith(f"[WARNING] Failed to register with {PLATFORM_URL}: ")
    assert "\n" not in line
    assert "canary" not in line


@pytest.mark.parametrize("in_a_checkout", [True, False])
async def test_a_server_unregisters_unless_another_has_its_name(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_a_checkout: bool
) -> None:
    monkeypatch.chdir(make_checkout(tmp_path / "maze").root if in_a_checkout else tmp_path)
    own = {"id": "rs_1", "name": "calculator", "host": "127.0.0.1", "port": 9000, "status": "healthy"}
    for listed, removals in ({**own, "host": "10.0.0.7"}, 0), (own, 1):
        platform.servers.respond(json={"rollout_servers": [listed], "total_count": 1})
        await register()
        assert platform.remove.call_count == removals


async def test_memory_of_unfinished_rollouts_is_bounded(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osmosis_ai.rollout.server.state.HELD_BYTES", 25_000)
    agent = Held()
    large = {"metadata": {"much": "m" * 20_000}}
    async with served(agent) as server:
        await start(server, trainer, "R1", **large)
        refused = await server.post("/v1/rollout/init", json=trainer.init("R2", **large))
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "5")
        await start(server, trainer, "R3")
        agent.released.set()
        await trainer.completed(2)
        await asyncio.gather(*server_state(server).rollout_tasks.values())
        await start(server, trainer, "R2", **large)
        await trainer.completed(3)


def server_state(server: Any) -> Any:
    return server._transport.app.state.rollouts


async def test_memory_of_finished_rollouts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osmosis_ai.rollout.server.state.REMEMBERED_KEYS", 2)
    state, task = AppState(), asyncio.ensure_future(asyncio.sleep(0))
    for key in "abcd":
        state.mark_started(key, task, b"reply")
        state.mark_completed(key)
    assert [key for key in "abcd" if state.reply_to(key) is not None] == ["c", "d"]
    await task


async def test_a_silent_controller(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    monkeypatch.setattr("osmosis_ai.rollout.server.agent_loop.COMPLETION_WINDOW_S", 0.1)
    silence = await asyncio.start_server(silent, "127.0.0.1", 0)
    host, port = silence.sockets[0].getsockname()
    async with silence, served(Calculator(), settings=hurried(timeout_s=1)) as server:
        await start(server, trainer, server_url=f"http://{host}:{port}")
        (rollout,) = server_state(server).rollout_tasks.values()
        await rollout
    assert "rollout R1: its outcome (ERROR) is lost: the controller did not accept it" in caplog.text
    assert f"http://{host}:{port}/v1/chat/completions did not answer within 1 s" in caplog.text
