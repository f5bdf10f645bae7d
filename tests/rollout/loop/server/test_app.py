"""A served agent over HTTP: the protocol, the one outcome of every rollout, and its registration."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from osmosis_ai.api.credentials import Credentials
from osmosis_ai.errors import OsmosisError
from osmosis_ai.rollout import network
from osmosis_ai.rollout.config import RolloutClientSettings, RolloutServerSettings, RolloutSettings
from osmosis_ai.rollout.server import callback_delivery
from osmosis_ai.rollout.server.registration import Registration, reachable_host
from osmosis_ai.rollout.server.state import AppState
from tests.logins import make_checkout
from tests.rollout.world import listening
from tests.workspace.builders import git, make_workspace

from .agents import ADD, Calculator, Does, Held, Unready
from .trainer import Trainer, served

KEY = {"Authorization": "Bearer osm_rollout_k"}
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


async def test_a_rollout_is_initiated_asks_its_model_and_completes_in_the_exact_words_of_the_protocol(
    trainer: Trainer, tmp_path: Path
) -> None:
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


@pytest.mark.parametrize(
    ("key", "lets_in"),
    [
        (None, False),
        ("Bearer wrong", False),
        ("Bearer k\u00e9y".encode(), False),
        ("bearer osm_rollout_k", True),
        ("osm_rollout_k", True),
    ],
)
async def test_a_request_without_the_key_is_refused_before_its_body_is_read(key: Any, lets_in: bool) -> None:
    read = []

    async def body() -> AsyncIterator[bytes]:
        read.append(True)
        yield b"{}"

    headers = {} if key is None else {"Authorization": key}
    async with served(Calculator(), api_key="osm_rollout_k") as server:
        reply = await server.post("/v1/rollout/init", content=body(), headers=headers)
        health = await server.get("/platform/health", headers=headers)
    assert (reply.status_code, bool(read), health.status_code) == (
        (422, True, 200) if lets_in else (401, False, 401)
    )
    if not lets_in:
        assert reply.json() == {"detail": "Invalid or missing API key"}


async def test_health_is_open_and_the_platform_s_needs_a_key_to_exist() -> None:
    told = {"status": "healthy", "agent_loop": "calculator", "active_rollouts": 0, "completed_rollouts": 0}
    async with served(Calculator()) as server:
        assert (await server.get("/health")).json() == told
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
        {"server_url": "ftp://controller"},
        {"server_url": "file:///etc/passwd"},
        {"server_url": "http://controller/\r\nX-Other: y"},
        {"server_url": "http://controller/\0"},
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
async def test_a_request_that_makes_no_sense_is_refused_and_nothing_starts(
    trainer: Trainer, changes: dict[str, Any], tmp_path: Path
) -> None:
    """Also weakness 1: no id leads a debug file out of its directory."""
    agent = Calculator()
    async with served(agent, debug_dir=tmp_path / "log") as server:
        reply = await server.post("/v1/rollout/init", json=trainer.init(**changes))
    assert reply.status_code == 422
    (problem,) = reply.json()["detail"]
    assert problem["loc"] == ["body", next(iter(changes))]
    assert (agent.asked_for_tools, list(tmp_path.rglob("*.jsonl"))) == (0, [])


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"<html>", b'{"rollout_id":' * 5000])
async def test_a_body_that_is_no_request_is_refused(body: bytes) -> None:
    async with served(Calculator()) as server:
        assert (await server.post("/v1/rollout/init", content=body)).status_code == 422


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_of_50_mb_is_refused_once_it_is_known_to_be_too_large(declared: bool) -> None:
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


async def test_weakness_2_nothing_runs_when_the_tools_cannot_be_told_and_a_retry_runs_it_once(
    trainer: Trainer,
) -> None:
    agent = Unready()
    async with served(agent) as server:
        refused = await server.post("/v1/rollout/init", json=trainer.init())
        assert refused.status_code == 500
        assert "the tool server is away" in refused.json()["detail"]
        assert (agent.runs, (await server.get("/health")).json()["active_rollouts"]) == (0, 0)
        assert (await server.post("/v1/rollout/init", json=trainer.init())).status_code == 202
        await trainer.completed()
    assert (agent.runs, len(trainer.offers)) == (1, 1)


async def test_a_repeated_request_gets_the_first_one_s_answer_while_it_runs_and_after(
    trainer: Trainer,
) -> None:
    agent = Calculator()
    async with served(agent) as server:
        first = await server.post("/v1/rollout/init", json=trainer.init("R1", idempotency_key="once"))
        again = await server.post("/v1/rollout/init", json=trainer.init("R2", idempotency_key="once"))
        await trainer.completed()
        after = await server.post("/v1/rollout/init", json=trainer.init("R3", idempotency_key="once"))
        assert first.content == again.content == after.content
    assert (agent.asked_for_tools, agent.runs, len(trainer.offers)) == (1, 1, 1)


async def test_weakness_13_tools_that_are_valid_are_served_without_their_descriptions_too(
    trainer: Trainer,
) -> None:
    from osmosis_ai.rollout.validator import validate_agent_loop

    bare = {"type": "function", "function": {"name": "look-up"}}

    class Bare(Calculator):
        def get_tools(self, request: Any) -> list[Any]:
            return [bare, ADD]

    assert validate_agent_loop(Bare()).valid
    async with served(Bare()) as server:
        accepted = await server.post("/v1/rollout/init", json=trainer.init())
        assert accepted.status_code == 202
        assert [tool["function"]["name"] for tool in accepted.json()["tools"]] == ["look-up", "add"]
        assert (await trainer.completed())[0]["status"] == "COMPLETED"


class Mute(Exception):
    """Cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError


def _raise(error: Exception) -> Any:
    raise error


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (lambda ctx: 1 / 0, "division by zero"),
        (lambda ctx: ctx.error("no tools today"), "no tools today"),
        (lambda ctx: "done", "returned str"),
        (lambda ctx: ctx.complete([], reward=float("nan")), "not a finite number"),
        (lambda ctx: ctx.complete([{"role": "user", "content": object()}]), "cannot be reported"),
        (lambda ctx: ctx.complete("all of it"), "cannot be reported"),
        (lambda ctx: exec("raise SystemExit(3)"), "tried to exit the process (status 3)"),
        (lambda ctx: _raise(Mute()), "Mute, whose text cannot be had (RuntimeError)"),
    ],
)
async def test_whatever_an_agent_does_its_rollout_is_reported_once(
    trainer: Trainer, told: Any, message: str
) -> None:
    async with served(Does(told)) as server:
        assert (await server.post("/v1/rollout/init", json=trainer.init())).status_code == 202
        (completion,) = await trainer.completed()
    assert (completion["status"], completion["finish_reason"]) == ("ERROR", "error")
    assert message in completion["error_message"]
    assert (completion["final_messages"], len(trainer.offers)) == ([], 1)
    assert completion["metrics"]["total_latency_ms"] > 0


def hurried(*, timeout_s: int = 60) -> RolloutSettings:
    """Return settings of a server that tries once what may be tried again."""
    return RolloutSettings(
        client=RolloutClientSettings(
            timeout_seconds=timeout_s,
            max_retries=0,
            complete_rollout_retries=0,
            retry_base_delay=0.1,
            retry_max_delay=1,
        )
    )


def room_for(waiting: int) -> RolloutSettings:
    return RolloutSettings(server=RolloutServerSettings(max_queued_rollouts=waiting))


async def start(server: Any, trainer: Trainer, rollout_id: str = "R1", **changes: Any) -> None:
    reply = await server.post("/v1/rollout/init", json=trainer.init(rollout_id, **changes))
    assert reply.status_code == 202, reply.text


async def init(app: Any, trainer: Trainer, rollout_id: str) -> int:
    """Request a rollout as cheaply as one can, and return the status."""
    body = json.dumps(trainer.init(rollout_id)).encode()
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    path = "/v1/rollout/init"
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "headers": []}
    await app({**scope, "query_string": b"", "root_path": "", "http_version": "1.1"}, receive, send)
    return statuses[0]


@pytest.mark.parametrize("status", [201, 202, 204])
async def test_weakness_4_any_2xx_takes_a_completion(trainer: Trainer, status: int) -> None:
    trainer.refusals = [status]
    async with served(Calculator()) as server:
        await start(server, trainer)
        await trainer.completed()
    assert len(trainer.offers) == 1


async def test_weakness_3_a_refused_completion_is_logged_and_no_error_follows_it(
    trainer: Trainer, caplog: pytest.LogCaptureFixture
) -> None:
    trainer.refusals = [400]
    async with served(Calculator()) as server:
        await start(server, trainer)
        await trainer.offered()
    assert [offer["status"] for offer in trainer.offers] == ["COMPLETED"]
    assert "rollout R1: its outcome (COMPLETED) is lost: the controller refused it" in caplog.text


async def test_a_controller_that_is_away_for_a_while_is_offered_the_same_completion_again(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callback_delivery, "FIRST_PAUSE_S", 0.0)
    trainer.refusals = [503, 429, 500]
    async with served(Calculator(), settings=hurried()) as server:
        await start(server, trainer)
        await trainer.completed()
    first, *others = trainer.offers
    assert (first["status"], len(others)) == ("COMPLETED", 3)
    assert all(offer == first for offer in others)


async def test_a_shutdown_reports_what_it_cuts_off_and_what_still_waits(trainer: Trainer) -> None:
    agent = Held()
    async with served(agent, max_concurrent=1) as server:
        await start(server, trainer, "R1")
        await start(server, trainer, "R2")
        await agent.started.wait()
    told = {offer["rollout_id"]: offer for offer in trainer.completions}
    assert sorted(told) == ["R1", "R2"]
    assert len(trainer.offers) == 2
    for offer in told.values():
        # The word by which a controller knows that the rollout is to be made again, and not to be counted.
        assert (offer["status"], offer["finish_reason"]) == ("ERROR", "cancelled")
        assert "shut down" in offer["error_message"]


async def test_a_full_server_says_when_to_come_again_and_keeps_what_it_took(
    trainer: Trainer,
) -> None:
    agent = Held()
    async with served(agent, max_concurrent=1, settings=room_for(1)) as server:
        await start(server, trainer, "R1")
        await start(server, trainer, "R2")
        refused = await server.post("/v1/rollout/init", json=trainer.init("R3"))
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "5")
        again = await server.post("/v1/rollout/init", json=trainer.init("R1"))
        assert again.status_code == 202
        agent.let_go.set()
        await trainer.completed(2)
        await start(server, trainer, "R3")
        await trainer.completed(3)
    assert sorted(offer["rollout_id"] for offer in trainer.offers) == ["R1", "R2", "R3"]


@pytest.mark.integration
async def test_of_5000_requests_at_once_each_is_taken_or_sent_away_and_what_is_taken_is_reported_once(
    trainer: Trainer,
) -> None:
    agent = Calculator()
    async with served(agent, max_concurrent=64, settings=room_for(300)) as server:
        app = server._transport.app
        statuses = await asyncio.gather(*(init(app, trainer, f"R{number}") for number in range(5000)))
        taken = {f"R{number}" for number, status in enumerate(statuses) if status == 202}
        assert set(statuses) == {202, 429}
        await trainer.completed(len(taken))
    assert sorted(offer["rollout_id"] for offer in trainer.offers) == sorted(taken)
    assert agent.runs == len(taken) >= 364


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: web.Response(text="<html>sign in</html>", content_type="text/html"),
        lambda _: web.json_response({"usage": None}),
        lambda _: web.Response(status=404, text="<html>"),
    ],
)
async def test_a_controller_that_answers_something_else_fails_the_rollout_in_one_line(
    trainer: Trainer, answer: Any
) -> None:
    trainer.on_chat = answer
    async with served(Calculator(), settings=hurried()) as server:
        await start(server, trainer)
        (told,) = await trainer.completed()
    assert told["status"] == "ERROR"
    assert "\n" not in told["error_message"]


async def test_a_controller_that_redirects_does_not_lead_the_key_to_another_host(trainer: Trainer) -> None:
    async with Trainer().serving() as other:
        trainer.on_chat = lambda _: web.Response(
            status=307, headers={"Location": f"{other.url}/v1/chat/completions"}
        )
        trainer.refusals, trainer.elsewhere = [307], other.url
        async with served(Calculator(), settings=hurried()) as server:
            await start(server, trainer)
            (told,) = await trainer.offered()
    assert told["status"] == "ERROR"
    assert (other.chats, other.offers) == ([], [])


SOON = RolloutSettings(
    server=RolloutServerSettings(
        registration_readiness_timeout_seconds=60, registration_readiness_poll_interval_seconds=0.05
    )
)
ELSEWHERE = Registration(
    Credentials(token="osm_u_canary", platform_url="https://platform.example", source="environment"),
    host="0.0.0.0",
    port=9000,
    agent_loop_name="calculator",
)


class Platform:
    """Answers registrations as it is told to, and keeps them."""

    def __init__(self) -> None:
        self.url = ""
        self.status = 200
        self.answer: dict[str, Any] = {
            "id": "rs_1",
            "status": "healthy",
            "health_check_result": {"server_info": {"active_rollouts": 0}},
        }
        self.registrations: list[dict[str, Any]] = []
        self.repositories: list[str | None] = []
        self.listed: list[dict[str, Any]] = []
        self.removed: list[str] = []

    async def _register(self, request: web.Request) -> web.Response:
        sent = {**await request.json(), "authorization": request.headers["Authorization"]}
        self.repositories.append(request.headers.get("X-Osmosis-Git"))
        self.registrations.append(sent)
        return web.json_response(self.answer, status=self.status)

    async def _list(self, _: web.Request) -> web.Response:
        return web.json_response({"rollout_servers": self.listed, "total_count": len(self.listed)})

    async def _remove(self, request: web.Request) -> web.Response:
        self.removed.append(request.match_info["name"])
        return web.json_response({})

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({})

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Platform]:
        app = web.Application()
        app.router.add_post("/api/cli/rollout-server/register", self._register)
        app.router.add_get("/api/cli/rollout-servers", self._list)
        app.router.add_delete("/api/cli/rollout-servers/{name}", self._remove)
        # The server under test has no socket of its own here: this is who answers its readiness check.
        app.router.add_get("/health", self._health)
        async with listening(app) as self.url:
            self.port = int(self.url.rpartition(":")[2])
            yield self


@pytest.fixture
async def platform() -> AsyncIterator[Platform]:
    async with Platform().serving() as running:
        yield running


@pytest.fixture
def asked_for_address(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    asked: list[bool] = []

    def detect() -> str:
        asked.append(True)
        return "203.0.113.7"

    monkeypatch.setattr(network, "detect_public_ip", detect)
    return asked


async def register(platform: Platform, *, told: list[str] | None = None, **options: Any) -> str:
    """Serve an agent until its registration is told of; return what was told, and keep what is told afterwards."""
    lines: asyncio.Queue[str] = asyncio.Queue()
    login = Credentials(token="osm_u_canary", platform_url=platform.url, source="environment")
    options = {"server_host": "127.0.0.1", "server_port": platform.port, "credentials": login, **options}
    async with served(Calculator(), settings=SOON, say=lines.put_nowait, **options) as server:
        line = await asyncio.wait_for(lines.get(), 60)
        assert (await server.get("/health")).status_code == 200
    while told is not None and not lines.empty():
        told.append(lines.get_nowait())
    return line


async def test_a_healthy_registration_is_told_and_carries_address_name_and_key(
    platform: Platform, asked_for_address: list[bool]
) -> None:
    line = await register(platform, api_key="osm_rollout_k")
    assert line == f"[OK] Registered with {platform.url} as 127.0.0.1:{platform.port} (0 active rollouts)"
    assert platform.registrations == [
        {
            "host": "127.0.0.1",
            "port": platform.port,
            "agent_loop_name": "calculator",
            "api_key": "osm_rollout_k",
            "authorization": "Bearer osm_u_canary",
        }
    ]
    assert asked_for_address == []


async def test_weakness_10_the_network_is_asked_for_an_address_only_to_register_one_that_was_not_given(
    platform: Platform, asked_for_address: list[bool]
) -> None:
    async with served(Calculator(), server_host="0.0.0.0", server_port=1) as server:
        assert (await server.get("/health")).status_code == 200
    await register(platform, server_host="0.0.0.0", public_host="agents.example")
    assert asked_for_address == []
    await register(platform, server_host="0.0.0.0")  # for a platform on this very machine
    assert asked_for_address == []
    assert [sent["host"] for sent in platform.registrations] == ["agents.example", "127.0.0.1"]
    assert reachable_host(ELSEWHERE) == "203.0.113.7"
    assert asked_for_address == [True]


async def test_an_agent_is_registered_for_the_repository_it_is_served_from_if_there_is_one(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    await register(platform)
    repository = make_workspace(tmp_path / "maze").root
    git(repository, "remote", "add", "origin", "git@github.com:Fern/Maze.git")
    monkeypatch.chdir(repository)
    await register(platform)
    assert platform.repositories == [None, "fern/maze"]


def test_a_server_whose_address_nobody_knows_says_how_to_give_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody_knows() -> str:
        raise network.PublicIPDetectionError("nobody answered")

    monkeypatch.setattr(network, "detect_public_ip", nobody_knows)
    with pytest.raises(OsmosisError, match="this machine's public address is not known") as refused:
        reachable_host(ELSEWHERE)
    assert refused.value.hint == "give it with --public-host"


@pytest.mark.parametrize("status", [401, 403, 500])
async def test_a_refused_registration_is_told_in_one_line_without_the_key(
    platform: Platform, status: int
) -> None:
    platform.status = status
    platform.answer = {"error": "no, not with osm_rollout_canary"}
    line = await register(platform, api_key="osm_rollout_canary")
    assert line.startswith(f"[WARNING] Failed to register with {platform.url}: ")
    assert "\n" not in line
    assert "canary" not in line


@pytest.mark.parametrize("in_a_checkout", [True, False])
async def test_who_registered_itself_withdraws_at_its_end_unless_another_has_its_name(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_a_checkout: bool
) -> None:
    monkeypatch.chdir(make_checkout(tmp_path / "maze").root if in_a_checkout else tmp_path)
    own = {
        "id": "rs_1",
        "name": "calculator",
        "host": "127.0.0.1",
        "port": platform.port,
        "status": "healthy",
    }
    platform.listed = [{**own, "host": "10.0.0.7"}]
    await register(platform)
    assert platform.removed == []
    platform.listed = [own]
    await register(platform)
    assert platform.removed == ["calculator"]


async def test_requests_that_wait_take_so_many_bytes_and_no_more_however_few_they_are(
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
        agent.let_go.set()
        await trainer.completed(2)
        await asyncio.gather(*server_state(server).rollout_tasks.values())
        await start(server, trainer, "R2", **large)
        await trainer.completed(3)


def server_state(server: Any) -> Any:
    return server._transport.app.state.rollouts


async def test_answers_to_rollouts_that_have_ended_take_so_many_bytes_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("osmosis_ai.rollout.server.state.REMEMBERED_BYTES", 2500)
    state, task = AppState(), asyncio.ensure_future(asyncio.sleep(0))
    for key in ("a", "b", "c", "d"):
        state.mark_started(key, task, b"x" * 1000)
        state.mark_completed(key)
    assert [key for key in "abcd" if state.reply_to(key) is not None] == ["c", "d"]
    await task


async def test_a_controller_that_never_answers_is_not_waited_for_without_end(
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
