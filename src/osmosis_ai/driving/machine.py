"""Watches whether this machine keeps up: it sets the pace, and it knows what held a run back.

Event loops can be late: the engine's, which serves the agents' model calls, and those of the rollout
servers, in which the agents run. A lateness that is over still explains what failed during it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, Protocol, get_args

from pydantic import BaseModel, ConfigDict

from osmosis_ai.event_loop import LATE_S, LoopState

TICK_S = 0.25
SUSTAINED_S = 2.0
"""How long a machine is late, or is not, before that counts, in seconds."""

CUT = 0.75
GROWTH = 0.1

LEAST = 8
"""A machine that is late with this few in flight, or a quarter of the ceiling, is kept busy by others: fewer
would make the run crawl and the machine no quicker."""

_ASK_EVERY_S = 1.0
# A loop whose thread computes nearly all the time is what everything waits for.
_SATURATED = 0.9


LimitName = Literal["provider", "rate_limit", "this_machine"]
LIMITS: tuple[LimitName, ...] = get_args(LimitName)


class LimitedBy(BaseModel):
    """What held a session back, as shares of the time it had rollouts in flight."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    most: LimitName
    provider: float
    rate_limit: float
    this_machine: float


class Pace:
    """The number of rollouts that may be in flight, between :data:`LEAST` and a ceiling."""

    def __init__(self, ceiling: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.ceiling = ceiling
        self.allowed = ceiling
        self._least = max(1, min(LEAST, ceiling // 4))
        self._clock = clock
        self._late = False
        self._since = clock()

    @property
    def narrowed(self) -> bool:
        """Whether the machine holds the run back."""
        return self.allowed < self.ceiling

    def observe(self, lag_s: float) -> bool:
        """Take note of how late the machine is now; return whether :attr:`allowed` has changed."""
        now, before = self._clock(), self.allowed
        late = lag_s >= LATE_S
        if late is not self._late:
            self._late, self._since = late, now
        elif now - self._since >= SUSTAINED_S:
            self._since = now
            if late:
                self.allowed = max(self._least, math.floor(self.allowed * CUT))
            else:
                self.allowed = min(self.ceiling, self.allowed + max(1, math.floor(self.allowed * GROWTH)))
        return self.allowed != before


class LimitTally:
    """Counts what held a session back while it had rollouts in flight, one look at a time."""

    def __init__(self) -> None:
        self._looks: Counter[LimitName] = Counter()

    def add(self, limit: LimitName) -> None:
        """Count a look."""
        self._looks[limit] += 1

    def limited_by(self) -> LimitedBy | None:
        """Return what held the session back, as shares of the time with work in flight; None before any."""
        total = sum(self._looks.values())
        if not total:
            return None
        most: LimitName = max(LIMITS, key=lambda name: self._looks[name])
        shares = {name: round(self._looks[name] / total, 4) for name in LIMITS}
        return LimitedBy(most=most, **shares)


class WatchedServer(Protocol):
    """A rollout server as it is watched (:class:`osmosis_ai.driving.server_pool.PooledServer`)."""

    pace: Pace

    @property
    def state(self) -> LoopState:
        """How its event loop does, as last heard."""

    async def ask(self) -> LoopState | None:
        """Ask how its event loop does now; None where there is nobody to ask."""


class MachineWatch:
    """Follows the lag of engine and rollout servers while rollouts are dispatched."""

    def __init__(
        self,
        *,
        engine: Callable[[], LoopState],
        servers: Sequence[WatchedServer],
        rate_limited: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._servers = servers
        self._rate_limited = rate_limited
        self._clock = clock

    def tick(self, tally: LimitTally, *, in_flight: int) -> bool:
        """Look once, tell each server's pace how late it or the engine is; return whether that has changed one."""
        engine = self._engine()
        states = [server.state for server in self._servers]
        paces = [server.pace for server in self._servers]
        changed = [
            pace.observe(max(engine.lag_s, state.lag_s)) for pace, state in zip(paces, states, strict=True)
        ]
        if in_flight:
            late = any(state.lag_s >= LATE_S for state in (engine, *states))
            saturated = any(state.busy >= _SATURATED for state in (engine, *states))
            if late or saturated or any(pace.narrowed for pace in paces):
                tally.add("this_machine")
            else:
                tally.add("rate_limit" if self._rate_limited() else "provider")
        return any(changed)

    async def watch(
        self, tally: LimitTally, *, in_flight: Callable[[], int], changed: Callable[[], None]
    ) -> None:
        """Look several times a second until cancelled; call ``changed`` whenever a pace has."""
        asking = asyncio.gather(*(self._keep_asking(server) for server in self._servers))
        try:
            while True:
                if self.tick(tally, in_flight=in_flight()):
                    changed()
                await asyncio.sleep(TICK_S)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def was_late(self, since: float, server: WatchedServer | None) -> bool:
        """Whether the engine or ``server`` was late at any time after ``since`` (of the monotonic clock)."""
        if self._reaches(self._engine(), since):
            return True
        if server is None:
            return False
        if self._reaches(server.state, since):
            return True
        # What it said last may be older than what is asked about.
        answer = await server.ask()
        return answer is not None and self._reaches(answer, since)

    def _reaches(self, state: LoopState, since: float) -> bool:
        return state.late_ago_s is not None and self._clock() - state.late_ago_s >= since

    async def _keep_asking(self, server: WatchedServer) -> None:
        while True:
            await server.ask()
            await asyncio.sleep(_ASK_EVERY_S)
