"""A machine that is late: noticed, given less to do, and never mistaken for an agent that fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from osmosis_ai.driving.call_record import RolloutUsage
from osmosis_ai.driving.callback_registry import TerminalCallbackResult
from osmosis_ai.driving.classify import classify
from osmosis_ai.driving.dispatcher import Dispatcher
from osmosis_ai.driving.machine import LimitTally, MachineWatch, Pace
from osmosis_ai.driving.overload import blame_machine, overloaded, suspected_since
from osmosis_ai.driving.server_health import ServerHealth
from osmosis_ai.evaluation.metrics import MetricsAccumulator
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.event_loop import LoopLag, LoopState
from osmosis_ai.llm.errors import ModelCallError
from osmosis_ai.rollout.types import RolloutCompleteRequest, RolloutErrorCategory, RolloutStatus
from tests.evaluation.builders import record


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


# --- the heartbeat -----------------------------------------------------------------------------------------


def test_a_loop_is_as_late_as_its_heartbeat_and_stays_known_to_have_been(clock: Clock) -> None:
    lag = LoopLag(clock=clock, cpu=lambda: 0.0)
    lag.beat()
    clock.now += 0.1
    lag.beat()
    assert lag.state() == LoopState(pytest.approx(0.0), 0.0, None)
    clock.now += 0.1 + 0.4
    lag.beat()
    assert lag.state().lag_s == pytest.approx(0.4)
    for _ in range(20):
        clock.now += 0.1
        lag.beat()
    assert lag.state().lag_s == pytest.approx(0.0), "the last second was quiet"
    assert lag.state().late_ago_s == pytest.approx(2.0)


def test_a_heartbeat_that_is_overdue_counts_before_it_comes(clock: Clock) -> None:
    lag = LoopLag(clock=clock, cpu=lambda: 0.0)
    lag.beat()
    clock.now += 0.1 + 3.0
    assert lag.state() == LoopState(pytest.approx(3.0), 0.0, pytest.approx(0.0))


def test_a_loop_tells_how_much_of_the_time_it_computes(clock: Clock) -> None:
    lag = LoopLag(clock=clock, cpu=lambda: clock.now * 0.75)
    lag.beat()
    clock.now += 0.1
    lag.beat()
    assert lag.state().busy == pytest.approx(0.75)


async def test_a_blocked_loop_is_seen_from_inside() -> None:
    import time

    lag = LoopLag()
    lag.start()
    try:
        time.sleep(0.4)  # noqa: ASYNC251 - it is this that is measured
        assert lag.state().lag_s >= 0.25
        await asyncio.sleep(0)
        assert lag.state().late_ago_s is not None
    finally:
        lag.stop()


# --- the pace ----------------------------------------------------------------------------------------------


def test_two_seconds_of_lateness_leave_three_quarters_in_flight_and_quiet_brings_them_back(
    clock: Clock,
) -> None:
    pace = Pace(128, clock=clock)
    seen = []
    for second in range(9):
        pace.observe(0.3)
        seen.append((second, pace.allowed))
        clock.now += 1
    assert [allowed for _, allowed in seen] == [128, 128, 96, 96, 72, 72, 54, 54, 40]
    for _ in range(60):
        pace.observe(0.01)
        clock.now += 1
    assert pace.allowed == 128
    assert not pace.narrowed


def test_lateness_that_passes_changes_nothing(clock: Clock) -> None:
    pace = Pace(32, clock=clock)
    for lag_s in (0.4, 5.0, 0.2, 0.3, 0.0, 0.249) * 10:
        assert not pace.observe(lag_s)
        clock.now += 0.9
    assert pace.allowed == 32


@pytest.mark.parametrize("ceiling, least", [(1, 1), (2, 1), (16, 4), (32, 8), (512, 8)])
def test_a_machine_that_others_keep_busy_does_not_bring_a_run_to_a_crawl(
    clock: Clock, ceiling: int, least: int
) -> None:
    pace = Pace(ceiling, clock=clock)
    for _ in range(50):
        pace.observe(10.0)
        clock.now += 1
    assert pace.allowed == least


async def test_a_narrowed_dispatcher_starts_less_and_stops_nothing() -> None:
    running: set[int] = set()
    most: list[int] = []
    free = asyncio.Semaphore(0)

    async def attempt(item: int) -> bool:
        running.add(item)
        most.append(len(running))
        await free.acquire()
        running.discard(item)
        return True

    async def settle() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    dispatcher = Dispatcher(iter(range(40)), attempt, limit=8)
    run = asyncio.ensure_future(dispatcher.run())
    await settle()
    assert len(running) == 8
    dispatcher.narrow(2)
    assert len(running) == 8, "what is in flight goes on"
    for _ in range(6):
        free.release()
    await settle()
    assert len(running) == 2
    most.clear()
    for _ in range(10):
        free.release()
        await settle()
    assert max(most) == 2
    dispatcher.narrow(100)
    await settle()
    assert len(running) == 8, "never more than its limit"
    for _ in range(40):
        free.release()
    assert await asyncio.wait_for(run, 60) is None
    assert not running


# --- the watch ---------------------------------------------------------------------------------------------


class Server:
    def __init__(self, ceiling: int, clock: Clock) -> None:
        self.pace = Pace(ceiling, clock=clock)
        self.state = self.anew = LoopState(0.0)
        self.asked = 0

    async def ask(self) -> LoopState:
        self.asked += 1
        return self.anew


class Machine:
    """An engine, two servers and a provider that do as the test says."""

    def __init__(self, clock: Clock, *, ceiling: int = 16) -> None:
        self.engine = LoopState(0.0)
        self.server, self.neighbour = Server(ceiling, clock), Server(ceiling, clock)
        self.limited = False
        self.tally = LimitTally()
        self.watch = MachineWatch(
            engine=lambda: self.engine,
            servers=[self.server, self.neighbour],
            rate_limited=lambda: self.limited,
            clock=clock,
        )

    def tick(self, *, in_flight: int) -> bool:
        return self.watch.tick(self.tally, in_flight=in_flight)


@pytest.mark.parametrize(("late", "allowed"), [("engine", (12, 12)), ("server", (12, 16))])
def test_a_server_that_is_late_gets_less_to_do_and_an_engine_that_is_late_slows_all(
    clock: Clock, late: str, allowed: tuple[int, int]
) -> None:
    machine, lateness = Machine(clock), LoopState(0.3, late_ago_s=0.0)
    if late == "engine":
        machine.engine = lateness
    else:
        machine.server.state = lateness
    changes = []
    for _ in range(10):
        changes.append(machine.tick(in_flight=4))
        clock.now += 0.25
    assert changes.count(True) == 1
    assert (machine.server.pace.allowed, machine.neighbour.pace.allowed) == allowed


async def test_a_lateness_is_found_where_it_was_and_not_before_the_attempt(clock: Clock) -> None:
    machine = Machine(clock)
    server = machine.server
    assert not await machine.watch.was_late(clock.now - 5, server)
    assert server.asked == 1, "what was heard last may be older than the failure"
    machine.engine = LoopState(0.0, late_ago_s=6.0)
    assert not await machine.watch.was_late(clock.now - 5, server)
    assert await machine.watch.was_late(clock.now - 7, server)
    assert await machine.watch.was_late(clock.now - 7, None)
    machine.engine = LoopState(0.0)
    server.anew = LoopState(0.0, late_ago_s=1.0)
    assert await machine.watch.was_late(clock.now - 5, server)
    assert not await machine.watch.was_late(clock.now - 5, machine.neighbour), "it ran none of this attempt"


def test_the_result_says_what_held_the_run_back(clock: Clock) -> None:
    machine = Machine(clock)
    assert machine.tally.limited_by() is None
    machine.tick(in_flight=0)
    assert machine.tally.limited_by() is None, "a run that has nothing in flight is held back by nobody"
    for _ in range(6):
        machine.tick(in_flight=4)
    machine.limited = True
    for _ in range(3):
        machine.tick(in_flight=4)
    machine.server.state = LoopState(0.05, busy=0.97)
    machine.tick(in_flight=4)
    found = machine.tally.limited_by()
    assert found is not None
    assert found.model_dump() == {
        "most": "provider",
        "provider": 0.6,
        "rate_limit": 0.3,
        "this_machine": 0.1,
    }
    for _ in range(20):
        machine.tick(in_flight=4)
    found = machine.tally.limited_by()
    assert found is not None and found.most == "this_machine"


@pytest.mark.parametrize(
    ("told", "late"),
    [
        ({"event_loop": {"lag_ms": 300.0, "busy": 0.5, "late_ago_ms": 20.0}}, True),
        ({"event_loop": {"lag_ms": 3.0, "busy": 0.5, "late_ago_ms": None}}, False),
        ({"event_loop": {"lag_ms": "x"}}, False),
        ({"event_loop": 5}, False),
        ({"status": "ok"}, False),
        ([], False),
    ],
)
async def test_a_servers_health_says_how_late_it_is(told: Any, late: bool) -> None:
    async def health(_: web.Request) -> web.Response:
        return web.json_response(told)

    app = web.Application()
    app.router.add_get("/health", health)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    # A clock that stands still: how long the answer takes on this machine is not the question.
    server = ServerHealth(clock=Clock())
    try:
        state = await server.ask(f"http://127.0.0.1:{runner.addresses[0][1]}")
        assert (state.late_ago_s is not None) is late
        assert server.state.late_ago_s == pytest.approx(state.late_ago_s)
        gone = await server.ask("http://127.0.0.1:9")
        assert gone.late_ago_s is None, "a server that is gone is not late"
    finally:
        await server.aclose()
        await runner.cleanup()


# --- the attempt -------------------------------------------------------------------------------------------


def failed(category: str | None = "agent_error", message: str = "ReadTimeout") -> TerminalCallbackResult:
    completion = RolloutCompleteRequest(
        status=RolloutStatus.FAILURE,
        rollout_id="r",
        err_message=message,
        err_category=RolloutErrorCategory(category) if category else None,
    )
    return TerminalCallbackResult("r", "grader", completion=completion)


@pytest.mark.parametrize(
    ("category", "usage", "since"),
    [
        ("agent_error", RolloutUsage(requests=0), 10.0),
        ("timeout", RolloutUsage(requests=0), 10.0),
        ("agent_error", RolloutUsage(requests=2, cut_off_since=14.0), 14.0),
        ("timeout", RolloutUsage(requests=2, cut_off_since=14.0), 14.0),
        ("agent_error", RolloutUsage(requests=2), None),
        ("validation_error", RolloutUsage(requests=0), None),
        (None, RolloutUsage(requests=0), None),
        (
            "agent_error",
            RolloutUsage(
                requests=1, cut_off_since=14.0, last_error=ModelCallError("server", "down", model_path="m")
            ),
            None,
        ),
    ],
)
def test_only_a_call_that_did_not_arrive_or_was_cut_off_can_be_the_machines_fault(
    category: str | None, usage: RolloutUsage, since: float | None
) -> None:
    found = suspected_since(failed(category), usage, started=10.0, ended=20.0, agent_timeout_s=30.0)
    assert found == since


def test_a_call_under_way_when_the_agents_time_is_up_was_not_cut_off_by_its_client() -> None:
    usage = RolloutUsage(requests=1, cut_off_since=14.0)
    found = suspected_since(failed("timeout"), usage, started=10.0, ended=41.0, agent_timeout_s=30.0)
    assert found is None


def test_success_is_never_suspected() -> None:
    done = RolloutCompleteRequest(status=RolloutStatus.SUCCESS)
    terminal = TerminalCallbackResult("r", "grader", completion=done)
    found = suspected_since(terminal, RolloutUsage(), started=1.0, ended=2.0, agent_timeout_s=None)
    assert found is None


def test_what_was_cut_off_every_time_is_a_failure_of_the_machines() -> None:
    verdict = blame_machine(classify(failed()), times=3)
    assert (verdict.status, verdict.error_type) == ("failed", "agent_error")
    assert (verdict.boundary, verdict.category) == ("rollout_server", "overloaded")
    assert verdict.error == "ReadTimeout (its model call was cut off 3 times while this machine was late)"
    assert str(overloaded(RolloutUsage())) == "its model call never arrived while this machine was late"


def test_lost_attempts_are_in_the_record_and_counted_apart() -> None:
    lost = record(1, lost_attempts=2)
    assert TerminalRecord.from_line(lost.to_line()) == lost
    assert b"lost_attempts" not in record(0).to_line()
    with pytest.raises(ValueError, match="`lost_attempts` cannot be -1"):
        TerminalRecord.from_line(lost.to_line().replace(b'"lost_attempts":2', b'"lost_attempts":-1'))

    metrics = MetricsAccumulator(rows=3, n=1)
    metrics.add(0, 0, "success", 1.0, lost_attempts=1)
    metrics.add(1, 0, "failed", None, boundary="agent", lost_attempts=2)
    counts = metrics.summary().estimates.counts
    assert (counts.lost_attempts, counts.planned, counts.pending) == (3, 3, 1)
    metrics.add(1, 0, "success", 1.0)
    assert metrics.summary().estimates.counts.lost_attempts == 1
