"""Several rollout servers: which one gets a rollout, what a death loses, and how often one is started again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.controller import server_process
from osmosis_ai.controller.server_process import (
    MAX_RESTARTS,
    AttemptLostError,
    ServerPool,
    default_servers,
    granted_cores,
)
from osmosis_ai.processes.service import Service, ServiceDiedError, ServiceError, ServiceSpec
from osmosis_ai.rollout.driver import RolloutOutcome, RolloutRunRequest
from tests.controller.proxy_world import settle

REQUEST = RolloutRunRequest(messages=[], rollout_id="r1")


class FakeServer(Service):
    """A server without a process; ``starts`` lists which of its starts succeed."""

    capacity = 8

    def __init__(self, name: str, *starts: bool) -> None:
        super().__init__(ServiceSpec("the rollout server", [], {}, Path(), restarts=MAX_RESTARTS))
        self.name = name
        self.starts = 0
        self.stopped = False
        self._will = iter(starts)
        self._died: asyncio.Future[ServiceError] = asyncio.get_running_loop().create_future()

    @property
    def base_url(self) -> str:
        return f"http://{self.name}-{self.starts}"

    async def start(self) -> None:
        self.starts += 1
        self.stopped = False
        self._died = asyncio.get_running_loop().create_future()
        if next(self._will, True):
            self.answer = {}
        else:
            self.die("ended before it was ready")
            raise self._died.result()

    async def death(self) -> ServiceError:
        return await asyncio.shield(self._died)

    def failure(self) -> ServiceError | None:
        return self._died.result() if self._died.done() else None

    async def stop(self) -> None:
        self.answer = None
        self.stopped = True

    def die(self, how: str = "ended (exit status 1)") -> None:
        self._died.set_result(ServiceError(f"the rollout server {how}.\nTraceback", "ended", 1))


class FakeDriver:
    """Rollouts that never end, on a server that may be gone."""

    def __init__(self, world: PoolWorld, server: str) -> None:
        self._world, self._server = world, server

    async def run(self, request: RolloutRunRequest) -> RolloutOutcome:
        if self._world.error is not None:
            raise self._world.error
        self._world.running[self._server] += 1
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            self._world.running[self._server] -= 1

    async def aclose(self) -> None:
        pass


class PoolWorld:
    """Servers without processes, on which rollouts never end."""

    def __init__(self, *servers: Sequence[bool], error: Exception | None = None) -> None:
        self.servers = [FakeServer("abc"[place], *starts) for place, starts in enumerate(servers)]
        for server in self.servers:
            server.deaths = self.servers[0].deaths
        self.notes: list[str] = []
        self.running: Counter[str] = Counter()
        self.error = error
        self.pool = ServerPool(
            self.servers,
            connect=lambda base_url: FakeDriver(self, base_url[7]),
            note=self.notes.append,
            reports_load=False,
        )

    async def start(self, *names: str) -> list[asyncio.Task[RolloutOutcome]]:
        """Start a rollout for each name; return when they are where they can be."""
        rollouts = [
            asyncio.create_task(self.pool.run(RolloutRunRequest(messages=[], rollout_id=name)))
            for name in names
        ]
        await settle()
        return rollouts

    async def kill(self, *places: int) -> None:
        for place in places:
            self.servers[place].die()
        await settle()


async def end(rollouts: list[asyncio.Task[RolloutOutcome]]) -> list[BaseException | RolloutOutcome]:
    for rollout in rollouts:
        rollout.cancel()
    return await asyncio.gather(*rollouts, return_exceptions=True)


async def test_a_failed_restart_is_repeated() -> None:
    world = PoolWorld([True, False])
    async with world.pool as pool:
        await world.kill(0)
        assert (world.servers[0].starts, pool.capacity) == (3, 8)
        assert pool.up


async def test_a_server_that_cannot_restart_ends_the_run() -> None:
    world = PoolWorld([True, *(MAX_RESTARTS * [False])])
    async with world.pool as pool:
        await world.kill(0)
        with pytest.raises(ServiceDiedError, match="before it was ready"):
            await pool.run(REQUEST)
        assert not pool.up
        assert world.servers[0].starts == MAX_RESTARTS + 1


async def test_a_failed_connection_to_a_running_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osmosis_ai.controller.server_process._DEATH_NOTICE_S", 0.01)
    world = PoolWorld([], error=ConnectionResetError("reset by peer"))
    async with world.pool as pool:
        with pytest.raises(AttemptLostError, match="reset by peer") as lost:
            await pool.run(REQUEST)
        assert lost.value.death is None


async def test_a_rollout_goes_to_the_server_with_the_fewest() -> None:
    world = PoolWorld([], [], [])
    async with world.pool as pool:
        assert pool.capacity == 24
        assert pool.share(10) == 10
        rollouts = await world.start(*"0123456789")
        assert world.running == {"a": 4, "b": 3, "c": 3}
        await end(rollouts)
    assert all(server.stopped for server in world.servers)


async def test_the_budget_of_restarts_is_shared_and_restored() -> None:
    world = PoolWorld([], [], [])
    async with world.pool as pool:
        for death in range(3 * MAX_RESTARTS):
            pool.attempt_finished()
            await world.kill(death % 3)
        assert not any("continues with" in note for note in world.notes)
        pool.attempt_finished()
        for death in range(MAX_RESTARTS):
            await world.kill(death % 3)
        await world.kill(0)
        assert pool.up
        assert pool.capacity == 16
        assert world.notes[-1].endswith("The run continues with 2 of 3 servers.")
        waiting = await world.start("1", "2", "3")
        await world.kill(1, 2)
        assert not pool.up
        waiting += await world.start("4")
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(each) for each in ends] == [*3 * [AttemptLostError], ServiceDiedError]
        assert "no attempt has finished in between" in (ends[3].hint or "")


async def test_a_rollout_waits_for_a_running_server() -> None:
    world = PoolWorld([], [])
    async with world.pool as pool:
        starting = asyncio.Event()

        async def slowly(start: Callable[[], Any]) -> None:
            await starting.wait()
            await start()

        for server in world.servers:
            server.start = lambda start=server.start: slowly(start)  # type: ignore[method-assign, misc]
        await world.kill(0, 1)
        assert pool.share(6) == 0
        waiting = await world.start("1")
        assert not waiting[0].done()
        starting.set()
        await settle()
        assert sum(world.running.values()) == 1
        await end(waiting)


async def test_a_run_needs_a_started_server() -> None:
    world = PoolWorld([False], [False])
    with pytest.raises(ServiceError, match="before it was ready"):
        async with world.pool:
            pass
    assert world.notes == []
    assert all(server.stopped for server in world.servers)


@pytest.fixture
def sixteen_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process.os, "sched_getaffinity", lambda _: set(range(16)), raising=False)


@pytest.mark.usefixtures("sixteen_processors")
@pytest.mark.parametrize(
    ("files", "membership", "cores"),
    [
        ({"user/job/cpu.max": "250000 100000\n", "user/cpu.max": "max 100000\n"}, "0::/user/job\n", 2),
        ({"user/job/cpu.max": "max 100000\n", "user/cpu.max": "400000 100000\n"}, "0::/user/job\n", 4),
        # In a container the path is the host's, and what is granted stands at the root.
        ({"cpu.max": "300000 100000\n"}, "0::/docker/abc\n", 3),
        ({"cpu.max": "50000 100000\n"}, "0::/\n", 1),
        (
            {"cpu/job/cpu.cfs_quota_us": "600000\n", "cpu/job/cpu.cfs_period_us": "100000\n"},
            "7:memory:/job\n4:cpu,cpuacct:/job\n",
            6,
        ),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, "4:cpu,cpuacct:/\n", 16),
        ({"cpu.max": "what\n"}, "0::/\nnonsense\n", 16),
        ({}, "", 16),
    ],
)
def test_control_group_processors(tmp_path: Path, files: dict[str, str], membership: str, cores: int) -> None:
    contents = {f"sys/fs/cgroup/{path}": text for path, text in files.items()}
    for name, text in {**contents, "proc/self/cgroup": membership}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert granted_cores(root=tmp_path) == cores
    assert granted_cores(2.5, tmp_path) == min(2, cores)


@pytest.mark.parametrize(("cores", "servers"), [(1, 1), (2, 1), (3, 2), (4, 3), (9, 8), (64, 8)])
def test_the_default_number_of_servers(monkeypatch: pytest.MonkeyPatch, cores: int, servers: int) -> None:
    monkeypatch.setattr(server_process, "granted_cores", lambda cpus: cores)
    assert default_servers() == servers
    assert default_servers(gpus=0) == servers
    assert default_servers(gpus=1) == 1, "what it has loaded there would be loaded as often"
