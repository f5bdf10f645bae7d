"""The event loop of processes with thousands of connections, and its lag.

A late loop reads answers late but runs timers on time, so clients give up on answers that have already arrived. Code
inside the loop cannot detect this; a heartbeat can.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")

LATE_S = 0.25
"""The lag in seconds from which clients time out without need."""

_BEAT_S = 0.1
_RECENT_S = 1.0


def run(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run ``main`` like ``asyncio.run``, on uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:  # Windows, or an installation without the servers' extra
        return asyncio.run(main)
    return uvloop.run(main)


@dataclass(frozen=True)
class LoopState:
    """The lag of an event loop."""

    lag_s: float
    busy: float = 0.0
    late_ago_s: float | None = None


class LoopLag:
    """Measures the lag of the running event loop, from :meth:`start` to :meth:`stop`."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock = clock
        self._cpu = cpu
        self._beats: deque[tuple[float, float, float]] = deque()
        self._due = clock()
        self._late_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._due = self._clock()
        self.beat()
        self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def beat(self) -> None:
        """Record a heartbeat and schedule the next."""
        now = self._clock()
        lag = max(0.0, now - self._due)
        if lag >= LATE_S:
            self._late_at = now
        self._beats.append((now, lag, self._cpu()))
        while self._beats[0][0] < now - _RECENT_S:
            self._beats.popleft()
        self._due = now + _BEAT_S

    def state(self) -> LoopState:
        """Return the current lag; an overdue heartbeat counts."""
        now = self._clock()
        overdue = now - self._due
        if overdue >= LATE_S:
            self._late_at = now
        recent = [beat for beat in self._beats if beat[0] >= now - _RECENT_S]
        busy = 0.0
        if recent and now - recent[0][0] >= _BEAT_S / 2:
            busy = min(1.0, (self._cpu() - recent[0][2]) / (now - recent[0][0]))
        return LoopState(
            lag_s=max([overdue, 0.0, *(lag for _, lag, _ in recent)]),
            busy=busy,
            late_ago_s=None if self._late_at is None else now - self._late_at,
        )

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_BEAT_S, self._tick)

    def _tick(self) -> None:
        self.beat()
        self._schedule()
