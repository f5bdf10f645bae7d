"""Runs that a machine was given and that wait for their place on its disk: neither other runs nor a signal wait with them."""

from __future__ import annotations

import threading

import pytest

from osmosis_ai.platform.runs.execute.worker_process import ENDED
from osmosis_ai.platform.runs.work.taken_runs import TakenRuns
from tests.platform.runs.played_hosts import Play, Worker, assignment


def held(monkeypatch: pytest.MonkeyPatch, name: str) -> tuple[threading.Event, threading.Event]:
    """Have another process clear away what is on the disk where one run is to be; return when it is met, and its end."""
    take, met, is_over = TakenRuns.take, threading.Event(), threading.Event()

    def taken(runs: TakenRuns, run_id: str, claim_id: str) -> None:
        if run_id == name:
            # Whoever waits here is none of those that time waits for.
            threading.current_thread().name = "waits"
            met.set()
            assert is_over.wait(60)
        take(runs, run_id, claim_id)

    monkeypatch.setattr(TakenRuns, "take", taken)
    return met, is_over


def test_a_run_that_waits_for_its_place_on_the_disk_keeps_no_other_waiting(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform, host = play([assignment("first"), assignment("second")], [ENDED, ENDED], slots=2)
    _, is_over = held(monkeypatch, "run_first")
    start = platform.start

    def started(run_id: str, claim_id: str) -> Worker:
        is_over.set()
        return start(run_id, claim_id)

    platform.start = started  # type: ignore[method-assign]
    end = platform._end
    platform._end = lambda: end() if len(platform.started) == 2 else None  # type: ignore[method-assign]
    host.run()
    assert [run_id for run_id, _ in platform.started] == ["run_second", "run_first"]
    assert platform.released == []


def test_a_machine_that_is_to_end_lets_go_of_a_run_that_waits_for_its_place_on_the_disk(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform, host = play([assignment("first")], slots=1)
    met, is_over = held(monkeypatch, "run_first")
    asking = threading.Thread(target=lambda: (met.wait(60), host.ask_to_end()))
    asking.start()
    try:
        assert host.run() == []
        assert platform.released == [("run_first", "lease of first", None)]
        assert platform.started == []
    finally:
        is_over.set()
        asking.join()
