"""Concurrency slots for rollouts, first come, first served."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any


class SlotLimiter:
    """A fair semaphore with acquire timeouts and counters for waiting and running rollouts.

    ``asyncio.Semaphore`` under ``asyncio.wait_for`` can lose a slot on Python 3.10 and 3.11 when
    the timeout and a release coincide. Here one future transfers the slot.

    Args:
        max_concurrent: The number of slots; None means unlimited.
    """

    def __init__(self, max_concurrent: int | None) -> None:
        self.max_concurrent = max_concurrent
        self.running = 0
        self._waiting: OrderedDict[asyncio.Future[bool], None] = OrderedDict()

    @property
    def queued(self) -> int:
        return len(self._waiting)

    def acquire(self, timeout_s: float | None = None) -> Acquisition:
        """Wait up to ``timeout_s`` seconds for a slot.

        Await the result to learn whether a slot was acquired, or use it in ``async with`` to release the slot at the
        end.
        """
        return Acquisition(self, timeout_s)

    async def _wait(self, timeout_s: float | None) -> bool:
        if self.max_concurrent is None or self.running < self.max_concurrent:
            self.running += 1
            return True
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[bool] = loop.create_future()
        self._waiting[turn] = None
        timer = None if timeout_s is None else loop.call_later(max(timeout_s, 0.0), self._expire, turn)
        try:
            return await turn
        except asyncio.CancelledError:
            self._waiting.pop(turn, None)
            if turn.done() and not turn.cancelled() and turn.result():
                self.release()
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def release(self) -> None:
        """Release a slot, passing it to the first waiter."""
        while self._waiting:
            turn, _ = self._waiting.popitem(last=False)
            if not turn.done():
                turn.set_result(True)
                return
        self.running -= 1

    def _expire(self, turn: asyncio.Future[bool]) -> None:
        self._waiting.pop(turn, None)
        if not turn.done():
            turn.set_result(False)


@dataclass(frozen=True)
class Acquisition:
    """A pending slot: awaitable, and an asynchronous context manager."""

    limiter: SlotLimiter
    timeout_s: float | None

    def __await__(self) -> Generator[Any, None, bool]:
        return self.limiter._wait(self.timeout_s).__await__()

    async def __aenter__(self) -> None:
        if not await self:
            raise asyncio.TimeoutError(f"no slot was free within {self.timeout_s:g} s")

    async def __aexit__(self, *_: object) -> None:
        self.limiter.release()
