from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from osmosis_ai.driving.driver import RolloutOutcome, RolloutRunRequest
from osmosis_ai.driving.restarting_server import (
    AttemptLostError,
    RestartingRolloutServer,
)
from osmosis_ai.driving.server_process import MAX_RESTARTS
from osmosis_ai.supervision import Service, ServiceDiedError, ServiceError, ServiceSpec

REQUEST = RolloutRunRequest(messages=[], rollout_id="r1")


class FakeServer(Service):
    """A server without a process, which starts, or not, as it is told each time."""

    capacity = 8

    def __init__(self, *starts: bool) -> None:
        super().__init__(ServiceSpec("the rollout server", [], {}, Path(), restarts=MAX_RESTARTS))
        self.starts = 0
        self.stopped = False
        self._will = iter(starts)
        self._died: asyncio.Future[ServiceError] = asyncio.get_running_loop().create_future()

    @property
    def base_url(self) -> str:
        return f"http://server-{self.starts}"

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

    def __init__(self, base_url: str, error: Exception | None = None) -> None:
        self.base_url = base_url
        self.running = asyncio.Event()
        self.closed = False
        self._error = error

    async def run(self, request: RolloutRunRequest) -> RolloutOutcome:
        if self._error is not None:
            raise self._error
        self.running.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def aclose(self) -> None:
        self.closed = True


class World:
    def __init__(self, *starts: bool, error: Exception | None = None) -> None:
        self.server: Any = FakeServer(*starts)
        self.drivers: list[FakeDriver] = []
        self.notes: list[str] = []
        self._error = error
        self._changed = asyncio.Event()
        self.host = RestartingRolloutServer(self.server, connect=self._connect, note=self.notes.append)

    def _connect(self, base_url: str) -> Any:
        self.drivers.append(FakeDriver(base_url, self._error))
        self._changed.set()
        return self.drivers[-1]

    async def connected(self, count: int) -> FakeDriver:
        """Wait until as many servers have come up."""
        while len(self.drivers) < count:
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), 60)
        return self.drivers[count - 1]

    async def start_rollout(self) -> asyncio.Task[RolloutOutcome]:
        driver = self.drivers[-1]
        rollout = asyncio.create_task(self.host.run(REQUEST))
        await asyncio.wait_for(driver.running.wait(), 60)
        return rollout


async def test_attempts_on_a_server_that_dies_are_lost_and_another_server_takes_over() -> None:
    world = World()
    async with world.host as host:
        assert host.capacity == 8
        rollouts = [await world.start_rollout() for _ in range(3)]
        world.server.die()
        outcomes = await asyncio.gather(*rollouts, return_exceptions=True)
        assert all(isinstance(lost, AttemptLostError) and lost.death is not None for lost in outcomes)

        waiting = asyncio.create_task(host.run(REQUEST))
        second = await world.connected(2)
        await asyncio.wait_for(second.running.wait(), 60)
        assert host.base_url == "http://server-2"
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert world.server.stopped
    assert all(driver.closed for driver in world.drivers)
    assert world.notes == ["the rollout server ended (exit status 1). Starting it again."]


async def kill_the_server(world: World) -> None:
    rollout = await world.start_rollout()
    world.server.die()
    await asyncio.gather(rollout, return_exceptions=True)


async def test_it_gives_up_when_servers_die_one_after_the_other_and_nothing_finishes() -> None:
    world = World()
    async with world.host as host:
        for restarts in range(MAX_RESTARTS):
            await kill_the_server(world)
            await world.connected(restarts + 2)
        await kill_the_server(world)
        with pytest.raises(ServiceDiedError, match=f"died {MAX_RESTARTS + 1} times") as died:
            await host.run(REQUEST)
        assert "Traceback" in died.value.message
    assert world.server.starts == MAX_RESTARTS + 1


async def test_servers_may_die_more_often_while_the_run_gets_on() -> None:
    world = World()
    async with world.host as host:
        for restarts in range(2 * MAX_RESTARTS):
            host.attempt_finished()
            await kill_the_server(world)
            await world.connected(restarts + 2)
        assert world.server.starts == 2 * MAX_RESTARTS + 1


async def test_a_server_that_dies_while_it_is_started_again_gets_another_chance() -> None:
    world = World(True, False)
    async with world.host as host:
        await kill_the_server(world)
        await world.connected(2)
        assert world.server.starts == 3
        assert host.capacity == 8


async def test_a_server_that_never_starts_again_ends_the_run_with_its_own_words() -> None:
    world = World(True, *(MAX_RESTARTS * [False]))
    async with world.host as host:
        rollout = await world.start_rollout()
        world.server.die()
        await asyncio.gather(rollout, return_exceptions=True)
        with pytest.raises(ServiceDiedError, match="before it was ready"):
            await host.run(REQUEST)
        assert host.base_url is None
        assert world.server.starts == MAX_RESTARTS + 1


async def test_a_server_that_never_starts_fails_at_once() -> None:
    world = World(False)
    with pytest.raises(ServiceError, match="before it was ready"):
        async with world.host:
            pass
    assert world.server.starts == 1


async def test_a_connection_that_fails_on_a_living_server_is_a_lost_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("osmosis_ai.driving.restarting_server._DEATH_NOTICE_S", 0.01)
    world = World(error=ConnectionResetError("reset by peer"))
    async with world.host as host:
        with pytest.raises(AttemptLostError, match="reset by peer") as lost:
            await host.run(REQUEST)
        assert lost.value.death is None


async def test_what_broke_a_connection_is_said_in_words_without_a_number_that_it_has_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("osmosis_ai.driving.restarting_server._DEATH_NOTICE_S", 0.01)
    error = aiohttp.ClientOSError(None, "Can not write request body for http://localhost/rollout")
    async with World(error=error).host as host:
        with pytest.raises(AttemptLostError) as lost:
            await host.run(REQUEST)
    assert str(lost.value) == (
        "the rollout's server could not be reached: Can not write request body for http://localhost/rollout"
    )


async def test_cancelling_an_attempt_is_no_loss() -> None:
    world = World()
    async with world.host:
        rollout = await world.start_rollout()
        rollout.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rollout
