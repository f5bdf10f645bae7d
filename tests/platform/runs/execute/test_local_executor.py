"""The platform's own workers: which runs they get, how often one is started again, and what their ends come to."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest
from sqlalchemy import select

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.journal_chain import BEFORE_THE_FIRST, sealed
from osmosis_ai.files import write_atomic
from osmosis_ai.platform.blobs.store import BlobStoreBusy
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.base import upsert
from osmosis_ai.platform.db.tables import DbRun, DbSample
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.runs.desk.closing import FRUITLESS
from osmosis_ai.platform.runs.execute.executor import ExecutorAway, JobState, WantedJob
from osmosis_ai.platform.runs.execute.failure_streak import SETBACKS
from osmosis_ai.platform.runs.execute.leftovers import remove_leftovers
from osmosis_ai.platform.runs.execute.local_processes import LocalProcesses
from osmosis_ai.platform.runs.execute.worker_process import (
    SET_BACK,
    STORE_AWAY,
    worker_environment,
)
from osmosis_ai.platform.runs.journalled import sample_row
from osmosis_ai.platform.runs.leases import Leases
from osmosis_ai.platform.runs.stored_journal import stored_records
from osmosis_ai.platform.runs.work.run_work import MAX_SENTENCE_CHARS, one_sentence
from osmosis_ai.platform.runs.working_directory import WorkingDirectory
from osmosis_ai.platform.worker_access import WorkerAccess
from osmosis_ai.process_environment import program_environment
from osmosis_ai.supervision import ChildProcess
from tests.deep_directories import deep_directories
from tests.evaluation.builders import record
from tests.platform.conftest import ManualClock, Member, World
from tests.platform.evaluations import wait_until
from tests.platform.runs.pretended_workers import Bench, messages


def test_runs_start_in_order_and_no_more_than_there_are_slots(bench: Bench, member: Member) -> None:
    for name in "abcd":
        bench.add(name, member)
    bench.executor.round()
    bench.executor.round()
    assert bench.order == ["a", "b"]
    bench.end(bench.started[0])
    bench.executor.round()
    assert bench.order == ["a", "b", "c"]


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
@pytest.mark.parametrize("hours", [-24, 1])
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


def breaks_off(real: Callable[..., Any], *, times: int) -> Callable[..., Any]:
    left = list(range(times))

    def instead(*args: Any, **options: Any) -> Any:
        if left:
            left.pop()
            raise OsmosisError("the database is away.")
        return real(*args, **options)

    return instead


@pytest.mark.parametrize(
    "step", [(WorkerAccess, "withdraw"), (Leases, "release"), (LogStore, "append")], ids=lambda step: step[1]
)
def test_an_end_that_the_database_broke_off_is_noted_by_the_next_round_and_counted_once(
    bench: Bench,
    member: Member,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    step: tuple[type, str],
) -> None:
    reason = "the rollout server was not ready after 90 s."
    run_id = bench.add("a", member)
    bench.executor.round()
    bench.claim(bench.started[0])
    bench.directory(run_id).note_setback(reason)
    bench.started[0].status = SET_BACK
    with monkeypatch.context() as patched:
        patched.setattr(*step, breaks_off(getattr(*step), times=3))
        for _ in range(3):
            with pytest.raises(OsmosisError, match="the database is away"):
                bench.executor.round()
        assert bench.order == ["a"]
        bench.executor.round()
    assert bench.run(run_id).lease_token is None
    assert messages(bench, run_id) == [
        "the rollout server was not ready after 90 s (no fault of the run, 1 of 3 tries; trying again in 0.5 s)"
    ]
    clock.advance(0.5)
    bench.executor.round()
    assert bench.order == ["a", "a"]


@pytest.mark.parametrize("damage", ["a lock that is a directory", "a directory that is a file"])
def test_a_working_directory_that_none_can_be_locked_in_fails_its_own_run_alone(
    bench: Bench, member: Member, clock: ManualClock, damage: str
) -> None:
    damaged = bench.add("a", member)
    bench.add("b", member)
    directory = bench.directory(damaged)
    if damage == "a lock that is a directory":
        (directory.path / "worker.lock").mkdir(parents=True)
    else:
        directory.path.parent.mkdir(parents=True, exist_ok=True)
        directory.path.write_bytes(b"")
    bench.executor.round()
    assert bench.order == ["b"]
    for _ in range(3):
        bench.executor.round()
        clock.advance(300)
    bench.executor.round()
    bench.executor.round()
    assert "its working directory on the platform's machine is damaged" in messages(bench, damaged)[0]
    assert (bench.run(damaged).status, bench.order) == ("failed", ["b"])


@pytest.mark.parametrize(
    "damage", ["a lock that is a directory", "a directory that is a file", "results in a file"]
)
def test_a_stopped_run_whose_working_directory_is_damaged_ends_as_any_other(
    bench: Bench, member: Member, clock: ManualClock, damage: str
) -> None:
    stopped = bench.add("a", member, status="running", stop_requested_at=clock.now())
    bench.add("b", member)
    directory = bench.directory(stopped)
    if damage == "a directory that is a file":
        directory.path.parent.mkdir(parents=True, exist_ok=True)
        directory.path.write_bytes(b"")
    elif damage == "results in a file":
        directory.create()
        directory.output_root.write_bytes(b"")
    else:
        (directory.path / "worker.lock").mkdir(parents=True)
    bench.executor.round()
    assert (bench.run(stopped).status, bench.order) == ("stopped", ["b"])
    assert not directory.path.exists()


def gives_up_while_the_store_is_away(
    bench: Bench, clock: ManualClock, patched: pytest.MonkeyPatch, run_id: str
) -> None:
    """Have a run with a journal of one record be given up, as far as a store that takes nothing lets it be."""

    def away(*_: Any) -> NoReturn:
        raise BlobStoreBusy("the bucket cannot be reached.")

    patched.setattr(type(bench.services.blobs), "put", away)
    events = bench.directory(run_id).evaluation(bench.run(run_id).name).events
    events.parent.mkdir(parents=True)
    events.write_bytes(sealed(record(0).to_line(), BEFORE_THE_FIRST)[0])
    for _ in range(3):
        bench.executor.round()
        bench.claim(bench.started[-1])
        bench.started[-1].status = -9
        bench.executor.round()
        clock.advance(300)


def test_a_run_that_is_given_up_while_the_store_is_away_ends_with_its_journal_when_it_is_back(
    bench: Bench, member: Member, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = bench.add("a", member)
    with monkeypatch.context() as patched:
        gives_up_while_the_store_is_away(bench, clock, patched, run_id)
        bench.executor.round()
        attempt, said = bench.run(run_id).attempt, messages(bench, run_id)
        for _ in range(100):
            bench.executor.round()
            clock.advance(40)
        assert bench.run(run_id).status == "running"
        assert (bench.run(run_id).attempt, messages(bench, run_id)) == (attempt, said), "once, however long"
        waits = [line for line in said if "ends when what it has recorded can be kept" in line]
        assert waits == ["ends when what it has recorded can be kept: the bucket cannot be reached."]
        bench.add("b", member)
        bench.executor.round()
        assert bench.order[-1] == "b", "others go on"
    clock.advance(1)
    bench.executor.round()
    assert bench.run(run_id).status == "failed" and bench.run(run_id).journal_blob is not None
    assert "3 times in a row" in (bench.run(run_id).error or "")
    with bench.services.db.session() as session:
        assert len(session.scalars(select(DbSample)).all()) == 1
    bench.executor.round()
    assert bench.run(run_id).attempt == attempt


def test_a_run_that_is_given_up_while_the_store_is_away_ends_without_its_journal_when_it_is_to_stop(
    bench: Bench, member: Member, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = bench.add("a", member)
    gives_up_while_the_store_is_away(bench, clock, monkeypatch, run_id)
    bench.executor.round()
    with bench.services.db.transaction() as session:
        bench.leases.ask_to_stop(session.get_one(DbRun, run_id))
    for _ in range(30):
        bench.executor.round()
        clock.advance(1)
    assert (bench.run(run_id).status, bench.run(run_id).journal_blob) == ("stopped", None)


AWAY = "the connection to https://bucket.example/ failed: refused."
HOUR_S = 3600


@pytest.mark.parametrize("kind", ["eval", "training"])
def test_a_run_of_the_platforms_own_machine_is_tried_until_its_store_is_back(
    bench: Bench, member: Member, clock: ManualClock, kind: str
) -> None:
    run_id = bench.add("a", member, kind=kind)
    until = clock.monotonic() + HOUR_S
    while clock.monotonic() < until:
        bench.executor.round()
        worker = bench.started[-1]
        if worker.status is None:
            bench.claim(worker)
            clock.advance(30)  # as long as a worker waits
            bench.directory(run_id).note_setback(AWAY)
            bench.leases.release(run_id, worker.token)
            worker.status = STORE_AWAY
        clock.advance(10)
    assert 10 < len(bench.started) < 30
    assert bench.run(run_id).status == "running"
    said = messages(bench, run_id)
    assert len(said) == len(bench.started)
    assert all(line.startswith(f"{AWAY.rstrip('.')}; trying again in ") for line in said)
    clock.advance(300)
    bench.executor.round()
    bench.executor.round()
    bench.end(bench.started[-1])
    bench.executor.round()
    assert bench.run(run_id).status == "finished"


# -- processes of this machine -----------------------------------------------------------------------

JOB, OTHER = WantedJob("osm-run_1-1", "run_1"), WantedJob("osm-run_2-1", "run_2", cpus=2, gpus=1)
WAITING_WORKER = """
import os, sys, time
parent = os.getppid()
while not os.path.exists("ending"):
    if os.getppid() != parent:
        sys.exit("the test that it was for is gone")
    time.sleep(0.01)
sys.exit(int(open("ending").read()))
"""


class Machine(LocalProcesses):
    """This machine: a job is a process that waits until it is told how to end."""

    def __init__(self, directory: Path) -> None:
        self.runs = directory / "runs"
        self.tickets: dict[str, str] = {}
        self.processes: dict[str, ChildProcess] = {}
        super().__init__(self.runs, self.begin)

    def begin(self, run_id: str, credential: str, claim_id: str) -> ChildProcess:
        self.tickets[run_id] = credential
        directory = WorkingDirectory(self.runs, run_id)
        command, where = [sys.executable, "-c", WAITING_WORKER], directory.path
        environment = {"PATH": os.environ["PATH"]}
        started = ChildProcess(command, env=environment, cwd=where, stdout=directory.log)
        self.processes[run_id] = started
        return started

    def ended(self, job: WantedJob, exit_code: int | None = None) -> JobState:
        if exit_code is not None:
            write_atomic(WorkingDirectory(self.runs, job.run_id).path / "ending", str(exit_code))

        def state() -> JobState | None:
            found = self.state(job)
            assert found is not None, "what was started has a state"
            return found if found.phase == "ended" else None

        return wait_until(state)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with closing(Machine(tmp_path)) as made:
        yield made


def test_a_job_is_one_process_with_its_first_ticket_until_it_ends(machine: Machine) -> None:
    assert machine.state(JOB) is None and machine.list() == []
    for job, ticket in ((JOB, "first"), (OTHER, "of another"), (JOB, "second")):
        machine.start(job, ticket)
    assert {state.id for state in machine.list()} == {JOB.id, OTHER.id}
    assert machine.tickets == {"run_1": "first", "run_2": "of another"}
    state = machine.ended(JOB, 7)
    assert (state.id, state.fault, "7" in state.told) == (JOB.id, "run", True) and state.log
    assert machine.state(JOB) == state, "as often as it is asked"
    other = machine.state(OTHER)
    assert other is not None and other.phase != "ended"
    assert machine.ended(OTHER, 0).fault == "nobody"


def test_a_job_that_is_stopped_ends_and_counts_against_no_run(machine: Machine) -> None:
    machine.start(JOB, "ticket")
    machine.stop(JOB)
    state = machine.ended(JOB)
    assert (state.told, state.fault) == ("the worker was ended by force", "nobody")


def test_processes_end_with_their_executor_also_those_that_start_while_it_is_closed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin_slowly(run_id: str, credential: str, claim_id: str) -> ChildProcess:
        machine.close()
        return machine.begin(run_id, credential, claim_id)

    machine.start(OTHER, "ticket")
    monkeypatch.setattr(machine, "_start_worker", begin_slowly)
    with pytest.raises(ExecutorAway, match="the platform ends"):
        machine.start(JOB, "ticket")
    assert all(process.poll() is not None for process in machine.processes.values())
    assert machine.list() == []
