from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.driving.driver import RolloutOutcome, RolloutRunRequest
from osmosis_ai.driving.restarting_server import MAX_FAILED_STARTS, AttemptLostError
from osmosis_ai.driving.server_pool import ServerPool, several
from osmosis_ai.driving.server_process import MAX_RESTARTS, RolloutServer, ServerSpec
from osmosis_ai.event_loop import LoopState
from osmosis_ai.supervision import ServiceDiedError, ServiceError
from tests.driving.test_restarting_server import FakeDriver, FakeServer


class NamedServer(FakeServer):
    def __init__(self, name: str, *starts: bool) -> None:
        super().__init__(*starts)
        self.name = name

    @property
    def base_url(self) -> str:
        return f"http://{self.name}-{self.starts}"


class World:
    """Servers without processes, on which rollouts never end."""

    def __init__(self, *servers: Sequence[bool], restarts: int = MAX_RESTARTS) -> None:
        self.servers = [NamedServer("abcdefgh"[place], *starts) for place, starts in enumerate(servers)]
        for server in self.servers:
            server.deaths = self.servers[0].deaths
            server.spec = server.spec.__class__("the rollout server", [], {}, Path(), restarts=restarts)
        self.notes: list[str] = []
        self.changes: list[int] = []
        self.connected: list[str] = []
        self.pool = ServerPool(self.servers, connect=self._connect, note=self.notes.append, is_asked=False)
        self.pool.on_change = lambda: self.changes.append(self.pool.allowed)
        self.at_work: Counter[str] = Counter()

    def _connect(self, base_url: str) -> Any:
        world = self
        self.connected.append(base_url)

        class Counting(FakeDriver):
            async def run(self, request: RolloutRunRequest) -> RolloutOutcome:
                world.at_work[base_url[7]] += 1
                try:
                    return await super().run(request)
                finally:
                    world.at_work[base_url[7]] -= 1

        return Counting(base_url)

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


async def settle(rounds: int = 30) -> None:
    for _ in range(rounds):
        await asyncio.sleep(0)


async def end(rollouts: list[asyncio.Task[RolloutOutcome]]) -> list[BaseException | RolloutOutcome]:
    for rollout in rollouts:
        rollout.cancel()
    return await asyncio.gather(*rollouts, return_exceptions=True)


async def test_a_rollout_goes_where_there_is_most_room() -> None:
    world = World([], [], [])
    async with world.pool as pool:
        assert pool.capacity == 24
        pool.share_out(10)
        assert [server.pace.allowed for server in pool.servers] == [4, 3, 3]
        assert pool.allowed == 10
        rollouts = await world.start(*"0123456789")
        assert world.at_work == {"a": 4, "b": 3, "c": 3}
        pool.servers[0].pace.allowed = 1
        rollouts += await world.start(*"klmn")
        assert world.at_work == {"a": 4, "b": 5, "c": 5}, "one that is late gets no more"
        assert pool.allowed == 7
        await end(rollouts)
    assert all(server.stopped for server in world.servers)


async def test_one_death_loses_its_own_rollouts_and_nobody_waits_for_it() -> None:
    world = World([], [True, False], [])
    async with world.pool as pool:
        pool.share_out(6)
        first = await world.start(*"012345")
        world.changes.clear()
        await world.kill(1)
        lost = [rollout for rollout in first if rollout.done()]
        assert len(lost) == 2
        assert all(isinstance(rollout.exception(), AttemptLostError) for rollout in lost)
        assert world.changes[0] == 4, "its share is nobody's while it is started again"
        assert world.changes[-1] == 6
        assert world.servers[1].starts == 3
        again = await world.start("6", "7")
        assert world.at_work == {"a": 2, "b": 2, "c": 2}
        assert [server.starts for server in world.servers] == [1, 3, 1]
        await end([*first, *again])
    assert len([note for note in world.notes if "Starting it again" in note]) == 2


async def test_the_run_has_one_budget_of_restarts_which_progress_makes_whole() -> None:
    world = World([], [], [])
    async with world.pool as pool:
        for death in range(3 * MAX_RESTARTS):
            pool.attempt_finished()
            await world.kill(death % 3)
        assert not any("goes on with" in note for note in world.notes)
        pool.attempt_finished()
        for death in range(MAX_RESTARTS):
            await world.kill(death % 3)
        await world.kill(0)
        assert pool.is_up, "nothing speaks against those that are left"
        assert pool.capacity == 16
        assert world.notes[-1].endswith("The run goes on with 2 of 3 servers.")
        waiting = await world.start("1", "2", "3")
        await world.kill(1, 2)
        assert not pool.is_up
        waiting += await world.start("4")
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(each) for each in ends] == [*3 * [AttemptLostError], ServiceDiedError]
        assert "no attempt has finished in between" in (ends[3].hint or "")


async def test_a_rollout_waits_while_no_server_runs_and_for_no_longer() -> None:
    world = World([], [])
    async with world.pool as pool:
        starting = asyncio.Event()

        async def slowly(start: Callable[[], Any]) -> None:
            await starting.wait()
            await start()

        for server in world.servers:
            server.start = lambda start=server.start: slowly(start)  # type: ignore[method-assign, misc]
        await world.kill(0, 1)
        assert pool.allowed == 0
        waiting = await world.start("1")
        assert not waiting[0].done()
        starting.set()
        await settle()
        assert sum(world.at_work.values()) == 1
        await end(waiting)


async def test_a_server_that_does_not_start_is_done_without() -> None:
    world = World([], [False], [])
    async with world.pool as pool:
        pool.share_out(6)
        assert pool.allowed == 4
        assert pool.capacity == 16
        assert len(world.notes) == 1
        assert "before it was ready" in world.notes[0]
        assert world.notes[0].endswith("The run goes on with 2 of 3 servers.")


async def test_one_that_cannot_be_started_again_is_done_without_while_the_others_get_on() -> None:
    world = World([], [True, *(MAX_FAILED_STARTS * [False])], restarts=100)
    async with world.pool as pool:
        rollouts = await world.start("1", "2")
        await world.kill(1)
        assert world.servers[1].starts == 1 + MAX_FAILED_STARTS
        assert world.notes[-1].endswith("The run goes on with 1 of 2 servers.")
        assert (pool.is_up, rollouts[0].done()) == (True, False)
        await end(rollouts)


async def test_when_none_starts_the_run_does_not_and_nothing_is_left_behind() -> None:
    world = World([False], [False])
    with pytest.raises(ServiceError, match="before it was ready"):
        async with world.pool:
            pass
    assert world.notes == []
    assert all(server.stopped for server in world.servers)


async def test_a_server_that_is_started_again_is_late_for_nobody() -> None:
    world = World([], [])
    async with world.pool as pool:
        assert [server.state for server in pool.servers] == 2 * [LoopState(0.0)]
        assert [await server.ask() for server in pool.servers] == [None, None]
        rollouts = await world.start("1")
        assert pool.place_of("1") is pool.servers[0]
        await end(rollouts)
        assert pool.place_of("1") is None


def test_each_server_has_its_own_log_and_name_and_all_one_budget(tmp_path: Path) -> None:
    spec = ServerSpec(
        tmp_path, "main.py", Path("python"), {}, tmp_path / "trials", None, tmp_path / "rollout-server.log"
    )
    alone = several(RolloutServer(spec), 1)
    assert (alone[0].spec.name, alone[0].spec.restarts) == ("the rollout server `main.py`", MAX_RESTARTS)
    servers = several(RolloutServer(spec, health_timeout_s=7.0), 3)
    assert [server.spec.log_path for server in servers] == [
        tmp_path / f"rollout-server{ending}.log" for ending in ("", "-2", "-3")
    ]
    assert servers[0].spec.name == alone[0].spec.name, "when none starts, the first one's words are shown"
    assert servers[1].spec.name == "the rollout server `main.py` (2 of 3)"
    assert {server.spec.start_timeout_s for server in servers} == {7.0}
    assert len({id(server.deaths) for server in servers}) == 1
    assert servers[0].spec.restarts == MAX_RESTARTS + 2, "those that die together have died once"
