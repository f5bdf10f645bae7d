"""The local executor's decisions, with workers that are only pretended."""

from __future__ import annotations

import errno
import shutil
import threading
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import pytest
from sqlalchemy import select

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.journal_chain import BEFORE_THE_FIRST, sealed
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.base import upsert
from osmosis_ai.platform.db.tables import DbRun, DbSample
from osmosis_ai.platform.runs.desk.closing import FRUITLESS
from osmosis_ai.platform.runs.execute.failure_streak import SETBACKS, FailureStreak
from osmosis_ai.platform.runs.execute.leftovers import remove_leftovers
from osmosis_ai.platform.runs.execute.worker_process import ENDED, NOT_MINE, SET_BACK, worker_environment
from osmosis_ai.platform.runs.journalled import sample_row
from osmosis_ai.platform.runs.stored_journal import stored_records
from osmosis_ai.platform.runs.work.run_work import MAX_SENTENCE_CHARS, one_sentence
from osmosis_ai.platform.runs.working_directory import WorkingDirectory
from osmosis_ai.process_environment import program_environment
from tests.deep_directories import deep_directories
from tests.evaluation.builders import record
from tests.platform.conftest import ManualClock, Member, World
from tests.platform.runs.pretended_workers import Bench, messages
from tests.platform.viewer.runs_world import statements_of


def test_runs_start_in_order_and_no_more_than_there_are_slots(bench: Bench, member: Member) -> None:
    for name in "abcd":
        bench.add(name, member)
    bench.executor.round()
    bench.executor.round()
    assert bench.order == ["a", "b"]
    bench.end(bench.started[0])
    bench.executor.round()
    assert bench.order == ["a", "b", "c"]


def test_a_round_with_nothing_to_start_asks_the_database_once_and_of_runs_at_work_once_more(
    bench: Bench, member: Member
) -> None:
    bench.executor.round()  # the first looks for jobs of an earlier process
    with statements_of(bench.services.db) as asked:
        bench.executor.round()
        assert len(asked) == 1
    bench.add("a", member)
    for _ in range(3):
        bench.executor.round()
    bench.claim(bench.started[0])
    with statements_of(bench.services.db) as asked:
        bench.executor.round()
        assert len(asked) == 2


def test_one_workspaces_queue_does_not_hold_up_another(
    bench: Bench, member: Member, stranger: Member
) -> None:
    for name in "abc":
        bench.add(name, member)
    bench.add("z", stranger)
    bench.executor.round()
    assert bench.order == ["a", "z"]
    bench.end(bench.started[1])
    bench.executor.round()
    assert bench.order == ["a", "z", "b"]


@pytest.mark.parametrize("status", ["pending", "running"])
@pytest.mark.parametrize("hours", [-24, -1, 1, 24])
def test_a_run_that_was_put_off_starts_whatever_the_clock_says(
    bench: Bench, member: Member, clock: ManualClock, status: str, hours: int
) -> None:
    bench.add("a", member, status=status, claimable_at=clock.now() + timedelta(minutes=2))
    bench.executor.round()
    assert bench.order == [], "not at once"
    clock.jump(hours * 3600)
    bench.executor.round()
    assert bench.order == ["a"]


def test_a_dead_worker_is_replaced_at_once_although_its_lease_has_not_expired(
    bench: Bench, member: Member, clock: ManualClock
) -> None:
    bench.add("a", member)
    bench.executor.round()
    bench.claim(bench.started[0])
    bench.started[0].status = -9
    bench.executor.round()
    clock.advance(1)
    bench.executor.round()
    assert bench.order == ["a", "a"]
    assert bench.claim(bench.started[1]).attempt == 2


@pytest.mark.parametrize("kind", ["eval", "training"])
def test_deaths_with_progress_in_between_are_forgiven_and_others_are_not(
    bench: Bench, member: Member, clock: ManualClock, kind: str
) -> None:
    run_id = bench.add("a", member, kind=kind)
    for number in range(5):
        bench.executor.round()
        bench.claim(bench.started[number])
        bench.record(run_id)
        bench.started[number].status = 1
        bench.executor.round()
        clock.advance(10)
    assert bench.run(run_id).status == "running"
    bench.started.clear()
    while bench.run(run_id).status == "running":
        bench.executor.round()
        bench.started[-1].status = 1
        bench.executor.round()
        clock.advance(300)
    # None of those with progress is of the row.
    assert len(bench.started) == FRUITLESS[kind]
    error = bench.run(run_id).error
    assert error is not None and error.startswith(
        f"the worker ended unexpectedly (exit status 1), {FRUITLESS[kind]} times in a row without getting anything done"
    )


def test_what_a_given_up_evaluation_has_journalled_is_published_and_kept_with_it(
    bench: Bench, member: Member, clock: ManualClock
) -> None:
    run_id = bench.add("a", member)
    events = bench.directory(run_id).evaluation("a").events
    events.parent.mkdir(parents=True)
    records = [record(row, input=f"what is {row}?") for row in range(3)]
    lines, previous = [], BEFORE_THE_FIRST
    for each in records:
        line, previous = sealed(each.to_line(), previous)
        lines.append(line)
    # The first of them was published by a worker; the last line is torn.
    events.write_bytes(b"".join(lines) + lines[0][:20])
    with bench.services.db.transaction() as session:
        row = {**sample_row(run_id, records[0]), "resumed": False, "position": len(lines[0])}
        upsert(session, DbSample, [row])
    while bench.run(run_id).status in ("pending", "running"):
        bench.executor.round()
        bench.claim(bench.started[-1])
        bench.started[-1].status = -9
        bench.executor.round()
        clock.advance(300)
    given_up = bench.run(run_id)
    assert given_up.status == "failed" and given_up.journal_blob is not None
    assert list(stored_records(bench.services.blobs, given_up.journal_blob)) == records
    shutil.rmtree(bench.directory(run_id).path)
    with bench.services.db.session() as session:
        samples = session.scalars(select(DbSample).order_by(DbSample.row_index)).all()
        assert [(each.row_index, each.input) for each in samples] == [
            (row, f"what is {row}?") for row in range(3)
        ]


def test_a_run_whose_journal_cannot_be_kept_is_given_up_all_the_same_and_says_so(
    bench: Bench, member: Member, clock: ManualClock
) -> None:
    run_id = bench.add("a", member, request={"secrets": {"required": ["GONE_KEY"]}})
    bench.record(run_id)
    while bench.run(run_id).status in ("pending", "running"):
        bench.executor.round()
        bench.claim(bench.started[-1])
        bench.started[-1].status = -9
        bench.executor.round()
        clock.advance(300)
    assert (bench.run(run_id).status, bench.run(run_id).journal_blob) == ("failed", None)
    assert any("could not be kept: " in line and "GONE_KEY" in line for line in messages(bench, run_id))


def test_a_training_run_that_is_given_up_says_how_it_goes_on(
    bench: Bench, member: Member, clock: ManualClock
) -> None:
    run_id = bench.add("a", member, kind="training")
    bench.executor.round()
    bench.claim(bench.started[0])
    bench.record(run_id)
    bench.started[0].status = -9
    bench.executor.round()
    while bench.run(run_id).status == "running":
        clock.advance(300)
        bench.executor.round()
        bench.started[-1].status = -9
        bench.executor.round()
    error = bench.run(run_id).error
    assert error is not None
    assert error.endswith("It can go on from the checkpoint of step 1: `osmosis train resume a`.")
    assert "submit again" not in error


def test_deaths_of_a_training_run_back_off_up_to_a_bound_and_its_log_says_so(
    bench: Bench, member: Member, clock: ManualClock
) -> None:
    run_id = bench.add("a", member, kind="training")

    def die() -> None:
        bench.executor.round()
        bench.claim(bench.started[-1])
        bench.started[-1].status = -9
        bench.executor.round()

    for deaths, wait_s in enumerate((0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300), start=1):
        die()
        clock.advance(wait_s - 0.5)
        bench.executor.round()
        assert len(bench.started) == deaths
        clock.advance(0.5)
    die()
    assert bench.run(run_id).status == "failed"
    assert len(bench.started) == FRUITLESS["training"]
    said = messages(bench, run_id)
    assert said[0] == (
        "the worker ended unexpectedly (signal 9, as when the machine has no memory left); trying again in 0.5 s"
    )
    assert said[3].endswith("4 times in a row without getting anything done; trying again in 4 s")


def test_a_run_that_waits_for_its_machine_for_months_is_tried_each_five_minutes() -> None:
    streak = FailureStreak(first_pause_s=0.5)
    for number in range(5000):
        streak.add("nobody", float(number))
    assert streak.not_before == 4999 + 300
    assert not streak.is_hopeless("eval")


def test_a_run_that_is_to_stop_does_not_wait_for_its_next_try(
    bench: Bench, member: Member, clock: ManualClock
) -> None:
    run_id = bench.add("a", member, kind="training")
    for number in range(6):
        bench.executor.round()
        bench.claim(bench.started[number])
        bench.started[number].status = -9
        bench.executor.round()
        if number < 5:
            clock.advance(300)
    with bench.services.db.transaction() as session:
        session.get_one(DbRun, run_id).stop_requested_at = clock.now()
    bench.executor.round()
    assert bench.run(run_id).status == "stopped"


@pytest.mark.parametrize("kind", ["eval", "training"])
def test_a_failure_of_our_own_is_tried_again_a_few_times_and_then_fails_the_run_with_its_reason(
    bench: Bench, member: Member, clock: ManualClock, kind: str
) -> None:
    reason = "the rollout server was not ready after 90 s."
    run_id = bench.add("a", member, kind=kind)

    def set_back() -> None:
        bench.executor.round()
        worker = bench.started[-1]
        bench.claim(worker)
        bench.directory(run_id).note_setback(reason)
        bench.leases.release(run_id, worker.token)
        worker.status = SET_BACK
        bench.executor.round()
        clock.advance(10)

    set_back()
    bench.executor.round()
    assert bench.run(run_id).status == "running"
    assert messages(bench, run_id) == [
        "the rollout server was not ready after 90 s (no fault of the run, 1 of 3 tries; trying again in 0.5 s)"
    ]
    # What got something done is not counted against it, and neither is what was before.
    bench.record(run_id)
    for _ in range(SETBACKS):
        set_back()
    assert bench.run(run_id).status == "running"
    set_back()
    advice = (
        " It can go on from the checkpoint of step 1: `osmosis train resume a`." if kind == "training" else ""
    )
    assert (bench.run(run_id).status, bench.run(run_id).error) == ("failed", reason + advice)


def test_a_worker_that_may_not_yet_have_the_run_is_started_again(
    bench: Bench, member: Member, clock: ManualClock
) -> None:
    run_id = bench.add("a", member)
    for _ in range(2 * FRUITLESS["eval"]):
        bench.executor.round()
        bench.started[-1].status = NOT_MINE
        bench.executor.round()
        clock.advance(10)
    assert bench.run(run_id).status == "pending"


def test_the_run_of_a_worker_elsewhere_is_left_alone_until_its_lease_expires(
    bench: Bench, member: Member, clock: ManualClock
) -> None:
    run_id = bench.add("a", member)
    assert bench.leases.claim(run_id, "elsewhere") is not None
    bench.executor.round()
    assert bench.order == []
    clock.advance(31)
    bench.executor.round()
    assert bench.order == ["a"]


def test_a_stopped_run_that_nobody_works_on_ends_without_a_worker(bench: Bench, member: Member) -> None:
    run_id = bench.add("a", member, status="running", stop_requested_at=bench.clock.now())
    bench.executor.round()
    assert bench.run(run_id).status == "stopped"
    assert bench.order == []


def test_a_stopped_run_with_results_gets_a_worker_to_gather_them_even_without_a_slot(
    bench: Bench, member: Member
) -> None:
    for name in "ab":
        bench.add(name, member)
    bench.executor.round()
    run_id = bench.add("c", member, status="running", stop_requested_at=bench.clock.now())
    bench.record(run_id)
    bench.executor.round()
    assert bench.order == ["a", "b", "c"]


def test_a_disk_that_is_full_for_many_rounds_is_waited_for_and_told_of_once(
    bench: Bench, member: Member, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = ["the disk is full"] * 5 + [None] + ["the disk is full again"] * 5
    done, real_round = threading.Event(), bench.executor.round

    def round_() -> None:
        if not full:
            real_round()
            done.set()
        elif (message := full.pop(0)) is not None:
            raise OsmosisError(message)

    monkeypatch.setattr(bench.executor, "round", round_)
    bench.add("one", member)
    bench.executor.start()
    assert done.wait(300)
    bench.end(bench.started[0])
    bench.executor.close()
    assert bench.order == ["one"]
    assert caplog.messages == [
        "the executor waits: the disk is full",
        "the executor waits: the disk is full again",
    ]


def test_a_machine_that_starts_no_process_is_waited_for_and_told_of_once(
    bench: Bench,
    member: Member,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    full: list[str] = []

    def refuse(directory: WorkingDirectory) -> NoReturn:
        full.append(directory.path.name)
        raise OSError(errno.ENOSPC, "No space left on device", str(directory.path))

    run_id = bench.add("a", member)
    with monkeypatch.context() as patch:
        patch.setattr(WorkingDirectory, "create", refuse)
        for _ in range(20):
            bench.executor.round()
            clock.advance(10)
    assert len(full) == 20
    assert caplog.messages == ["the executor waits: it can not start a worker (No space left on device)."]
    assert messages(bench, run_id) == [
        "waits for the platform's own machine: it can not start a worker (No space left on device)."
    ]
    bench.executor.round()
    assert bench.order == ["a"] and bench.run(run_id).status == "pending", "its worker has only begun"


def test_a_worker_that_ignores_a_stop_is_killed_after_its_grace(
    bench: Bench, member: Member, clock: ManualClock
) -> None:
    run_id = bench.add("a", member)
    bench.executor.round()
    bench.claim(bench.started[0])
    with bench.services.db.transaction() as session:
        session.get_one(DbRun, run_id).stop_requested_at = clock.now()
    bench.executor.round()
    assert bench.started[0].status is None
    clock.advance(31)
    bench.executor.round()
    assert bench.started[0].status == -9
    bench.executor.round()
    clock.advance(1)
    bench.executor.round()
    assert bench.run(run_id).status == "stopped"


def test_a_worker_that_gathers_has_longer_behind_each_that_was_ended_before_it_had_begun(
    bench: Bench, member: Member, clock: ManualClock
) -> None:
    run_id = bench.add("a", member, status="running", stop_requested_at=bench.clock.now())
    bench.record(run_id)
    took = []
    for gathers in range(3):
        while len(bench.started) == gathers:
            bench.executor.round()
            clock.advance(1)
        bench.executor.round()
        seconds = 0
        while bench.started[gathers].status is None:
            clock.advance(1)
            seconds += 1
            bench.executor.round()
        took.append(seconds)
    assert took == [30, 60, 120]


def test_closing_leaves_runs_open_for_the_next_start(bench: Bench, member: Member) -> None:
    run_id = bench.add("a", member)
    bench.executor.round()
    bench.claim(bench.started[0])
    bench.started[0].status = ENDED
    bench.executor.close()
    run = bench.run(run_id)
    assert (run.status, run.lease_token) == ("running", None)


def test_what_ended_runs_left_on_the_disk_is_removed_at_the_start(
    bench: Bench, world: World, member: Member
) -> None:
    runs = bench.services.config.runs_dir
    for name, status in (("a", "finished"), ("b", "failed"), ("c", "running"), ("gone", None)):
        if status is not None:
            bench.add(name, member, status=status)
        WorkingDirectory(runs, f"run_{name}").create()
    remove_leftovers(bench.services.db, runs, bench.clock.now())
    assert sorted(path.name for path in runs.iterdir()) == ["run_b", "run_c"]


def test_directories_that_a_rollout_made_one_in_another_keep_no_platform_from_starting(bench: Bench) -> None:
    runs = bench.services.config.runs_dir
    directory = WorkingDirectory(runs, "run_gone")
    directory.create()
    with deep_directories(directory.path):
        remove_leftovers(bench.services.db, runs, bench.clock.now())
        assert not directory.path.exists()


def test_child_processes_get_what_makes_programs_run_and_nothing_else() -> None:
    shell = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "UV_OFFLINE": "1",
        "OPENAI_API_KEY": "sk",
        "OSMOSIS_TOKEN": "osm",
        "OSMOSIS_CACHE_DIR": "/c",
        "HF_HOME": "/m",
        "HF_TOKEN": "hf",
    }
    assert program_environment(shell) == {"PATH": "/bin", "LC_ALL": "C"}
    worker = worker_environment(
        shell, PlatformConfig(home=Path("/h"), database_url="postgresql://u:password@h/d")
    )
    assert worker["UV_OFFLINE"] == "1"
    assert (worker["OSMOSIS_HOME"], worker["HF_HOME"]) == ("/h", "/m")
    assert not {"OPENAI_API_KEY", "OSMOSIS_TOKEN", "HF_TOKEN"} & worker.keys()
    # What a run is claimed with, and the database's password, would be read by every program of this user.
    assert "password" not in str(worker) and "_OSMOSIS_WORKER_CREDENTIAL" not in worker


def test_a_failure_is_one_line_that_keeps_its_end_and_its_hint() -> None:
    short = OsmosisError("it broke.\n  Badly.", hint="mend it")
    assert one_sentence(short) == "it broke. Badly; mend it."
    long = one_sentence(OsmosisError("first " + "x" * 5000 + " last", hint="mend it"))
    assert len(long) <= MAX_SENTENCE_CHARS
    assert long.startswith("first") and long.endswith("last; mend it.")
