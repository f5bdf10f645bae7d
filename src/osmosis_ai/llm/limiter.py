"""How many calls run at once: found out by probing, shared by all who use one provider account.

The limit starts modestly and doubles with every round of answers until the provider first says
"too many" or the user's ceiling is reached; from then on a refusal cuts it by a fifth and a full
round of answers adds a twentieth (additive increase, multiplicative decrease; Jacobson 1988).
Refusals of calls that were sent before a cut say nothing new and do not cut again. A provider
that says how long to wait is believed by everyone: no call starts until then.

The arithmetic is :class:`AdaptiveLimit`; waiting and waking is :class:`Limiter`.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

START = 20
CUT = 0.8
GROWTH = 0.05


class AdaptiveLimit:
    """The number of calls that may run at once, between 1 and a ceiling."""

    def __init__(self, ceiling: int, *, start: int = START) -> None:
        if ceiling < 1:
            raise ValueError("a ceiling of less than one call lets nothing through")
        self._ceiling = ceiling
        self._limit = float(max(1, min(start, ceiling)))
        self._cuts = 0
        self._probing = True

    @property
    def value(self) -> int:
        """The limit now."""
        return int(self._limit)

    @property
    def epoch(self) -> int:
        """Changes with every cut; a call remembers the epoch it was sent in."""
        return self._cuts

    def raise_ceiling(self, ceiling: int) -> None:
        """Let the limit grow up to ``ceiling``, when that is higher than now."""
        self._ceiling = max(self._ceiling, ceiling)

    def answered(self, *, saturated: bool) -> None:
        """Note an answer; only a limit that was fully used is worth raising."""
        if saturated:
            step = 1.0 if self._probing else max(1.0, GROWTH * self._limit) / self._limit
            self._limit = min(float(self._ceiling), self._limit + step)

    def refused(self, epoch: int) -> None:
        """Note a refusal for the rate of calls, of a call sent in ``epoch``."""
        if epoch == self._cuts:
            self._cuts += 1
            self._probing = False
            self._limit = max(1.0, self._limit * CUT)


@dataclass(slots=True)
class Slot:
    """Leave to run one call; tell it what the provider said before giving it back."""

    epoch: int
    refused: bool = False
    answered: bool = False


class Limiter:
    """Lets calls through in order of arrival, as many at once as the adaptive limit says."""

    def __init__(self, ceiling: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = AdaptiveLimit(ceiling)
        self._clock = clock
        self._in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._paused_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.refusals = 0

    @property
    def limit(self) -> int:
        """How many calls may run at once now."""
        return self._limit.value

    @property
    def in_flight(self) -> int:
        """How many run now."""
        return self._in_flight

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return len(self._waiting)

    def raise_ceiling(self, ceiling: int) -> None:
        """Let more calls run at once, when ``ceiling`` is higher than the one so far."""
        self._limit.raise_ceiling(ceiling)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[Slot]:
        """Wait for leave to run one call, and give it back afterwards."""
        await self._acquire()
        slot = Slot(self._limit.epoch)
        try:
            yield slot
        finally:
            self._release(slot)

    def pause(self, seconds: float) -> None:
        """Start no call for ``seconds``; a longer pause already agreed stays."""
        self._paused_until = max(self._paused_until, self._clock() + seconds)

    async def _acquire(self) -> None:
        if not self._waiting and self._open():
            self._in_flight += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._wake()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # The turn came together with the cancellation: hand it on.
                self._in_flight -= 1
            elif turn in self._waiting:
                self._waiting.remove(turn)
            self._wake()
            raise

    def _release(self, slot: Slot) -> None:
        if slot.refused:
            self.refusals += 1
            self._limit.refused(slot.epoch)
        elif slot.answered:
            saturated = bool(self._waiting) or self._in_flight >= self._limit.value
            self._limit.answered(saturated=saturated)
        self._in_flight -= 1
        if self._waiting:
            self._wake()

    def _open(self) -> bool:
        return self._in_flight < self._limit.value and self._clock() >= self._paused_until

    def _wake(self) -> None:
        """Let in whoever may run; while paused, come back when the pause is over."""
        while self._waiting and self._open():
            turn = self._waiting.popleft()
            if not turn.done():
                self._in_flight += 1
                turn.set_result(None)
        left = self._paused_until - self._clock()
        if self._waiting and left > 0 and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(left, self._pause_is_over)

    def _pause_is_over(self) -> None:
        self._timer = None
        self._wake()


_shared: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.WeakValueDictionary[str, Limiter]] = (
    weakref.WeakKeyDictionary()
)


def shared_limiter(key: str, *, ceiling: int) -> Limiter:
    """Return the limiter of a provider account in the running event loop."""
    limiters = _shared.setdefault(asyncio.get_running_loop(), weakref.WeakValueDictionary())
    limiter = limiters.get(key)
    if limiter is None:
        limiters[key] = limiter = Limiter(ceiling)
    limiter.raise_ceiling(ceiling)
    return limiter
