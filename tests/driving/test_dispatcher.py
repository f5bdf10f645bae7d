from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from osmosis_ai.driving.dispatcher import Dispatcher, Stop

INTERRUPTED = Stop("interrupted", "interrupted")


class Desk:
    """Attempts that end when the test says so."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.most_at_once = 0
        self._open: dict[int, asyncio.Future[bool]] = {}
        self._changed = asyncio.Condition()

    async def attempt(self, item: int) -> bool:
        self.started.append(item)
        self._open[item] = asyncio.get_running_loop().create_future()
        self.most_at_once = max(self.most_at_once, len(self._open))
        async with self._changed:
            self._changed.notify_all()
        try:
            return await self._open[item]
        finally:
            self._open.pop(item, None)

    async def wait_for(self, *items: int) -> None:
        """Wait until these run; one whose end was ordered does not, even before it has noticed."""

        def run() -> bool:
            return all(item in self._open and not self._open[item].done() for item in items)

        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(run), 60)

    def end(self, item: int, finished: bool = True) -> None:
        self._open[item].set_result(finished)

    def fail(self, item: int, error: Exception) -> None:
        self._open[item].set_exception(error)


async def test_a_slow_item_never_holds_the_others() -> None:
    desk = Desk()
    dispatcher = Dispatcher(iter(range(10)), desk.attempt, limit=2)
    run = asyncio.ensure_future(dispatcher.run())
    await desk.wait_for(0, 1)
    for item in range(1, 10):  # item 0 hangs all the while
        await desk.wait_for(item)
        desk.end(item)
    desk.end(0)
    assert await run is None
    assert desk.started == list(range(10))
    assert desk.most_at_once == 2


async def test_the_stream_is_read_no_further_than_what_is_in_flight() -> None:
    read: list[int] = []

    def stream() -> Iterator[int]:
        for item in range(1000):
            read.append(item)
            yield item

    desk = Desk()
    run = asyncio.ensure_future(Dispatcher(stream(), desk.attempt, limit=3).run())
    await desk.wait_for(0, 1, 2)
    assert read == [0, 1, 2]
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)


async def test_an_item_that_was_lost_comes_again_before_the_rest() -> None:
    desk = Desk()
    run = asyncio.ensure_future(Dispatcher(iter(range(4)), desk.attempt, limit=1).run())
    await desk.wait_for(0)
    desk.end(0, finished=False)
    for item in (0, 1, 2, 3):
        await desk.wait_for(item)
        desk.end(item)
    assert await run is None
    assert desk.started == [0, 0, 1, 2, 3]


async def test_a_closed_gate_lets_what_is_in_flight_finish() -> None:
    desk = Desk()
    spent: str | None = None
    dispatcher = Dispatcher(iter(range(10)), desk.attempt, limit=2, gate=lambda: spent)
    run = asyncio.ensure_future(dispatcher.run())
    await desk.wait_for(0, 1)
    spent = "all gone"
    desk.end(0)
    await asyncio.sleep(0)
    assert not run.done()
    desk.end(1)
    assert await run == Stop("budget", "all gone")
    assert desk.started == [0, 1]


async def test_a_gate_that_closes_when_nothing_is_left_is_no_stop() -> None:
    desk = Desk()
    spent: str | None = None
    run = asyncio.ensure_future(Dispatcher(iter([0]), desk.attempt, limit=1, gate=lambda: spent).run())
    await desk.wait_for(0)
    spent = "all gone"
    desk.end(0)
    assert await run is None


async def test_a_fault_stops_dispatch_and_cancels_what_is_in_flight() -> None:
    desk = Desk()
    dispatcher = Dispatcher(iter(range(10)), desk.attempt, limit=3)
    run = asyncio.ensure_future(dispatcher.run())
    await desk.wait_for(0, 1, 2)
    desk.fail(1, RuntimeError("the disk is full"))
    stop = await run
    assert stop is not None
    assert (stop.kind, stop.reason) == ("fault", "the disk is full")
    assert desk.started == [0, 1, 2]
    assert dispatcher.in_flight == 0


async def test_halting_keeps_the_first_reason() -> None:
    desk = Desk()
    dispatcher = Dispatcher(iter(range(10)), desk.attempt, limit=1)
    run = asyncio.ensure_future(dispatcher.run())
    await desk.wait_for(0)
    dispatcher.halt(INTERRUPTED)
    dispatcher.halt(Stop("fault", "later"))
    assert await run is INTERRUPTED


async def test_a_stream_that_fails_is_a_fault() -> None:
    def stream() -> Iterator[int]:
        yield 0
        raise ValueError("the file was changed")

    async def finish(_: int) -> bool:
        return True

    stop = await Dispatcher(stream(), finish, limit=4).run()
    assert stop is not None
    assert stop.reason == "the file was changed"


@pytest.mark.parametrize("limit", [1, 7, 300])
async def test_every_item_is_attempted_once_whatever_the_limit(limit: int) -> None:
    seen: list[int] = []

    async def attempt(item: int) -> bool:
        await asyncio.sleep(0)
        seen.append(item)
        return True

    assert await Dispatcher(iter(range(200)), attempt, limit=limit).run() is None
    assert sorted(seen) == list(range(200))


async def test_an_attempt_that_is_only_being_written_gives_its_place_to_the_next_one() -> None:
    desk = Desk()
    dispatcher = Dispatcher(iter(range(6)), desk.attempt, limit=2, spare=2)
    run = asyncio.ensure_future(dispatcher.run())
    await desk.wait_for(0, 1)
    dispatcher.release(0)
    dispatcher.release(0)  # its own place, and no second one
    await desk.wait_for(0, 1, 2)
    assert desk.started == [0, 1, 2] and dispatcher.in_flight == 2
    dispatcher.release(1)
    await desk.wait_for(0, 1, 2, 3)
    dispatcher.release(2)
    for _ in range(10):
        await asyncio.sleep(0)
    assert desk.started == [0, 1, 2, 3]  # as many are being written as may be
    desk.end(0)
    await desk.wait_for(1, 2, 3, 4)
    for item in range(1, 6):
        await desk.wait_for(item)
        desk.end(item)
    assert await run is None
    assert desk.started == list(range(6)) and dispatcher.in_flight == 0


async def test_what_is_being_written_is_cancelled_and_counted_like_the_rest_when_dispatch_is_halted() -> None:
    desk = Desk()
    dispatcher = Dispatcher(iter(range(6)), desk.attempt, limit=1, spare=1)
    run = asyncio.ensure_future(dispatcher.run())
    await desk.wait_for(0)
    dispatcher.release(0)
    await desk.wait_for(0, 1)
    dispatcher.halt(INTERRUPTED)
    assert await run == INTERRUPTED
    assert desk.started == [0, 1] and dispatcher.in_flight == 0
