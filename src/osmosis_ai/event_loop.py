"""The event loop for processes with thousands of connections, and a monitor of how busy it is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")

_BEAT_S = 0.1
_WINDOW_S = 0.5


def run(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run ``main`` as ``asyncio.run`` does, on uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:  # Windows, or an installation without the servers' extra
        return asyncio.run(main)
    return uvloop.run(main)


@dataclass(frozen=True)
class LoopState:
    """An event loop over the last half second: its longest delay, and the share of time its thread had work."""

    lag_s: float = 0.0
    busy: float = 0.0


class LoopMonitor:
    """Measures the running event loop from :meth:`start` to :meth:`stop`.

    Busy is the time in which the loop's thread ran or waited for a processor; without the kernel's scheduling
    statistics (other systems than Linux) it is the processor time alone.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, work: Callable[[], float] | None = None
    ) -> None:
        self._clock = clock
        self._work = work or self._thread_work
        self._statistics: int | None = None
        self._beats: deque[tuple[float, float, float]] = deque()
        self._due = clock()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        with contextlib.suppress(OSError):
            self._statistics = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._due = self._clock()
        self._tick()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._statistics is not None:
            os.close(self._statistics)
            self._statistics = None
        self._beats.clear()

    def beat(self) -> None:
        """Record one heartbeat and schedule the next."""
        now = self._clock()
        self._beats.append((now, max(0.0, now - self._due), self._work()))
        while len(self._beats) > 1 and self._beats[1][0] <= now - _WINDOW_S:
            self._beats.popleft()
        self._due = now + _BEAT_S

    def state(self) -> LoopState:
        """Return how the loop does now; an overdue heartbeat counts already."""
        now = self._clock()
        if not self._beats:
            return LoopState()
        began, _, work = self._beats[0]
        busy = min(1.0, (self._work() - work) / (now - began)) if now - began >= _BEAT_S / 2 else 0.0
        lag_s = max(now - self._due, 0.0, *(lag for at, lag, _ in self._beats if at >= now - _WINDOW_S), 0.0)
        return LoopState(lag_s, busy)

    def _thread_work(self) -> float:
        if self._statistics is None:
            return time.thread_time()
        ran_ns, waited_ns, _ = os.pread(self._statistics, 64, 0).split()
        return (int(ran_ns) + int(waited_ns)) / 1e9

    def _tick(self) -> None:
        self.beat()
        self._timer = asyncio.get_running_loop().call_later(_BEAT_S, self._tick)
