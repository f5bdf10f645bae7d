"""The platform's own workers: which runs they get, how often one is started again, and what their ends come to."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import write_atomic
from osmosis_ai.platform.runs.execute.executor import ExecutorAway, JobState, WantedJob
from osmosis_ai.platform.runs.execute.leftovers import remove_leftovers
from osmosis_ai.platform.runs.execute.local_processes import LocalProcesses
from osmosis_ai.platform.runs.execute.worker_process import SET_BACK, STORE_AWAY, worker_environment
from osmosis_ai.platform.runs.leases import Leases
from osmosis_ai.platform.runs.work.run_work import MAX_SENTENCE_CHARS, one_sentence
from osmosis_ai.platform.runs.working_directory import WorkingDirectory
from osmosis_ai.platform.worker_access import WorkerAccess
from osmosis_ai.process_environment import program_environment
from osmosis_ai.processes import ChildProcess
from tests.deep_directories import deep_directories
from tests.evaluation.builders import record
from tests.platform.conftest import Member
from tests.platform.evaluations import wait_until
from tests.platform.platform_parts import BlobStoreBusy, LogStore, PlatformConfig
from tests.platform.runs.desk.test_exchanges import kept_rows
from tests.platform.runs.pretended_workers import Bench, messages

MOST_IN_A_ROW = {"eval": 3, "training": 12}
NOT_READY = "the rollout server was not ready after 90 s"


def test_runs_start_in_order_and_no_more_than_there_are_slots(bench: Bench) -> None:
    for name in "abcd":
        bench.add(name)
    bench.round()
    bench.round()
    assert bench.order == ["a", "b"]
    bench.end(bench.started[0])
    bench.round()
    assert bench.order == ["a", "b", "c"]


def test_one_workspaces_queue_does_not_hold_up_another(bench: Bench, stranger: Member) -> None:
    for name in "abc":
        bench.add(name)
    bench.add("z", stranger)
    bench.round()
    assert bench.order == ["a", "z"]
    bench.end(bench.started[1])
    bench.round()
    assert bench.order == ["a", "z", "b"]


@pytest.mark.parametrize("status", ["pending", "running"])
@pytest.mark.parametrize("hours", [-24, 1])
def test_a_run_that_was_put_off_starts_when_the_clock_jumps(bench: Bench, status: str, hours: int) -> None:
    bench.add("a", status=status, claimable_at=bench.clock.now() + timedelta(minutes=2))
    bench.round()
    assert bench.order == [], "not at once"
    bench.clock.jump(hours * 3600)
    bench.round()
    assert bench.order == ["a"]


def test_a_dead_worker_is_replaced_before_its_lease_has_expired(bench: Bench) -> None:
    bench.add("a")
    bench.die()
    bench.round(later_s=1)
    assert bench.order == ["a", "a"]
    assert bench.claim(bench.started[1]).attempt == 2


def test_the_run_of_a_worker_of_another_machine_is_left_alone_until_its_lease_expires(bench: Bench) -> None:
    assert bench.leases.claim(bench.add("a"), "another") is not None
    bench.round()
    assert bench.order == []
    bench.round(later_s=31)
    assert bench.order == ["a"]


@pytest.mark.parametrize("kind", ["eval", "training"])
def test_deaths_with_progress_in_between_are_forgiven_and_others_are_not(bench: Bench, kind: str) -> None:
    run_id = bench.add("a", kind=kind)
    for _ in range(5):
        bench.round()
        bench.record(run_id)
        bench.die(1, later_s=10)
    assert bench.run(run_id).status == "running"
    bench.started.clear()
    while bench.run(run_id).status == "running":
        bench.die(1, later_s=300, is_claimed=False)
    # None of those with progress is of the row.
    assert len(bench.started) == MOST_IN_A_ROW[kind]
    assert str(bench.run(run_id).error).startswith(
        f"the worker ended unexpectedly (exit status 1), {MOST_IN_A_ROW[kind]} times in a row without getting "
        "anything done"
    )


def journalled(bench: Bench, run_id: str, rows: int = 1) -> None:
    """Have a run be journalled by workers that died, the last one while it wrote a line."""
    events = bench.directory(run_id).evaluation(bench.run(run_id).name).events
    events.parent.mkdir(parents=True)
    lines = [record(row, input=f"what is {row}?").to_line() for row in range(rows)]
    events.write_bytes(b"".join(lines) + lines[-1][:20])


def shown(api: TestClient, run_id: str) -> list[tuple[int, str]]:
    """Return the samples that pages show of a run."""
    asked = {"details": "true"}
    samples = api.get(f"/api/cli/eval-runs/{run_id}/samples", params=asked).json()["samples"]
    return [(sample["row"], sample["input"]) for sample in samples]


def test_what_an_evaluation_that_is_given_up_has_recorded_is_published(api: TestClient, bench: Bench) -> None:
    run_id = bench.add("a")
    journalled(bench, run_id, rows=3)
    while bench.run(run_id).status in ("pending", "running"):
        bench.die(later_s=300)
    assert bench.run(run_id).status == "failed"
    assert kept_rows(api, run_id) == [0, 1, 2]
    assert shown(api, run_id) == [(row, f"what is {row}?") for row in range(3)]


def test_deaths_of_a_training_run_back_off_up_to_a_bound_and_its_log_says_so(bench: Bench) -> None:
    run_id = bench.add("a", kind="training")
    for deaths, wait_s in enumerate((0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300), start=1):
        bench.die()
        bench.round(later_s=wait_s - 0.5)
        assert len(bench.started) == deaths
        bench.clock.advance(0.5)
    bench.die()
    assert bench.run(run_id).status == "failed"
    said = messages(bench, run_id)
    assert said[0] == (
        "the worker ended unexpectedly (signal 9, as when the machine has no memory left); trying again in 0.5 s"
    )
    assert said[3].endswith("4 times in a row without getting anything done; trying again in 4 s")


@pytest.mark.parametrize("kind", ["eval", "training"])
def test_an_internal_failure_is_retried_a_few_times(bench: Bench, kind: str) -> None:
    run_id = bench.add("a", kind=kind)

    def set_back() -> None:
        bench.round()
        bench.directory(run_id).note_setback(f"{NOT_READY}.")
        bench.die(SET_BACK, later_s=10)

    set_back()
    bench.round()
    assert bench.run(run_id).status == "running"
    said = f"{NOT_READY} (no fault of the run, 1 of 3 tries; trying again in 0.5 s)"
    assert messages(bench, run_id) == [said]
    # What got something done is not counted against it, and neither is what was before.
    bench.record(run_id)
    for _ in range(3):
        set_back()
    assert bench.run(run_id).status == "running"
    set_back()
    advice = " It can go on from the checkpoint of step 1: `osmosis train resume a`."
    error = f"{NOT_READY}." + (advice if kind == "training" else "")
    assert (bench.run(run_id).status, bench.run(run_id).error) == ("failed", error)


def breaks_off(real: Callable[..., Any], *, times: int) -> Callable[..., Any]:
    left = list(range(times))

    def instead(*args: Any, **options: Any) -> Any:
        if left:
            left.pop()
            raise OsmosisError("the database is away.")
        return real(*args, **options)

    return instead


@pytest.mark.parametrize("step", [(WorkerAccess, "withdraw"), (Leases, "release"), (LogStore, "append")])
def test_an_end_counts_once(bench: Bench, monkeypatch: pytest.MonkeyPatch, step: tuple[type, str]) -> None:
    run_id = bench.add("a")
    bench.round()
    bench.claim(bench.started[0])
    bench.directory(run_id).note_setback(f"{NOT_READY}.")
    bench.started[0].status = SET_BACK
    with monkeypatch.context() as patched:
        patched.setattr(*step, breaks_off(getattr(*step), times=3))
        for _ in range(3):
            with pytest.raises(OsmosisError, match="the database is away"):
                bench.round()
        assert bench.order == ["a"]
        bench.round()
    assert bench.run(run_id).lease_token is None
    said = f"{NOT_READY} (no fault of the run, 1 of 3 tries; trying again in 0.5 s)"
    assert messages(bench, run_id) == [said]
    bench.round(later_s=0.5)
    assert bench.order == ["a", "a"]


# -- runs that are to stop -----------------------------------------------------------------------------


def test_a_run_that_is_to_stop_does_not_wait_for_its_next_try(bench: Bench) -> None:
    run_id = bench.add("a", kind="training")
    for number in range(6):
        bench.die(later_s=300 if number < 5 else 0)
    bench.ask_to_stop(run_id)
    bench.round()
    assert bench.run(run_id).status == "stopped"


def test_a_stopped_run_that_no_worker_is_at_ends_without_one(bench: Bench) -> None:
    run_id = bench.add("a", status="running", stop_requested_at=bench.clock.now())
    bench.round()
    assert (bench.run(run_id).status, bench.order) == ("stopped", [])


def test_a_stopped_run_with_results_gets_a_worker_to_gather_them_even_without_a_slot(bench: Bench) -> None:
    for name in "ab":
        bench.add(name)
    bench.round()
    bench.record(bench.add("c", status="running", stop_requested_at=bench.clock.now()))
    bench.round()
    assert bench.order == ["a", "b", "c"]


def test_a_worker_that_ignores_a_stop_is_killed_after_its_grace(bench: Bench) -> None:
    run_id = bench.add("a")
    bench.round()
    bench.claim(bench.started[0])
    bench.ask_to_stop(run_id)
    bench.round()
    assert bench.started[0].status is None
    bench.round(later_s=31)
    assert bench.started[0].status == -9
    bench.round()
    bench.round(later_s=1)
    assert bench.run(run_id).status == "stopped"


# -- a machine or a store that does not do its part ------------------------------------------------------


def damage(bench: Bench, run_id: str, what: str) -> None:
    directory = bench.directory(run_id)
    if what == "a lock that is a directory":
        (directory.path / "worker.lock").mkdir(parents=True)
    elif what == "a directory that is a file":
        directory.path.parent.mkdir(parents=True, exist_ok=True)
        directory.path.write_bytes(b"")
    else:
        directory.create()
        directory.output_root.write_bytes(b"")


@pytest.mark.parametrize("what", ["a lock that is a directory", "a directory that is a file"])
def test_a_damaged_working_directory_fails_its_own_run_alone(bench: Bench, what: str) -> None:
    damaged = bench.add("a")
    bench.add("b")
    damage(bench, damaged, what)
    for _ in range(5):
        bench.round()
        assert bench.order == ["b"]
        bench.clock.advance(300)
    bench.round()
    assert "its working directory on the platform's machine is damaged" in messages(bench, damaged)[0]
    assert (bench.run(damaged).status, bench.order) == ("failed", ["b"])


@pytest.mark.parametrize(
    "what", ["a lock that is a directory", "a directory that is a file", "results in a file"]
)
def test_a_stopped_run_whose_working_directory_is_damaged_ends_as_any_other(bench: Bench, what: str) -> None:
    stopped = bench.add("a", status="running", stop_requested_at=bench.clock.now())
    bench.add("b")
    damage(bench, stopped, what)
    bench.round()
    assert (bench.run(stopped).status, bench.order) == ("stopped", ["b"])
    assert not bench.directory(stopped).path.exists()


def test_a_machine_that_starts_no_process_is_waited_for_and_reported_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full: list[str] = []

    def refuse(directory: WorkingDirectory) -> NoReturn:
        full.append(directory.path.name)
        raise OSError(errno.ENOSPC, "No space left on device", str(directory.path))

    run_id, why = bench.add("a"), "it cannot start a worker (No space left on device)."
    with monkeypatch.context() as patch:
        patch.setattr(WorkingDirectory, "create", refuse)
        for _ in range(20):
            bench.round(later_s=10)
    assert len(full) == 20
    assert caplog.messages == [f"the executor waits: {why}"]
    assert messages(bench, run_id) == [f"waits for the platform's own machine: {why}"]
    bench.round()
    assert bench.order == ["a"] and bench.run(run_id).status == "pending", "its worker has only begun"


def test_giving_up_waits_for_the_store(
    api: TestClient, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> NoReturn:
        raise BlobStoreBusy("the bucket cannot be reached.")

    run_id = bench.add("a")
    journalled(bench, run_id)
    with monkeypatch.context() as patched:
        patched.setattr(type(bench.services.blobs), "put", away)
        for _ in range(3):
            bench.die(later_s=300)
        bench.round()
        attempt, said = bench.run(run_id).attempt, messages(bench, run_id)
        for _ in range(100):
            bench.round(later_s=40)
        assert bench.run(run_id).status == "running"
        assert (bench.run(run_id).attempt, messages(bench, run_id)) == (attempt, said), "once, however long"
        waits = [line for line in said if "ends when what it has recorded can be kept" in line]
        assert waits == ["ends when what it has recorded can be kept: the bucket cannot be reached."]
        bench.add("b")
        bench.round()
        assert bench.order[-1] == "b", "others go on"
    bench.round(later_s=1)
    assert bench.run(run_id).status == "failed" and "3 times in a row" in str(bench.run(run_id).error)
    assert kept_rows(api, run_id) == [row for row, _ in shown(api, run_id)] == [0]


@pytest.mark.parametrize("kind", ["eval", "training"])
def test_a_run_is_tried_for_as_long_as_its_store_is_away(bench: Bench, kind: str) -> None:
    run_id, why = bench.add("a", kind=kind), "the connection to https://bucket.example/ failed: refused"
    for _ in range(20):
        bench.round()
        bench.directory(run_id).note_setback(f"{why}.")
        bench.die(STORE_AWAY, later_s=300)
    assert bench.run(run_id).status == "running" and len(bench.started) == 20
    said = messages(bench, run_id)
    assert len(said) == 20 and all(line.startswith(f"{why}; trying again in ") for line in said)
    bench.round()
    bench.end(bench.started[-1])
    bench.round()
    assert bench.run(run_id).status == "finished"


def test_what_ended_runs_left_on_the_disk_is_removed_at_the_start(bench: Bench) -> None:
    runs = bench.services.config.runs_dir
    for name, status in (("a", "finished"), ("b", "failed"), ("c", "running"), ("gone", None)):
        if status is not None:
            bench.add(name, status=status)
        WorkingDirectory(runs, f"run_{name}").create()
    with deep_directories(WorkingDirectory(runs, "run_gone").path):
        remove_leftovers(bench.services.db, runs, bench.clock.now())
        assert sorted(path.name for path in runs.iterdir()) == ["run_b", "run_c"]


def test_child_processes_get_what_makes_programs_run_and_nothing_else() -> None:
    shell = {"PATH": "/bin", "LC_ALL": "C", "UV_OFFLINE": "1", "OSMOSIS_CACHE_DIR": "/c", "HF_HOME": "/m"}
    secret = {"OPENAI_API_KEY": "sk", "OSMOSIS_TOKEN": "osm", "HF_TOKEN": "hf"}
    assert program_environment({**shell, **secret}) == {"PATH": "/bin", "LC_ALL": "C"}
    config = PlatformConfig(home=Path("/h"), database_url="postgresql://u:password@h/d")
    worker = worker_environment({**shell, **secret}, config)
    assert (worker["UV_OFFLINE"], worker["OSMOSIS_HOME"], worker["HF_HOME"]) == ("1", "/h", "/m")
    assert not secret.keys() & worker.keys()
    # What a run is claimed with, and the database's password, would be read by every program of this user.
    assert "password" not in str(worker) and "_OSMOSIS_WORKER_CREDENTIAL" not in worker


def test_a_failure_is_one_line_that_keeps_its_end_and_its_hint() -> None:
    short = OsmosisError("it broke.\n  Badly.", hint="mend it")
    assert one_sentence(short) == "it broke. Badly; mend it."
    long = one_sentence(OsmosisError("first " + "x" * 5000 + " last", hint="mend it"))
    assert len(long) <= MAX_SENTENCE_CHARS
    assert long.startswith("first") and long.endswith("last; mend it.")


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


def test_processes_end_with_their_executor(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin_slowly(run_id: str, credential: str, claim_id: str) -> ChildProcess:
        machine.close()
        return machine.begin(run_id, credential, claim_id)

    machine.start(OTHER, "ticket")
    monkeypatch.setattr(machine, "_start_worker", begin_slowly)
    with pytest.raises(ExecutorAway, match="the platform ends"):
        machine.start(JOB, "ticket")
    assert all(process.poll() is not None for process in machine.processes.values())
    assert machine.list() == []
