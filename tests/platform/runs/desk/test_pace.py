"""How often workers are asked to come, by what a platform really serves."""

from __future__ import annotations

from datetime import timedelta

import pytest

from osmosis_ai.platform.runs.desk.pace import EXCHANGES_PER_S, LATE_S, LONGEST_S, SHORTEST_S, SyncPace
from tests.platform.conftest import ManualClock


def served(
    pace: SyncPace,
    clock: ManualClock,
    *,
    runs: int,
    a_second: float,
    waited_s: float = 0.0,
    seconds: int = 60,
) -> float:
    """Serve so many exchanges a second for a while, of runs in their turn; return what the last one is told."""
    count, told = 0, 0.0
    for _ in range(seconds):
        clock.advance(1.0)
        for _ in range(round(a_second)):
            pace.note_wait(waited_s)
            told = pace.next_s(f"run-{count % runs}")
            count += 1
    return told


@pytest.fixture
def pace(clock: ManualClock) -> SyncPace:
    return SyncPace(clock, timedelta(seconds=30))


def test_a_few_workers_come_as_often_as_a_page_wants_to_see_it(pace: SyncPace, clock: ManualClock) -> None:
    assert served(pace, clock, runs=3, a_second=6) == SHORTEST_S
    assert SHORTEST_S == 0.5, (
        "a sample is on a page within two seconds, and a slow run pays for few exchanges"
    )


def test_a_hundred_workers_that_say_one_thing_a_second_come_each_second(
    pace: SyncPace, clock: ManualClock
) -> None:
    assert served(pace, clock, runs=100, a_second=EXCHANGES_PER_S) == 1.0


def test_workers_that_say_three_things_a_round_are_asked_to_come_so_much_seldomer(
    pace: SyncPace, clock: ManualClock
) -> None:
    rate, told = 300.0, 1.0
    for _ in range(30):  # each comes when it was told to
        told = served(pace, clock, runs=100, a_second=rate, seconds=4)
        rate = 3 * 100 / told
    assert 2.4 <= told <= 3.8
    assert rate == pytest.approx(EXCHANGES_PER_S, rel=0.25)


def test_a_platform_that_is_late_asks_for_less_and_for_more_again_when_it_is_not(
    pace: SyncPace, clock: ManualClock
) -> None:
    late = served(pace, clock, runs=10, a_second=20, waited_s=2 * LATE_S)
    assert late == LONGEST_S
    assert served(pace, clock, runs=10, a_second=20) == SHORTEST_S


def test_nobody_is_asked_to_come_less_often_than_three_times_in_a_lease(clock: ManualClock) -> None:
    pace = SyncPace(clock, timedelta(seconds=3))
    assert served(pace, clock, runs=50, a_second=50, waited_s=5.0, seconds=5) == 1.0
