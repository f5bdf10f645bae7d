"""The event loop for processes with thousands of connections, and how late it is.

A loop that is late reads answers late and runs timers on time, so that clients give up on answers
that have arrived. Nobody inside can see that; a heartbeat does.
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
"""A loop that is this late, in seconds, makes others give up in vain."""

_BEAT_S = 0.1
_RECENT_S = 1.0


def run(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run ``main`` as ``asyncio.run`` does, on uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:  # Windows, or an installation without the servers' extra
        return asyncio.run(main)
    return uvloop.run(main)


@dataclass(frozen=True)
class LoopState:
    """How an event loop does."""

    lag_s: float
    busy: float = 0.0
    late_ago_s: float | None = None


class LoopLag:
    """Measures how late the running event loop is, from :meth:`start` to :meth:`stop`."""

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
        """Begin to measure the running loop."""
        self._due = self._clock()
        self.beat()
        self._schedule()

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def beat(self) -> None:
        """Note one heartbeat and expect the next."""
        now = self._clock()
        lag = max(0.0, now - self._due)
        if lag >= LATE_S:
            self._late_at = now
        self._beats.append((now, lag, self._cpu()))
        while self._beats[0][0] < now - _RECENT_S:
            self._beats.popleft()
        self._due = now + _BEAT_S

    def state(self) -> LoopState:
        """Return how the loop does now; a heartbeat that is overdue counts already."""
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
