"""Rollouts on a remote agent: the wire, refusals, and agents that disappear."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from osmosis_ai.controller import attempt as attempt_module
from osmosis_ai.controller import remote_agents
from osmosis_ai.controller.attempt import (
    Attempt,
    AttemptResults,
    RolloutRunner,
    RunningAttempt,
    attempt_seeds,
)
from osmosis_ai.controller.callbacks import AttemptTimeouts, CallbackAddress
from osmosis_ai.controller.model_proxy import ProviderProxy
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.controller.remote_agents import (
    AgentAddress,
    AgentAddressError,
    RemoteAgent,
    RemoteAgentError,
    open_agent_session,
    probe_agent,
    require_allowed,
)
from osmosis_ai.controller.server_process import AttemptLostError
from osmosis_ai.datasets import DatasetRow
from osmosis_ai.errors import OsmosisError
from osmosis_ai.llm.client import ModelClient
from osmosis_ai.llm.providers import ModelEndpoint
from osmosis_ai.redaction import Redactor
from tests.controller.served_loop import TOOL, LoopProcess, ServedLoop
from tests.standin_model import Reply, StandInModel

KEY = "K-server"


@dataclass
class Results(AttemptResults):
    """Keeps results and losses."""

    recorded: list[TerminalRecord] = field(default_factory=list)
    losses: list[AttemptLostError] = field(default_factory=list)

    async def record(self, record: TerminalRecord, running: RunningAttempt) -> None:
        self.recorded.append(record)

    def lost(self, attempt: Attempt, loss: AttemptLostError) -> Any:
        self.losses.append(loss)
        return super().lost(attempt, loss)


@dataclass
class World:
    runner: RolloutRunner
    agent: RemoteAgent
    model: StandInModel
    results: Results
    notes: list[str]

    async def make(self, *said: str) -> list[TerminalRecord]:
        """Run one attempt per prompt; return the results in the same order."""
        await self.runner.run_all([attempt(each, number) for number, each in enumerate(said)], self.results)
        return sorted(self.results.recorded, key=lambda record: record.row_index)


def attempt(said: str, number: int = 0) -> Attempt:
    row = DatasetRow(number, [{"role": "user", "content": said}], "42", {"difficulty": "easy"})
    return Attempt(row, number, 0, attempt_seeds(7, number, 0))


def located(port: int, key: str | None = KEY) -> AgentAddress:
    return AgentAddress("127.0.0.1", port, key)


@asynccontextmanager
async def driving(
    port: int,
    *,
    agent_s: float | None = None,
    return_limit_s: float = 60.0,
    locate: Callable[[], AgentAddress] | None = None,
    address: CallbackAddress | None = None,
    artifacts: Path | None = None,
    max_in_flight: int | None = None,
) -> AsyncIterator[World]:
    agent = RemoteAgent(
        locate or (lambda: located(port)), name="the remote agent `loop`", callback_address=address
    )
    notes: list[str] = []
    quick = mock.patch.multiple(remote_agents, POLL_S=0.05, RETURN_LIMIT_S=return_limit_s)
    async with StandInModel() as model:
        endpoint = ModelEndpoint("openai/m", "openai", "m", "openai", model.base_url, "sk-0123456789")
        async with ModelClient(endpoint, max_attempts=1) as client:
            runner = RolloutRunner(
                ProviderProxy(client),
                model_key="bridge",
                server=agent,
                timeouts=AttemptTimeouts(agent_s, None),
                redact=Redactor(),
                note=notes.append,
                trajectory_root=artifacts,
                max_in_flight=max_in_flight,
            )
            with quick:
                async with runner:
                    yield World(runner, agent, model, Results(), notes)


@asynccontextmanager
async def serving(loop: ServedLoop, **options: Any) -> AsyncIterator[World]:
    """Serve an agent in this process and drive it."""
    async with TestServer(loop.app()) as server, driving(server.port, **options) as world:
        yield world


async def test_a_rollout(tmp_path: Path) -> None:
    loop = ServedLoop()
    loop.accept.clear()
    async with serving(loop, artifacts=tmp_path) as world:
        made = asyncio.create_task(world.make("what is 6 times 7?"))
        while not loop.inits:  # noqa: ASYNC110 - the agent has begun, and its acceptance has not arrived
            await asyncio.sleep(0.01)
        loop.accept.set()
        (result,) = await made
        init = loop.inits[0]
        assert {**init, "rollout_id": "R1", "server_url": "http://gate", "api_key": "CB"} == {
            "rollout_id": "R1",
            "server_url": "http://gate",
            "messages": [{"role": "user", "content": "what is 6 times 7?"}],
            "completion_params": {},
            "max_turns": 10,
            "max_tokens_total": 8192,
            "metadata": {
                "row_index": 0,
                "run_index": 0,
                "source_row_index": 0,
                "difficulty": "easy",
                "ground_truth": "42",
            },
            "api_key": "CB",
            "idempotency_key": None,
            "tool_server_url": None,
        }
        assert init["api_key"] not in (KEY, "bridge") and len(init["api_key"]) >= 32
        assert (result.status, result.reward, result.model_calls) == ("success", 1.0, 1)
        assert result.rollout_id == init["rollout_id"]
        assert [status for status, _ in loop.replies] == [200, 200]
        # The model gets the agent's tools, without the nulls, and no parameter of the protocol between controller and agent.
        sent = world.model.requests[0].body
        (tool,) = sent["tools"]
        assert tool["function"]["parameters"]["properties"] == {"a": {"type": "number"}}
        assert tool["function"]["name"] == TOOL["function"]["name"]  # type: ignore[index]
        assert "rollout_id" not in sent and sent["model"] == "m" and isinstance(sent["seed"], int)
    trajectory = json.loads((tmp_path / result.rollout_id / "trajectory.json").read_bytes())
    assert [step["source"] for step in trajectory["steps"]] == ["user", "agent"]
    assert trajectory["extra"]["osmosis"]["label"] == "42"
    assert trajectory["final_metrics"]["total_completion_tokens"] == result.completion_tokens


async def test_failures_of_an_agent() -> None:
    async with serving(ServedLoop()) as world:
        error, missing, nan, right = await world.make("error", "no reward", "nan", "ok")
    assert right.finish_reason == "stop"
    assert (error.boundary, error.category) == ("agent", "exception")
    assert error.error == "the tool broke"
    assert (missing.reward, missing.boundary, missing.category) == (None, "grader", "invalid_value")
    assert "RolloutResult" in (missing.error or "")
    assert (nan.reward, nan.category) == (None, "invalid_value")
    assert right.reward == 1.0


async def test_refused_requests_of_an_agent() -> None:
    loop = ServedLoop()
    async with serving(loop) as world:
        (result,) = await world.make("misuse")
        while len(loop.replies) < 8:  # noqa: ASYNC110 - the agent continues after its rollout
            await asyncio.sleep(0.01)
        assert result.reward == 0.5
        assert [status for status, _ in loop.replies] == [404, 401, 404, 401, 422, 200, 409, 404]
        said = [answer.get("detail") or answer.get("error", {}).get("code") for _, answer in loop.replies]
        assert said[:2] == ["rollout_not_found", "invalid_api_key"]
        assert "has ended" in said[6] or "completed before" in said[6]
        assert said[7] == "rollout_not_found"
        assert loop.inits[0]["api_key"] not in str(loop.replies)


async def test_a_full_agent_and_a_refusal() -> None:
    loop, times = ServedLoop(), []

    def before(body: dict[str, Any]) -> web.Response | None:
        if body["messages"][0]["content"] == "bad":
            return web.json_response({"detail": "metadata exceeds maximum"}, status=422)
        times.append(time.monotonic())
        if len(times) == 1:
            return web.json_response({"detail": "full"}, status=429, headers={"Retry-After": "0.3"})
        return None

    loop.before_init = before
    async with serving(loop) as world:
        right, bad = await world.make("ok", "bad")
    assert right.reward == 1.0
    assert times[1] - times[0] >= 0.3
    assert (bad.boundary, bad.category) == ("rollout_server", "refused")
    assert "422" in (bad.error or "") and "metadata exceeds maximum" in (bad.error or "")


async def test_lost_rollouts_run_again() -> None:
    loop = ServedLoop()
    async with serving(loop) as world:
        held = asyncio.Event()
        world.model.respond = lambda _: Reply(wait_for=held)
        made = asyncio.create_task(world.make("a", "b", "c"))
        while world.model.in_flight < 3:  # noqa: ASYNC110 - all three are running
            await asyncio.sleep(0.01)
        loop.forget()
        held.set()
        results = await made
    assert [result.reward for result in results] == [1.0, 1.0, 1.0]
    assert len(world.results.losses) == 3
    assert len({init["rollout_id"] for init in loop.inits}) == 6
    assert "restarted" in world.notes[0]


async def test_deeply_nested_tools_fail_their_rollout() -> None:
    # More than Python's thousand frames, of which a level takes two before 3.12 and one since, and what orjson still reads.
    loop, nested = ServedLoop(), b'{"tools":[' + b'{"a":' * 1010 + b"1" + b"}" * 1010 + b"]}"
    loop.before_init = lambda body: (
        web.Response(status=202, body=nested) if body["messages"][-1]["content"] == "tools" else None
    )
    async with serving(loop) as world:
        bad, good = await world.make("tools", "ok")
    assert (bad.boundary, bad.category) == ("rollout_server", "refused")
    assert "nested too deeply" in (bad.error or "")
    assert good.reward == 1.0


async def test_an_agent_that_restarts_with_another_key() -> None:
    loop, key = ServedLoop(), [KEY]
    async with (
        TestServer(loop.app()) as server,
        driving(server.port, locate=lambda: located(server.port, key[0])) as world,
    ):
        assert (await world.make("ok"))[0].reward == 1.0
        loop.key = key[0] = "K-another"
        assert [result.reward for result in await world.make("ok")] == [1.0, 1.0]


@pytest.mark.e2e
async def test_a_hundred_rollouts_survive_a_killed_agent() -> None:
    rows = [f"row {number}" for number in range(100)]
    with LoopProcess(KEY, works_on=20) as agent:
        async with driving(agent.port, return_limit_s=600.0) as world:
            made = asyncio.create_task(world.make(*rows))
            await recorded(world, 20)
            agent.kill()
            with await asyncio.to_thread(LoopProcess, KEY, agent.port):
                results = await made
    assert [result.row_index for result in results] == list(range(100))
    assert {result.reward for result in results} == {1.0}
    assert world.results.losses and len(world.results.losses) < 100
    # If it stays killed, the run ends with the reason and keeps its results.
    with LoopProcess(KEY, works_on=20) as agent:
        async with driving(agent.port, return_limit_s=0.3) as world:
            made = asyncio.create_task(world.make(*rows))
            await recorded(world, 20)
            agent.kill()
            with pytest.raises(RemoteAgentError, match=r"did not return within 0\.3 s") as ended:
                await made
            assert ended.value.is_infrastructure
            assert 20 <= len(world.results.recorded) < 100


async def recorded(world: World, count: int) -> None:
    while len(world.results.recorded) < count:  # noqa: ASYNC110 - results are counted, not announced
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("address", ["10.1.2.3", "127.0.0.1", "::1", "64:ff9b::10.1.2.3"])
def test_addresses_of_agents_are_allowed(address: str) -> None:
    require_allowed(address)


@pytest.mark.parametrize(
    "address",
    [
        *("169.254.169.254", "::ffff:169.254.169.254", "::169.254.169.254", "64:ff9b::169.254.169.254"),
        *("::ffff:0:169.254.169.254", "2002:a9fe:a9fe::1", "fe80::1%eth0", "fd00:ec2::254"),
        *("100.100.100.200", "168.63.129.16", "0.0.0.0", "224.0.0.1", "255.255.255.255"),
    ],
)
def test_addresses_of_metadata_services_are_refused(address: str) -> None:
    with pytest.raises(AgentAddressError, match="is refused"):
        require_allowed(address)


@pytest.mark.parametrize(
    "text",
    [
        *("host", "host:", ":9000", "host:0", "host:70000", "a b:1", "http://x:1", "x/y:1", "u@x:1"),
        *("2852039166:80", "0xa9fea9fe:80", "169.254.43518:80", "a.0x1:80", "h\r\nX:80"),
    ],
)
def test_malformed_addresses_are_refused(text: str) -> None:
    with pytest.raises(AgentAddressError):
        AgentAddress.parse(text)


async def test_a_name_of_a_refused_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: Any, **__: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", 80))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    async with open_agent_session(60.0) as http:
        health = await probe_agent(http, AgentAddress("metadata.example", 80, KEY))
    assert health.server_info is None
    assert "169.254.169.254 is refused" in (health.error or "")


async def test_probe_of_an_agent() -> None:
    loop, elsewhere = ServedLoop(), []

    def trap(request: web.Request) -> web.Response:
        elsewhere.append(request.headers.get("Authorization"))
        return web.json_response({"status": "healthy"})

    async with TestServer(loop.app()) as server, open_agent_session(60.0) as http:
        port = server.port
        fine = await probe_agent(http, located(port))
        assert fine.server_info is not None
        assert fine.server_info.to_wire() == {
            "status": "healthy",
            "agent_loop": "loop",
            "active_rollouts": 0,
            "completed_rollouts": 0,
        }
        assert "refuses the key" in str((await probe_agent(http, located(port, "wrong"))).error)
        other = ServedLoop()
        other.health = trap
        async with TestServer(other.app()) as second:
            to = f"http://127.0.0.1:{second.port}/platform/health"
            for answer, expected in (
                (web.Response(status=307, headers={"Location": to}), "HTTP 307"),
                (
                    web.Response(text="<html>", content_type="text/html"),
                    "not the health report of a remote agent",
                ),
                (web.Response(body=b"x" * 2_000_000), "larger than"),
                (web.json_response({"status": "healthy", "agent_loop": "x" * 1000}), "not the health report"),
                (web.Response(status=404), "started without a key"),
                (web.Response(status=503), "HTTP 503"),
            ):
                loop.health = lambda _, answer=answer: answer  # type: ignore[misc]
                health = await probe_agent(http, located(port))
                assert health.server_info is None and expected in str(health.error)
        assert elsewhere == []
    async with open_agent_session(60.0) as http:
        assert "cannot connect" in str((await probe_agent(http, located(port))).error)


async def test_an_agent_that_does_not_count_its_rollouts() -> None:
    loop, polls = ServedLoop(), []

    def health(_: web.Request) -> web.Response:
        polls.append(1)
        return web.json_response({"status": "healthy", "agent_loop": "loop"})

    loop.health = health
    async with serving(loop) as world:
        held = asyncio.Event()
        world.model.respond = lambda _: Reply(wait_for=held)
        made = asyncio.create_task(world.make("a"))
        while not world.model.in_flight:  # noqa: ASYNC110 - the agent is polled
            await asyncio.sleep(0.01)
        polls.clear()
        while len(polls) < 6:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        held.set()
        await made
        assert not world.results.losses


async def test_concurrent_calls_share_the_limit_in_order() -> None:
    loop, free = ServedLoop(), asyncio.Event()
    async with serving(loop, max_in_flight=2) as world:
        world.model.respond = lambda _: Reply(wait_for=free)
        results = [Results() for _ in "1234"]
        calls = [
            asyncio.create_task(
                world.runner.run_all([attempt(f"{number}{name}") for name in "abc"], results[number])
            )
            for number in range(4)
        ]
        while world.model.in_flight < 2:  # noqa: ASYNC110 - the limit is reached
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert world.model.in_flight == 2
        for number in (0, 2):  # one whose attempts run, and one whose attempts wait
            calls[number].cancel()
        await asyncio.gather(calls[0], calls[2], return_exceptions=True)
        free.set()
        await asyncio.gather(calls[1], calls[3])
        begun = [init["messages"][0]["content"] for init in loop.inits]
        assert begun == ["0a", "0b", "1a", "1b", "1c", "3a", "3b", "3c"]
        assert [len(each.recorded) for each in results] == [0, 3, 0, 3]
        world.runner.servers.run = mock.AsyncMock(side_effect=OsmosisError("the servers failed"))  # type: ignore[method-assign]
        failing = [world.runner.run_all([attempt(name)], Results()) for name in "ab"]
        found = await asyncio.gather(*failing, return_exceptions=True)
        assert [str(each) for each in found] == ["the servers failed"] * 2


async def test_an_agent_on_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    async with TestServer(ServedLoop().app()) as server:
        monkeypatch.setattr(AgentAddress, "is_local", lambda _: False)
        with pytest.raises(RemoteAgentError, match="on another machine") as refused:
            async with driving(server.port):
                pass
        assert "OSMOSIS_BRIDGE_HOST" in (refused.value.hint or "")
        given = {"OSMOSIS_BRIDGE_HOST": "localhost.example", "OSMOSIS_BRIDGE_LISTEN": "127.0.0.1"}
        async with driving(server.port, address=CallbackAddress.from_environment(given)) as world:
            assert world.runner.capacity is None


def test_networks_of_served_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSMOSIS_AGENT_NETWORKS", "10.0.0.0/8, fd00::/8, 127.0.0.1")
    for allowed in ("10.9.8.7", "fd00::1", "127.0.0.1"):
        require_allowed(allowed)
    with pytest.raises(AgentAddressError, match="in none of the networks of OSMOSIS_AGENT_NETWORKS"):
        require_allowed("192.168.1.1")
    monkeypatch.setenv("OSMOSIS_AGENT_NETWORKS", "intranet")
    with pytest.raises(OsmosisError, match="'intranet'"):
        require_allowed("10.9.8.7")


async def test_a_rollout_of_a_stopping_agent_runs_again() -> None:
    loop = ServedLoop()
    async with serving(loop) as world:
        (result,) = await world.make("stopping")
    assert (result.reward, len(loop.inits), len(world.results.losses)) == (1.0, 2, 1)
    assert [status for status, _ in loop.replies] == [200, 200, 200]


async def test_conversation_of_a_failed_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, released = threading.Event(), threading.Event()
    save = attempt_module.save_trajectory

    def save_late(*arguments: Any) -> None:
        begun.set()
        assert released.wait(60)
        save(*arguments)

    monkeypatch.setattr(attempt_module, "save_trajectory", save_late)
    async with serving(ServedLoop(), artifacts=tmp_path) as world:
        made = asyncio.create_task(world.make("break"))
        assert await asyncio.to_thread(begun.wait, 60)
        # Until it is saved, the attempt's use counts as in flight.
        assert [used.calls for used in world.runner.used_in_flight()] == [1]
        released.set()
        (broken,) = await made
        assert list(world.runner.used_in_flight()) == []
    assert broken.error == "broke"
    trajectory = json.loads((tmp_path / broken.rollout_id / "trajectory.json").read_bytes())
    assert [step["message"] for step in trajectory["steps"]] == ["break", "ok"]
    assert trajectory["extra"]["osmosis"]["from_model_calls"] is True
