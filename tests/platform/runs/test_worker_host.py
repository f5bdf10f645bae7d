"""A machine that takes runs, with a platform and workers that the test plays, and what runs leave on it."""

from __future__ import annotations

import errno
import math
import os
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.wire.workers import Assignment, ReleaseRequest, RunClosed, WorkerOffer
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.runs.execute.worker_process import ENDED, LEASE_LOST, NOT_MINE, SET_BACK, STORE_AWAY
from osmosis_ai.platform.runs.work.platform_link import (
    CredentialRefusedError,
    PlatformUnreachableError,
)
from osmosis_ai.platform.runs.work.taken_runs import KEPT_S, TakenRuns
from osmosis_ai.platform.runs.work.worker_host import WorkerHost
from osmosis_ai.platform.runs.working_directory import WorkingDirectory
from tests.platform.runs.played_hosts import Platform, Play, assignment, endings


def test_a_worker_repeats_the_claim_of_its_host(play: Play) -> None:
    platform, host = play([assignment("first"), None, assignment("second")], [ENDED, ENDED], gpus=2)
    assert endings(host.run()) == ["ended", "ended"]
    first, _, second, *_ = platform.offers
    assert platform.started == [("run_first", first.claim_id), ("run_second", second.claim_id)]
    assert first.claim_id != second.claim_id
    assert (first.pool, first.gpus, first.run_id) == ("gpu", 2, None)
    assert platform.released == []  # workers speak for themselves


def test_a_claim_is_kept_until_its_worker_has_begun_and_no_longer(play: Play) -> None:
    begun = OsmosisError("this claim has been answered.", code="CONFLICT")
    away = PlatformUnreachableError("the platform does not answer: connection refused.")
    claims = [assignment("first"), assignment("first"), away, assignment("first"), begun]
    platform, host = play([*claims], [None], once=True)
    platform.workers_end_at = 500.0
    assert endings(host.run()) == ["ended"]
    first, *again = platform.offers
    assert len(again) == len(claims) - 1
    assert {(offer.claim_id, offer.run_id, offer.wait_s) for offer in again} == {
        (first.claim_id, "run_first", 0.0)
    }
    assert all(10.0 <= pause < 20.0 for pause in pauses(platform)), "a third of the lease"


def test_once_is_one_run_and_a_run_that_is_named_is_asked_for_alone(play: Play) -> None:
    platform, host = play([assignment("first"), assignment("second")], [ENDED], once=True)
    assert endings(host.run()) == ["ended"]
    assert len(platform.offers) == 1
    platform, host = play([None, assignment("first")], [ENDED], pool=None, run_id="run_first")
    assert endings(host.run()) == ["ended"]
    assert {(offer.pool, offer.run_id) for offer in platform.offers} == {(None, "run_first")}
    assert len({offer.claim_id for offer in platform.offers}) == 1  # a ticket is bound to it


def test_a_run_whose_worker_died_is_let_go_of_at_once_with_the_reason(play: Play) -> None:
    platform, host = play([assignment("first"), assignment("second")], [-signal.SIGKILL, NOT_MINE])
    assert endings(host.run()) == ["died", "not_mine"]
    assert platform.released == [
        ("run_first", "lease of first", "its worker died (signal 9, as when the machine has no memory left)"),
        ("run_second", "lease of second", None),
    ]
    assert platform.of_machine == [False, False], "that may be the run, and nobody's fault"


def test_a_worker_that_lost_its_lease_or_was_set_back_has_said_so_itself(play: Play) -> None:
    answers = [assignment("first"), assignment("second"), assignment("third")]
    platform, host = play(answers, [LEASE_LOST, SET_BACK, STORE_AWAY])
    assert endings(host.run()) == ["lease_lost", "set_back", "store_away"]
    assert platform.released == []


def test_asked_to_end_it_asks_its_workers_once_and_takes_no_more(play: Play) -> None:
    platform, host = play([assignment("first")], [None], slots=2)
    assert endings(host.run()) == ["left"]  # the second claim has the test ask it to end
    assert platform.signals == [signal.SIGTERM]
    assert platform.released == []


def asked_twice(play: Play, monkeypatch: pytest.MonkeyPatch) -> tuple[Platform, WorkerHost]:
    """Return a machine that is asked to end while its worker is slow to put a run aside, and asked again."""
    platform, host = play([assignment("first")], [None], slots=2)
    monkeypatch.setattr(os, "kill", lambda pid, number: host.ask_to_end())  # by whom it waits for
    return platform, host


def test_asked_twice_it_ends_its_workers_by_force(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osmosis_ai.platform.runs.work.worker_host.LAST_WORD_S", math.inf)
    platform, host = asked_twice(play, monkeypatch)
    release, alive = platform.release, []

    def released(run_id: str, request: ReleaseRequest) -> RunClosed:
        alive.extend(worker for worker in platform.workers if worker.status is None)
        return release(run_id, request)

    platform.release = released  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        host.run()
    assert [worker.status for worker in platform.workers] == [-signal.SIGKILL]
    assert platform.released == [("run_first", "lease of first", None)]
    assert alive == [], "another machine may have it at once"
    assert platform.said[-1] == (
        "let go of the run first for another worker; what was not sent is done again"
    )


def test_a_worker_killed_by_an_early_signal(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    platform, host = play([assignment("first")], [None], slots=2)

    def killed(pid: int, number: int) -> None:
        platform.workers[0].status = -number

    monkeypatch.setattr(os, "kill", killed)
    assert endings(host.run()) == ["not_mine"]
    assert platform.released == [("run_first", "lease of first", None)]


def test_a_refused_credential_puts_runs_aside_and_ends_with_the_platforms_sentence(play: Play) -> None:
    refused = CredentialRefusedError("this worker token has been revoked.")
    platform, host = play([assignment("first"), refused], [None], slots=2)
    with pytest.raises(CredentialRefusedError, match="has been revoked"):
        host.run()
    assert platform.signals == [signal.SIGTERM]
    assert platform.workers[0].status == ENDED
    assert platform.said[-2:] == ["released the run first", "worked on 1 run"]


def test_a_platform_that_is_away_is_asked_again_with_the_same_claim_and_said_once(play: Play) -> None:
    away = PlatformUnreachableError("the platform does not answer: connection refused.")
    platform, host = play([away, away, assignment("first")], [ENDED], once=True)
    assert endings(host.run()) == ["ended"]
    assert len({offer.claim_id for offer in platform.offers}) == 1
    assert [line for line in platform.said if "does not answer" in line] == [
        "trying again: the platform does not answer: connection refused."
    ]


def pauses(platform: Platform) -> list[float]:
    """Return how long each question came after the one before, in the seconds of a clock that runs fast."""
    return [later - former for former, later in pairwise(platform.asked_at)]


def test_a_claim_that_is_over_is_made_anew(play: Play) -> None:
    over = OsmosisError("this claim has been answered.", code="CONFLICT")
    platform, host = play([over, assignment("first")], [ENDED], once=True)
    assert endings(host.run()) == ["ended"]
    assert len({offer.claim_id for offer in platform.offers}) == 2


def test_without_a_run_it_ends_when_it_was_said_to_and_one_that_is_named_is_missed(play: Play) -> None:
    platform, host = play([None] * 100, idle_exit_s=30)
    assert host.run() == []
    assert 0 < platform.offers[-1].wait_s < 30
    platform, host = play([None] * 1000, pool=None, run_id="run_gone")
    with pytest.raises(OsmosisError, match="the run run_gone could not be taken"):
        host.run()
    (waits,) = platform.said
    assert waits.startswith(
        "still waits: the run run_gone could not be taken: it is not there for this worker"
    )


def test_a_machine_says_once_that_it_leaves(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    platform, host = play([None] * 100, idle_exit_s=30, machine="box-1", labels=("a100",))
    host.run()
    (left,) = platform.left
    assert left.model_copy(update={"wait_s": 0.0}) == platform.offers[-1].model_copy(update={"wait_s": 0.0})
    platform, host = play([assignment("first")], statuses=[ENDED], once=True)
    host.run()
    assert len(platform.left) == 1
    platform, host = asked_twice(play, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        host.run()
    assert len(platform.left) == 1


@pytest.mark.parametrize("alone", [{}, {"once": True}, {"pool": None, "run_id": "run_first"}])
def test_a_platform_that_was_never_reached(play: Play, alone: dict[str, Any]) -> None:
    away = PlatformUnreachableError("the platform does not answer: connection refused.")
    _, host = play([away] * 1000, idle_exit_s=30, **alone)
    with pytest.raises(PlatformUnreachableError, match="connection refused"):
        host.run()


@pytest.mark.parametrize("status", [302, 404, 405, 501])
def test_an_address_that_is_no_platform_is_given_up_with_what_mends_it(play: Play, status: int) -> None:
    _, host = play([PlatformError(f"API error: HTTP {status}.", status=status)])
    with pytest.raises(OsmosisError, match="no platform accepts workers at this address") as caught:
        host.run()
    assert "give --url the address" in (caught.value.hint or "")


def test_a_named_run_is_released_with_its_job(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    platform, host = play([assignment("first")], [None], pool=None, run_id="run_first")
    parent = os.getppid()
    monkeypatch.setattr(os, "getppid", lambda: 1 if platform.workers else parent)
    assert endings(host.run()) == ["left"]
    assert platform.signals == [signal.SIGTERM]


def test_a_claim_answered_too_late_is_released(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    platform, host = play([])
    monkeypatch.setattr("osmosis_ai.platform.runs.work.worker_host.ROUND_S", 60)

    def late(offer: WorkerOffer) -> Assignment:
        host.ask_to_end()
        return assignment("late")

    platform.claim = late  # type: ignore[method-assign]
    assert host.run() == []
    assert platform.released == [("run_late", "lease of late", None)]


def test_a_worker_that_cannot_start(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    platform, host = play([assignment("first"), assignment("second")], [ENDED])
    take, full = TakenRuns.take, OSError(errno.ENOSPC, "No space left on device")

    def taken(runs: TakenRuns, run_id: str, claim_id: str) -> None:
        if run_id == "run_first":
            raise full
        take(runs, run_id, claim_id)

    monkeypatch.setattr(TakenRuns, "take", taken)
    assert endings(host.run()) == ["set_back", "ended"]
    ((run_id, lease, why),) = platform.released
    assert (run_id, lease) == ("run_first", "lease of first")
    assert why is not None and why.endswith("could not start its worker: No space left on device")
    assert platform.of_machine == [True]


NOW = 1_000_000_000.0
JOURNAL = b'{"row": 0}\n'


@pytest.fixture
def runs(tmp_path: Path) -> TakenRuns:
    return TakenRuns(tmp_path, now=lambda: NOW)


def worked_on(runs_dir: Path, run_id: str, *, age_s: float = 0.0) -> WorkingDirectory:
    """Return the directory of a run as a worker leaves it that was killed, all of it written ``age_s`` ago."""
    directory = WorkingDirectory(runs_dir, run_id)
    evaluation = directory.evaluation("a")
    (evaluation.trajectories / "sample").mkdir(parents=True)
    (directory.source / "rollouts").mkdir(parents=True)
    for file in (directory.source_archive, directory.dataset("jsonl"), directory.log, evaluation.manifest):
        file.write_bytes(b"x")
    evaluation.events.write_bytes(JOURNAL)
    directory.note_lease("token")
    for path in [directory.path, *directory.path.rglob("*")]:
        os.utime(path, (NOW - age_s, NOW - age_s))
    return directory


def files(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}


def test_of_a_lost_run_its_journals_stay_and_it_can_be_taken_again(runs: TakenRuns, tmp_path: Path) -> None:
    for claim in ("1", "2"):
        runs.take("run_a", claim)
        directory = worked_on(tmp_path, "run_a")
        runs.lose("run_a", claim)
    assert files(directory.output_root) == {"a/events.jsonl.diverged", "a/events.jsonl.diverged-2"}
    assert files(directory.path) - {"worker.lock"} == {
        "taken",
        "lost",
        "evaluation/a/events.jsonl.diverged",
        "evaluation/a/events.jsonl.diverged-2",
    }
    runs.take("run_a", "3")
    assert not (directory.path / "lost").exists()


def test_a_run_that_this_home_has_taken_again_is_not_touched(runs: TakenRuns, tmp_path: Path) -> None:
    runs.take("run_a", "1")
    before = files(worked_on(tmp_path, "run_a").path)
    TakenRuns(tmp_path).take("run_a", "2")  # by another host, whose worker has not locked it yet
    runs.lose("run_a", "1")
    assert files(tmp_path / "run_a") == {*before, "taken"}
    successor = WorkingDirectory(tmp_path, "run_a")
    assert successor.lock()
    runs.lose("run_a", "2")
    assert files(tmp_path / "run_a") >= before, "its worker is alive"


def test_what_nobody_came_back_to_for_a_day_goes_and_the_rest_stays(runs: TakenRuns, tmp_path: Path) -> None:
    def left(run_id: str, *, age_s: float) -> WorkingDirectory:
        runs.take(run_id, "1")
        return worked_on(tmp_path, run_id, age_s=age_s)

    left("run_old", age_s=KEPT_S + 60)
    left("run_young", age_s=KEPT_S - 60)
    long_one = left("run_of_three_days", age_s=3 * KEPT_S)
    os.utime(long_one.evaluation("a").events, (NOW - 60, NOW - 60))
    at_work = left("run_at_work", age_s=3 * KEPT_S)
    assert at_work.lock()
    os.utime(at_work.path / "worker.lock", (NOW - KEPT_S - 60, NOW - KEPT_S - 60))
    worked_on(tmp_path, "run_of_the_platform", age_s=3 * KEPT_S)
    runs.sweep()
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {
        "run_young",
        "run_of_three_days",
        "run_at_work",
        "run_of_the_platform",
    }
