"""Dispatch of attempts, and classification of their outcomes."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any, get_args

import pytest

from osmosis_ai.controller.callbacks import TerminalCallbackResult
from osmosis_ai.controller.dispatcher import ConcurrencyLimiter, Dispatcher, Stop
from osmosis_ai.controller.outcomes import classify, error_code_of
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.event_loop import LoopMonitor, LoopState
from osmosis_ai.llm.errors import Category, ModelCallError
from osmosis_ai.rollout import GraderCompleteRequest, RolloutCompleteRequest
from tests.evaluation.builders import MeasuredResults, record


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


async def test_a_slow_item_does_not_block_the_others() -> None:
    desk = Desk()
    dispatcher = Dispatcher(iter(range(10)), desk.attempt, limit=2)
    run = asyncio.ensure_future(dispatcher.run())
    await desk.wait_for(0, 1)
    for item in range(1, 10):  # item 0 hangs meanwhile
        await desk.wait_for(item)
        desk.end(item)
    desk.end(0)
    assert await run is None
    assert desk.started == list(range(10))
    assert desk.most_at_once == 2


async def test_a_lost_item_runs_again_before_the_rest() -> None:
    desk = Desk()
    run = asyncio.ensure_future(Dispatcher(iter(range(4)), desk.attempt, limit=1).run())
    await desk.wait_for(0)
    desk.end(0, finished=False)
    for item in (0, 1, 2, 3):
        await desk.wait_for(item)
        desk.end(item)
    assert await run is None
    assert desk.started == [0, 0, 1, 2, 3]


async def test_items_in_flight_finish_after_the_gate_closes() -> None:
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


async def test_a_fault_stops_dispatch_and_cancels_items_in_flight() -> None:
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


PAGE = (Path(__file__).parents[2] / "docs" / "concepts" / "failures.md").read_text()
DOCUMENTED_CODES = set(
    re.findall(r"\| `(\w+)` \|", PAGE.partition("| code | meaning |")[2].partition("\n\n")[0])
)
SUCCESS = {"status": "success"}
GRADED = {"status": "success", "sample": {"messages": [], "reward": 1.0}}
REMOVED = {"status": "success", "sample": {"messages": [], "remove_sample": True}}


def failure(category: str | None = None, *, sample: Any = None) -> dict[str, Any]:
    return {"status": "failure", "err_category": category, "sample": sample}


def failed(error_type: str, source: str, code: str) -> tuple[Any, ...]:
    return ("failed", None, error_type, source, code)


def terminal(
    completion: dict[str, Any] | None, grader: dict[str, Any] | None, source: Any = "grader"
) -> TerminalCallbackResult:
    ended = None if completion is None else {"rollout_id": "r1", **completion}
    graded = None if grader is None else {"rollout_id": "r1", **grader}
    return TerminalCallbackResult(
        "r1",
        source,
        completion=ended and RolloutCompleteRequest.model_validate(ended),  # type: ignore[arg-type]
        grader=graded and GraderCompleteRequest.model_validate(graded),  # type: ignore[arg-type]
    )


UNREWARDED = {"messages": []}
# Case -> completion, grade, (status, reward, error type, source of the error, its code).
VERDICTS: dict[str, tuple[Any, Any, tuple[Any, ...]]] = {
    "graded": (SUCCESS, GRADED, ("success", 1.0, None, None, None)),
    "no completion callback": (None, GRADED, ("success", 1.0, None, None, None)),
    "agent raises": (failure("agent_error"), failure(), failed("agent_error", "agent", "exception")),
    "agent timeout": (failure("timeout"), failure(), failed("timeout", "agent", "timeout")),
    "server error": (failure(), failure(), failed("workflow_failed", "rollout_server", "server_error")),
    "failed agent with a reward": (
        failure("agent_error"),
        GRADED,
        failed("agent_error", "agent", "exception"),
    ),
    "no grader": (SUCCESS, failure(), failed("grader_failed", "grader", "nothing_to_grade")),
    "no sample": (
        SUCCESS,
        failure("validation_error"),
        failed("validation_error", "agent", "nothing_to_grade"),
    ),
    "no reward": (
        SUCCESS,
        failure("validation_error", sample=UNREWARDED),
        failed("validation_error", "grader", "invalid_value"),
    ),
    "grader timeout": (
        SUCCESS,
        failure("timeout", sample=UNREWARDED),
        failed("timeout", "grader", "timeout"),
    ),
    "removed sample": (SUCCESS, REMOVED, ("skipped", None, None, None, None)),
    "no grader callback": (SUCCESS, None, failed("missing_grader_callback", "rollout_server", "no_result")),
    "callback timeout": (SUCCESS, None, failed("callback_timeout", "rollout_server", "timeout")),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_verdicts(case: str) -> None:
    completion, grader, expected = VERDICTS[case]
    source = "timeout" if case == "callback timeout" else "grader"
    verdict = classify(terminal(completion, grader, source))
    found = (verdict.status, verdict.reward, verdict.error_type, verdict.boundary, verdict.category)
    assert found == expected
    assert verdict.category is None or verdict.category in DOCUMENTED_CODES
    assert (verdict.error is None) == (verdict.status != "failed")


@pytest.mark.parametrize("category", get_args(Category))
def test_the_error_code_of_a_failed_model_call_is_documented(category: Category) -> None:
    error = ModelCallError(category, "", model_path="openai/x")
    assert error_code_of("agent_error", error) in DOCUMENTED_CODES


def test_lost_attempts_are_recorded_and_counted_separately() -> None:
    lost = record(1, lost_attempts=2)
    assert TerminalRecord.from_line(lost.to_line()) == lost
    assert b"lost_attempts" not in record(0).to_line()

    metrics = MeasuredResults(rows=3, n=1)
    metrics.add(0, 0, "success", 1.0, lost_attempts=1)
    metrics.add(1, 0, "failed", None, boundary="agent", lost_attempts=2)
    counts = metrics.summary().estimates.counts
    assert (counts.lost_attempts, counts.planned, counts.pending) == (3, 3, 1)
    metrics.add(1, 0, "success", 1.0)
    assert metrics.summary().estimates.counts.lost_attempts == 1


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_loop_reports_its_longest_delay_and_its_work_of_the_last_half_second() -> None:
    clock, work = Clock(), Clock()
    monitor = LoopMonitor(clock=clock, work=work)
    monitor.beat()
    clock.now += 0.1
    monitor.beat()
    assert monitor.state() == LoopState(pytest.approx(0.0), 0.0)
    clock.now += 0.4
    work.now += 0.3
    monitor.beat()
    assert monitor.state() == LoopState(pytest.approx(0.3), pytest.approx(0.6))
    for _ in range(20):
        clock.now += 0.1
        monitor.beat()
    assert monitor.state() == LoopState(pytest.approx(0.0), 0.0)


async def test_a_running_loop_that_computes_is_busy() -> None:
    monitor = LoopMonitor()
    monitor.start()
    began, until = time.monotonic(), time.thread_time() + 0.3
    while time.thread_time() < until:
        pass
    busy = monitor.state().busy
    # On a busy machine, this thread gets a part of a processor.
    share = 0.3 / (time.monotonic() - began)
    monitor.stop()
    assert busy >= 0.9 * share
    assert monitor.state() == LoopState()


def limits(limiter: ConcurrencyLimiter, *observed: tuple[float, int], wait_s: float = 0.1) -> list[int]:
    """Return the limit after each half second of (busy, attempts that finished)."""
    found = []
    for busy, finished in observed:
        limiter.observe(busy=busy, model_waits_s=[wait_s] * finished)
        found.append(limiter.limit)
    return found


def test_the_limit_doubles_while_loops_have_room_and_is_cut_where_they_are_saturated() -> None:
    assert ConcurrencyLimiter(8).limit == 8
    limiter = ConcurrencyLimiter(512)
    assert limiter.limit == 64
    assert limits(limiter, (0.1, 0), (0.95, 0), (0.5, 3), (0.7, 9), (0.0, 0)) == [128, 128, 256, 256, 512]

    found = limits(ConcurrencyLimiter(512), *[(0.95, 50)] * 14)
    assert found[1::2] == [48, 36, 27, 20, 16, 16, 16]
    assert limits(ConcurrencyLimiter(8), *[(1.0, 8)] * 3) == [8, 8, 8]

    assert limits(ConcurrencyLimiter(100), *[(1.0, 0)] * 4, (0.9, 1), (0.85, 50)) == [64] * 4 + [48, 48]

    limiter = ConcurrencyLimiter(60)
    assert limits(limiter, (1.0, 9), (1.0, 9), (0.69, 0), (0.7, 3), (0.1, 9)) == [60, 45, 48, 48, 51]
    assert limits(limiter, *[(0.0, 1)] * 5)[-1] == 60

    waves = [(1.0, 100), (1.0, 100), *[(0.75, 0)] * 8] * 5
    assert set(limits(ConcurrencyLimiter(64), *waves, wait_s=9.5)) == {64}
    steady = limits(ConcurrencyLimiter(64), *[(1.0, 20)] * 40, wait_s=9.5)
    assert (steady[17], steady[18], steady[36], steady[37]) == (64, 48, 48, 36)
