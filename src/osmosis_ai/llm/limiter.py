"""Adaptive limit of concurrent calls, shared by all clients of one provider account.

The limit starts low and doubles with every round of answers, or every half second in which calls wait, until the
provider first returns a rate-limit error or the user's ceiling is reached. From then on an error cuts it by a fifth and
a full round of answers adds a twentieth (additive increase, multiplicative decrease; Jacobson 1988). Errors of calls
that were sent before a cut do not cut again. If a provider says how long to wait, no call of any client starts until
then.
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
PROBE_S = 0.5
"""How often the limit doubles while answers are slow: a provider refuses at once, and answers when it is done."""


@dataclass(slots=True)
class Slot:
    """Permission to run one call; receives the provider's reaction before it is released."""

    epoch: int
    refused: bool = False
    answered: bool = False


class Limiter:
    """Starts calls in order of arrival, up to the adaptive limit: a number between 1 and a ceiling."""

    def __init__(
        self, ceiling: int, *, start: int = START, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if ceiling < 1:
            raise ValueError("a ceiling of less than one call lets nothing through")
        self.ceiling = ceiling
        self.epoch = 0  # the number of cuts; a call remembers the epoch in which it was sent
        self.in_flight = 0
        self.refusals = 0
        self._limit = float(max(1, min(start, ceiling)))
        self._clock = clock
        self._queue: deque[asyncio.Future[None]] = deque()
        self._paused_until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def limit(self) -> int:
        """The number of calls that may run now."""
        return int(self._limit)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def is_rate_limited(self) -> bool:
        """Whether calls are waiting because of a rate limit."""
        return self.refusals > 0 and self.waiting > 0

    def answered(self, *, saturated: bool) -> None:
        """Record an answer; the limit grows only if it was fully used."""
        if saturated:
            step = 1.0 if self.epoch == 0 else max(1.0, GROWTH * self._limit) / self._limit
            self._limit = min(float(self.ceiling), self._limit + step)

    def refused(self, epoch: int) -> None:
        """Record a rate-limit error of a call sent in ``epoch``."""
        self.refusals += 1
        if epoch == self.epoch:
            self.epoch += 1
            self._limit = max(1.0, self._limit * CUT)

    def pause(self, seconds: float) -> None:
        """Start no call for ``seconds``; a longer pause remains in effect."""
        self._paused_until = max(self._paused_until, self._clock() + seconds)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[Slot]:
        """Wait for a slot, and release it afterwards."""
        if not self._queue and self._open():
            self.in_flight += 1
        else:
            await self._turn()
        slot = Slot(self.epoch)
        try:
            yield slot
        finally:
            if slot.refused:
                self.refused(slot.epoch)
            elif slot.answered:
                self.answered(saturated=bool(self._queue) or self.in_flight >= self.limit)
            self.in_flight -= 1
            self._wake()

    async def _turn(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        self._wake()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # The slot was assigned at the moment of the cancellation, so pass it on.
                self.in_flight -= 1
            elif turn in self._queue:
                self._queue.remove(turn)
            self._wake()
            raise

    def _open(self) -> bool:
        return self.in_flight < self.limit and self._clock() >= self._paused_until

    def _wake(self) -> None:
        """Start waiting calls up to the limit; during a pause, schedule this for its end."""
        while self._queue and self._open():
            turn = self._queue.popleft()
            if not turn.done():
                self.in_flight += 1
                turn.set_result(None)
        left = self._paused_until - self._clock()
        if self._queue and self._timer is None and (left > 0 or self._is_probing()):
            self._timer = asyncio.get_running_loop().call_later(
                left if left > 0 else PROBE_S, self._tick, left <= 0
            )

    def _tick(self, probing: bool) -> None:
        self._timer = None
        if probing and self._queue and self._is_probing():
            self._limit = min(float(self.ceiling), 2 * self._limit)
        self._wake()

    def _is_probing(self) -> bool:
        return self.epoch == 0 and self._limit < self.ceiling


_shared: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.WeakValueDictionary[str, Limiter]] = (
    weakref.WeakKeyDictionary()
)


def shared_limiter(key: str, *, ceiling: int) -> Limiter:
    """Return the limiter of a provider account in the running event loop, with the highest ceiling asked for."""
    limiters = _shared.setdefault(asyncio.get_running_loop(), weakref.WeakValueDictionary())
    limiter = limiters.get(key)
    if limiter is None:
        limiters[key] = limiter = Limiter(ceiling)
    limiter.ceiling = max(limiter.ceiling, ceiling)
    return limiter
