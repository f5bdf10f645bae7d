"""What every executor does, asked of each in the same words: processes of this machine, and a cluster's recorded answers."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol

import httpx
import pytest

from osmosis_ai.files import write_atomic
from osmosis_ai.platform.runs.execute.executor import Executor, ExecutorAway, Fault, JobState, WantedJob
from osmosis_ai.platform.runs.execute.local_processes import LocalProcesses
from osmosis_ai.platform.runs.working_directory import WorkingDirectory
from osmosis_ai.supervision import ChildProcess
from tests.platform.evaluations import wait_until
from tests.platform.runs.execute.recorded_ray import RecordedRay

JOB = WantedJob("osm-run_1-1", "run_1")
OTHER = WantedJob("osm-run_2-1", "run_2", cpus=2, gpus=1)
TICKET = "a-ticket"
_WORKER = """
import os, sys, time
parent = os.getppid()
while not os.path.exists("ending"):
    if os.getppid() != parent:
        sys.exit("the test that it was for is gone")
    time.sleep(0.01)
sys.exit(int(open("ending").read()))
"""


class Place(Protocol):
    """An executor, and the hand that decides what becomes of its jobs."""

    executor: Executor

    def end(self, job: WantedJob, exit_code: int) -> None: ...

    def tickets(self) -> dict[str, str]:
        """Return what each run's job was started with."""
        ...


class Machine:
    """This machine: a job is a process that waits until it is told how to end."""

    def __init__(self, directory: Path) -> None:
        self._runs = directory / "runs"
        self._started: dict[str, str] = {}
        self.executor: Executor = LocalProcesses(self._runs, self._start)

    def _start(self, run_id: str, credential: str, claim_id: str) -> ChildProcess:
        self._started[run_id] = credential
        directory = WorkingDirectory(self._runs, run_id)
        (directory.path / "ending").unlink(missing_ok=True)
        return ChildProcess(
            [sys.executable, "-c", _WORKER],
            env={"PATH": os.environ["PATH"]},
            cwd=directory.path,
            stdout=directory.log,
        )

    def end(self, job: WantedJob, exit_code: int) -> None:
        write_atomic(WorkingDirectory(self._runs, job.run_id).path / "ending", str(exit_code))

    def tickets(self) -> dict[str, str]:
        return self._started


class Cluster:
    """A cluster that answers as a real one has."""

    def __init__(self, directory: Path) -> None:
        self._ray = RecordedRay()
        self.executor: Executor = self._ray.jobs_of(directory)

    def end(self, job: WantedJob, exit_code: int) -> None:
        self._ray.jobs[job.id] = {0: "succeeded", 7: "failed_7"}[exit_code]

    def tickets(self) -> dict[str, str]:
        bodies = self._ray.bodies.items()
        return {
            id.split("-")[1]: body["runtime_env"]["env_vars"]["OSMOSIS_WORKER_TICKET"] for id, body in bodies
        }


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    with closing(made.executor):
        yield made


@pytest.fixture(params=[Machine, Cluster], ids=["processes", "Ray jobs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made: Place = request.param(tmp_path)
    yield made
    made.executor.close()


def ended(place: Place, job: WantedJob) -> JobState:
    def state() -> JobState | None:
        found = place.executor.state(job)
        assert found is not None, "what was started has a state"
        return found if found.phase == "ended" else None

    return wait_until(state)


def is_there(place: Place, job: WantedJob) -> bool:
    state = place.executor.state(job)
    return state is not None and state.phase in ("waiting", "running")


def test_what_was_never_started_has_no_state_and_may_be_stopped(place: Place) -> None:
    assert place.executor.state(JOB) is None
    assert place.executor.list() == []
    place.executor.stop(JOB)
    assert place.executor.state(JOB) is None


def test_what_was_started_is_there_with_its_ticket_and_in_the_list(place: Place) -> None:
    for job in (JOB, OTHER):
        place.executor.start(job, f"{TICKET} of {job.run_id}")
    assert is_there(place, JOB) and is_there(place, OTHER)
    assert {state.id for state in place.executor.list()} == {JOB.id, OTHER.id}
    assert place.tickets() == {"run_1": "a-ticket of run_1", "run_2": "a-ticket of run_2"}


def test_what_is_started_twice_is_one_job_with_its_first_ticket(place: Place) -> None:
    place.executor.start(JOB, TICKET)
    place.executor.start(JOB, "another")
    assert [state.id for state in place.executor.list()] == [JOB.id]
    assert place.tickets() == {"run_1": TICKET}


@pytest.mark.parametrize(("exit_code", "fault"), [(0, "nobody"), (7, "run")])
def test_how_a_job_ended_is_said_as_often_as_it_is_asked(place: Place, exit_code: int, fault: Fault) -> None:
    place.executor.start(JOB, TICKET)
    place.executor.start(OTHER, TICKET)
    place.end(JOB, exit_code)
    state = ended(place, JOB)
    assert state.id == JOB.id
    assert state.fault == fault
    assert ("7" in state.told and state.log != "") if exit_code else True
    assert place.executor.state(JOB) == state
    assert is_there(place, OTHER), "of another nothing is said"


def test_what_has_ended_may_be_stopped_and_stays_as_it_was(place: Place) -> None:
    place.executor.start(JOB, TICKET)
    place.end(JOB, 7)
    state = ended(place, JOB)
    place.executor.stop(JOB)
    assert place.executor.state(JOB) == state


def test_the_next_job_of_a_run_is_another(place: Place) -> None:
    place.executor.start(JOB, TICKET)
    place.end(JOB, 7)
    ended(place, JOB)
    following = WantedJob("osm-run_1-2", "run_1")
    place.executor.start(following, "the next ticket")
    assert is_there(place, following)
    assert place.tickets()["run_1"] == "the next ticket"


def test_a_job_that_is_stopped_ends_and_counts_against_nobody(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    with closing(machine.executor):
        machine.executor.start(JOB, TICKET)
        machine.executor.stop(JOB)
        state = ended(machine, JOB)
    assert (state.told, state.fault) == ("the worker was ended by force", "nobody")


def test_processes_end_with_their_executor_and_jobs_of_a_cluster_go_on(tmp_path: Path) -> None:
    machine, ray = Machine(tmp_path), RecordedRay()
    cluster = ray.jobs_of(tmp_path)
    for executor in (machine.executor, cluster):
        executor.start(JOB, TICKET)
    assert isinstance(machine.executor, LocalProcesses)
    process = machine.executor.process_of("run_1")
    machine.executor.close()
    cluster.close()
    assert process.poll() is not None
    assert ray.jobs == {JOB.id: "pending"} and ray.stopped == []


def test_a_process_that_is_started_while_its_executor_is_closed_is_ended_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, started = Machine(tmp_path), list[ChildProcess]()
    start = machine._start

    def start_slowly(run_id: str, credential: str, claim_id: str) -> ChildProcess:
        machine.executor.close()
        started.append(start(run_id, credential, claim_id))
        return started[0]

    monkeypatch.setattr(machine.executor, "_start_worker", start_slowly)
    with pytest.raises(ExecutorAway, match="the platform ends"):
        machine.executor.start(JOB, TICKET)
    assert started[0].poll() is not None
    assert machine.executor.list() == []


def test_a_run_whose_working_directory_is_damaged_has_a_job_that_ended_and_others_start(
    machine: Machine,
) -> None:
    log = WorkingDirectory(machine._runs, JOB.run_id).log
    log.mkdir(parents=True)
    assert machine.executor.start(JOB, TICKET) == ""
    state = ended(machine, JOB)
    assert (state.fault, state.told) == (
        "ours",
        "its working directory on the platform's machine is damaged (Is a directory)",
    )
    machine.executor.start(OTHER, TICKET)
    assert is_there(machine, OTHER)
    assert ended(machine, JOB) == state, "asked again it is what it was"
    log.rmdir()
    again = WantedJob("osm-run_1-2", JOB.run_id)
    machine.executor.start(again, TICKET)
    assert is_there(machine, again) and machine.executor.state(JOB) is None


def test_a_disk_that_is_full_is_no_matter_of_the_run(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(run_id: str, *_: str) -> ChildProcess:
        log = WorkingDirectory(machine._runs, run_id).log
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(log))

    monkeypatch.setattr(machine.executor, "_start_worker", full)
    with pytest.raises(ExecutorAway, match="can not start a worker"):
        machine.executor.start(JOB, TICKET)
    assert machine.executor.state(JOB) is None


def test_a_place_that_cannot_be_asked_says_so_for_each_of_the_four(tmp_path: Path) -> None:
    ray = RecordedRay()
    jobs = ray.jobs_of(tmp_path)
    ray.trouble = httpx.ReadTimeout("slow")
    for ask in (lambda: jobs.start(JOB, TICKET), lambda: jobs.state(JOB), lambda: jobs.stop(JOB), jobs.list):
        with pytest.raises(ExecutorAway, match="timed out") as away:
            ask()
        assert away.value.where == "the Ray cluster"
