"""The dispatcher: a stream of work items, at most so many at once, none waiting for another.

Concurrency is a limit, not a batch: whenever an attempt ends, the next item starts. One whose result has
come and is only being written no longer counts (:meth:`Dispatcher.release`), so that a slow disk keeps no
model waiting; so many may be written at once, and no more. Items start in
the order of the stream; those whose attempt was lost come again before the rest. The dispatcher
holds the items in flight and those being written, whatever the length of the stream.

It ends when the stream does, when the gate closes (what is in flight finishes), or when it is
halted (what is in flight is cancelled). What was not finished then is simply still pending.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

Item = TypeVar("Item")

DEFAULT_IN_FLIGHT = 32

StopKind = Literal["interrupted", "budget", "fault"]


def choose_limit(*, max_in_flight: int | None, batch_size: int | None, capacity: int | None) -> int:
    """Return how many rollouts run at once: what the user asks for, within what the server can take."""
    wished = max_in_flight or batch_size
    if capacity is None:
        return wished or DEFAULT_IN_FLIGHT
    return min(wished, capacity) if wished else capacity


@dataclass(frozen=True)
class Stop:
    """Why a run ended with work left."""

    kind: StopKind
    reason: str
    error: BaseException | None = None


class Dispatcher(Generic[Item]):
    """Runs ``attempt`` on every item of a stream."""

    def __init__(
        self,
        items: Iterator[Item],
        attempt: Callable[[Item], Awaitable[bool]],
        *,
        limit: int,
        gate: Callable[[], str | None] = lambda: None,
        spare: int = 0,
    ) -> None:
        self._items = items
        self._attempt = attempt
        self.limit = limit
        self._allowed = limit
        self._gate = gate
        self._spare = spare
        # The items that count, by identity: they need not be hashable.
        self._places: dict[int, Item] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._returned: deque[Item] = deque()
        self._workers: set[asyncio.Task[None]] = set()
        self._stop: Stop | None = None

    @property
    def in_flight(self) -> int:
        """Attempts under way, but for those that were released."""
        return len(self._places)

    async def run(self) -> Stop | None:
        """Run to the end; return why work is left, or None when none is."""
        count = 0 if self._stop else self.limit + self._spare
        self._workers = {asyncio.create_task(self._work()) for _ in range(count)}
        try:
            await asyncio.gather(*self._workers, return_exceptions=True)
        finally:
            for worker in self._workers:
                worker.cancel()
            await asyncio.gather(*self._workers, return_exceptions=True)
        return self._stop

    def narrow(self, allowed: int) -> None:
        """Start no attempt while ``allowed`` or more are in flight; what is in flight goes on."""
        self._allowed = max(1, min(allowed, self.limit))
        self._admit()

    def release(self, item: Item) -> None:
        """Let another attempt start in the place of ``item``'s, which is as good as over; once for each."""
        if self._places.pop(id(item), None) is not None:
            self._admit()

    def halt(self, stop: Stop) -> None:
        """Start nothing more and cancel what is in flight; the first reason stands."""
        if self._stop is None or self._stop.kind == "budget":
            self._stop = stop
        current = asyncio.current_task()
        for worker in self._workers:
            if worker is not current:
                worker.cancel()

    async def _work(self) -> None:
        while True:
            try:
                await self._room()
                item = self._next()
                if item is None:
                    return
                self._places[id(item)] = item
                try:
                    finished = await self._attempt(item)
                finally:
                    self._places.pop(id(item), None)
                if not finished:
                    self._returned.append(item)
            except Exception as error:  # whatever went wrong here is no result of the item
                self.halt(Stop("fault", str(error) or type(error).__name__, error))
                return
            finally:
                self._admit()

    async def _room(self) -> None:
        while self.in_flight >= self._allowed:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn

    def _admit(self) -> None:
        """Wake as many workers as may start; one that finds nothing left to do wakes the next."""
        for _ in range(self._allowed - self.in_flight):
            while self._waiting and self._waiting[0].done():
                self._waiting.popleft()
            if not self._waiting:
                return
            self._waiting.popleft().set_result(None)

    def _next(self) -> Item | None:
        if self._stop is not None:
            return None
        item = self._returned.popleft() if self._returned else next(self._items, None)
        if item is None:
            return None
        closed = self._gate()
        if closed is not None:
            self._stop = Stop("budget", closed)
            return None
        return item
