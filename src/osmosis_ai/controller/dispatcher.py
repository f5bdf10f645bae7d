"""Runs items, a limited number at once, until all are done.

Concurrency is a limit, not a batch: when an item ends, the next one starts. Items start in order, and lost ones run again
before the rest. Dispatch ends when no item is left, when the gate closes (items in flight finish), or when it is halted
(they are cancelled).
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Literal, TypeVar

Item = TypeVar("Item")

DEFAULT_IN_FLIGHT = 32
OBSERVE_EVERY_S = 0.5


def choose_limit(*, max_in_flight: int | None, batch_size: int | None, capacity: int | None) -> int:
    """Return how many rollouts run at once: the requested number, within the server's capacity."""
    limits = [limit for limit in (max_in_flight or batch_size, capacity) if limit]
    return min(limits, default=DEFAULT_IN_FLIGHT)


@dataclass(frozen=True)
class Stop:
    """The reason why a run ended with attempts left."""

    kind: Literal["interrupted", "budget", "fault"]
    reason: str
    error: BaseException | None = None


class Dispatcher(Generic[Item]):
    """Calls ``attempt`` with every item, and again if it returns False.

    Args:
        gate: checked before each start; returns why no more items may start, or None.
        spare: how many released items may still be running in addition to ``limit``.
    """

    def __init__(
        self,
        items: Iterator[Item],
        attempt: Callable[[Item], Awaitable[bool]],
        *,
        limit: int,
        gate: Callable[[], str | None] = lambda: None,
        spare: int = 0,
    ) -> None:
        self.limit = limit
        self._items = items
        self._attempt = attempt
        self._gate = gate
        self._spare = spare
        self._allowed = limit
        # Items need not be hashable.
        self._in_flight: dict[int, Item] = {}
        self._returned: deque[Item] = deque()
        self._tasks: set[asyncio.Future[bool]] = set()
        self._changed = asyncio.Event()
        self._stop: Stop | None = None

    @property
    def in_flight(self) -> int:
        """The number of running attempts, except released ones."""
        return len(self._in_flight)

    async def run(self) -> Stop | None:
        """Run all items; return why some are left, or None."""
        try:
            while True:
                self._changed.clear()
                try:
                    self._start_items()
                except Exception as error:
                    self.fail(error)
                if not self._tasks:
                    return self._stop
                await self._changed.wait()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def narrow(self, allowed: int) -> None:
        """Start no attempt while ``allowed`` or more are in flight; those continue."""
        self._allowed = max(1, min(allowed, self.limit))
        self._changed.set()

    def wake(self) -> None:
        """Start items that the iterator has received since it was empty."""
        self._changed.set()

    def release(self, item: Item) -> None:
        """Let another attempt start in place of ``item``'s, whose result has arrived."""
        self._in_flight.pop(id(item), None)
        self._changed.set()

    def halt(self, stop: Stop) -> None:
        """Start nothing more and cancel all other attempts; the first reason counts."""
        if self._stop is None or self._stop.kind == "budget":
            self._stop = stop
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()

    def fail(self, error: BaseException) -> None:
        """Halt because of an error."""
        self.halt(Stop("fault", str(error) or type(error).__name__, error))

    def _start_items(self) -> None:
        while self.in_flight < self._allowed and len(self._tasks) < self.limit + self._spare:
            item = self._next_item()
            if item is None:
                return
            self._in_flight[id(item)] = item
            task = asyncio.ensure_future(self._attempt(item))
            self._tasks.add(task)
            task.add_done_callback(partial(self._end, item))

    def _next_item(self) -> Item | None:
        if self._stop is not None:
            return None
        item = self._returned.popleft() if self._returned else next(self._items, None)
        reason = self._gate() if item is not None else None
        if reason is None:
            return item
        self._stop = Stop("budget", reason)
        return None

    def _end(self, item: Item, task: asyncio.Future[bool]) -> None:
        self._tasks.discard(task)
        self._in_flight.pop(id(item), None)
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                self.fail(error)
            elif not task.result():
                self._returned.append(item)
        self._changed.set()


class ConcurrencyLimiter:
    """How many attempts may be in flight, between 16 and the requested number.

    More attempts in flight than the event loops between agents and model can serve make every one of them slower. The
    limit therefore starts at 64 and doubles while the loops have room. A loop that is saturated for as long as an
    attempt waits for its model cuts the limit by a quarter; from then on, room makes it grow slowly. A shorter time
    is not enough, because attempts that start together also finish together and saturate the loops for a moment.
    """

    SATURATED, ROOM = 0.9, 0.7
    START, LEAST = 64, 16
    CUT, GROWTH = 0.75, 1.05
    SHORTEST_WINDOW_S, LONGEST_WINDOW_S = 1.0, 60.0

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.limit = min(maximum, self.START)
        self.was_cut = False
        self._first_waits_s: list[float] = []
        self._busy: deque[float] = deque(maxlen=round(self.LONGEST_WINDOW_S / OBSERVE_EVERY_S))

    def observe(self, *, busy: float, model_waits_s: Sequence[float]) -> bool:
        """Take the last :data:`OBSERVE_EVERY_S` seconds into account; return whether :attr:`limit` changed.

        Args:
            busy: the largest share of this time in which one of the loops was busy.
            model_waits_s: for each attempt that finished in it, how long it waited for its model.
        """
        before = self.limit
        self._busy.append(busy)
        self._first_waits_s += model_waits_s[: self.maximum - len(self._first_waits_s)]
        if model_waits_s and self._is_saturated():
            self.limit = max(min(self.LEAST, self.maximum), math.floor(self.limit * self.CUT))
            self.was_cut = True
            self._busy.clear()
        elif busy < self.ROOM:
            growth = self.GROWTH if self.was_cut else 2
            self.limit = min(self.maximum, math.ceil(self.limit * growth))
        return self.limit != before

    def _is_saturated(self) -> bool:
        """Whether a loop was saturated for as long as the quickest attempts (2nd percentile) wait for their model."""
        quickest_s = sorted(self._first_waits_s)[len(self._first_waits_s) // 50]
        window_s = min(max(quickest_s, self.SHORTEST_WINDOW_S), self.LONGEST_WINDOW_S)
        count = math.ceil(window_s / OBSERVE_EVERY_S)
        window = list(self._busy)[-count:]
        return len(window) == count and sum(window) / count >= self.SATURATED
