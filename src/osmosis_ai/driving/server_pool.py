"""The rollout servers of one run, on each of which some of its rollouts are under way.

Concurrency is one limit for the run, of which each server has a share; one that is late gets fewer, and an engine
that is late lets all of them have fewer. A rollout goes where there is most room. A server that dies takes its own
rollouts with it; while it is started again its share is nobody's, and the others go on. They are started again out
of one budget, that of the run: it is spent when they die, one or the other, without any attempt finishing in between.
A server that cannot be had any more is done without, as long as there is another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from osmosis_ai.driving.machine import Pace
from osmosis_ai.driving.restarting_server import SETTLE_LIMIT_S, RestartingRolloutServer
from osmosis_ai.driving.server_health import ServerHealth
from osmosis_ai.driving.server_process import RolloutServer
from osmosis_ai.errors import OsmosisError
from osmosis_ai.event_loop import LoopState
from osmosis_ai.supervision import Deaths, ServiceDiedError

if TYPE_CHECKING:
    from typing_extensions import Self

    from osmosis_ai.driving.driver import RolloutOutcome, RolloutRunRequest
    from osmosis_ai.driving.restarting_server import Driver, KeptServer


def several(server: RolloutServer, count: int) -> list[RolloutServer]:
    """Return ``count`` servers like ``server``, none of them started, which share one budget of restarts."""
    specs = [replace(server.rollout, number=number, of=count) for number in range(1, count + 1)]
    servers = [server.like(spec) for spec in specs]
    if count > 1:
        deaths = Deaths(whose="the rollout's servers")
        for each in servers:
            each.deaths = deaths
    return servers


class PooledServer:
    """One server of a run."""

    def __init__(self, keeper: RestartingRolloutServer, *, is_asked: bool) -> None:
        self.keeper = keeper
        self.pace = Pace(1)
        self._health = ServerHealth()
        self._is_asked = is_asked

    @property
    def is_up(self) -> bool:
        """Whether it takes rollouts now."""
        return self.keeper.base_url is not None

    @property
    def state(self) -> LoopState:
        """How its event loop does, as last heard; one that does not run is late for nobody."""
        return self._health.state if self.is_up else LoopState(0.0)

    async def ask(self) -> LoopState | None:
        """Ask how its event loop does now; None where there is nobody to ask."""
        # How late another machine is, is not this one's doing; and it is asked for nothing but its own routes.
        base_url = self.keeper.base_url if self._is_asked else None
        return await self._health.ask(base_url) if base_url is not None else None

    @property
    def load(self) -> float:
        """How full its share would be with one rollout more."""
        return (self.keeper.under_way + 1) / self.pace.allowed

    async def stop(self) -> None:
        """Stop it for good."""
        await self.keeper.stop()
        await self._health.aclose()


class ServerPool:
    """Runs rollouts on the servers of a run; an async context manager, made on its event loop."""

    def __init__(
        self,
        servers: Sequence[KeptServer],
        *,
        connect: Callable[[str], Driver],
        note: Callable[[str], None],
        is_asked: bool = True,
    ) -> None:
        self.servers = [
            PooledServer(
                RestartingRolloutServer(server, connect=connect, note=note, changed=self._change),
                is_asked=is_asked,
            )
            for server in servers
        ]
        self.on_change: Callable[[], None] = lambda: None
        self._note = note
        self._limit = 1
        self._changed = asyncio.Event()
        self._places: dict[str, PooledServer] = {}
        self._without: set[PooledServer] = set()

    async def __aenter__(self) -> Self:
        """Start the servers, all at once."""
        try:
            ends = await asyncio.gather(
                *(server.keeper.start() for server in self.servers), return_exceptions=True
            )
            failures = [end for end in ends if isinstance(end, BaseException)]
            unexpected = [failure for failure in failures if not isinstance(failure, OsmosisError)]
            if unexpected or len(failures) == len(ends):
                raise (unexpected or failures)[0]
            self._do_without()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stop the servers for good."""
        await asyncio.gather(*(server.stop() for server in self.servers))

    @property
    def capacity(self) -> int | None:
        """How many rollouts the servers run at once, all together; None when one of them has no limit."""
        capacities = [server.keeper.capacity for server in self.servers if server not in self._without]
        known = [capacity for capacity in capacities if capacity is not None]
        return sum(known) if len(known) == len(capacities) else None

    @property
    def is_up(self) -> bool:
        """Whether any of them takes rollouts now."""
        return any(server.is_up for server in self.servers)

    @property
    def allowed(self) -> int:
        """How many rollouts may be under way now, on those that run."""
        return min(self._limit, sum(server.pace.allowed for server in self.servers if server.is_up))

    def share_out(self, limit: int) -> None:
        """Give each server its share of a run's ``limit``."""
        self._limit = limit
        share, rest = divmod(limit, len(self.servers))
        for place, server in enumerate(self.servers):
            server.pace = Pace(max(1, share + (place < rest)))

    def place_of(self, rollout_id: str) -> PooledServer | None:
        """Return the server on which a rollout is under way."""
        return self._places.get(rollout_id)

    def attempt_finished(self) -> None:
        """Note that an attempt was brought to its end: the budget of restarts is whole again."""
        for server in self.servers:
            server.keeper.attempt_finished()

    async def run(self, request: RolloutRunRequest) -> RolloutOutcome:
        """Run one rollout where there is most room, waiting first while no server runs."""
        while not self.is_up:
            if len(self._without) == len(self.servers):
                raise self._last_end()
            await self._changed.wait()
        server = min((each for each in self.servers if each.is_up), key=lambda each: each.load)
        self._places[request.rollout_id] = server
        try:
            return await server.keeper.run(request)
        finally:
            del self._places[request.rollout_id]

    async def wait_until_ended(
        self, rollout_ids: Collection[str], *, limit_s: float = SETTLE_LIMIT_S
    ) -> frozenset[str]:
        """Wait until the servers have let go of cancelled rollouts; return those that one still has after ``limit_s``."""
        waits = (server.keeper.wait_until_ended(rollout_ids, limit_s=limit_s) for server in self.servers)
        return frozenset().union(*await asyncio.gather(*waits))

    def _change(self) -> None:
        self._do_without()
        waiting, self._changed = self._changed, asyncio.Event()
        waiting.set()
        self.on_change()

    def _do_without(self) -> None:
        """Take note of those that will not be started any more."""
        gone = {server for server in self.servers if server.keeper.end is not None} - self._without
        self._without |= gone
        left = len(self.servers) - len(self._without)
        for server in gone:
            if left and server.keeper.end is not None:
                said = str(server.keeper.end).splitlines()[0].rstrip(".")
                self._note(f"{said}. The run goes on with {left} of {len(self.servers)} servers.")

    def _last_end(self) -> Exception:
        """Return why there is no server any more: the end of the last one that there was."""
        ends = [server.keeper.end for server in self.servers if server.keeper.end is not None]
        return next((end for end in ends if isinstance(end, ServiceDiedError)), ends[-1])
