"""A worker's end, as far as that can be told without a run: what failed decides who tries again."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from osmosis_ai.api.wire.workers import RunClosed
from osmosis_ai.controller.dispatcher import Stop
from osmosis_ai.controller.environments import UvInterruptedError
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.journal import Journal, JournalWriteError
from osmosis_ai.platform.db.engine import DatabaseBusyError, StorageFullError
from osmosis_ai.platform.runs.execute.worker_process import ENDED, REFUSED, SET_BACK, STORE_AWAY
from osmosis_ai.platform.runs.work import eval_work, worker
from osmosis_ai.platform.runs.work.containment import RunContainment
from osmosis_ai.platform.runs.work.eval_work import EvalWork
from osmosis_ai.platform.runs.work.inputs import RunInputs
from osmosis_ai.platform.runs.work.platform_link import CredentialRefusedError, StoreAwayError
from osmosis_ai.platform.runs.work.publisher import Publisher
from osmosis_ai.platform.runs.work.run_channel import RunChannel
from osmosis_ai.platform.runs.work.run_work import WorkResult
from osmosis_ai.platform.runs.work.training_work import TrainingWork
from osmosis_ai.platform.runs.work.worker import Worker
from osmosis_ai.sandbox import Isolation, RunLimits, Sandbox
from osmosis_ai.sandbox.control_groups import Delegation, RunGroup
from tests.evaluation.builders import record
from tests.full_disk import files_of_at_most
from tests.platform.conftest import Member
from tests.platform.runs.pretended_workers import Bench, messages
from tests.platform.runs.work.claimed_runs import held


@pytest.fixture(autouse=True)
def signals_as_they_were() -> Iterator[None]:
    former = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, former)


def worked(bench: Bench, run_id: str, failure: Exception, monkeypatch: pytest.MonkeyPatch) -> int:
    """Let a worker fail at getting hold of what it needs."""

    def prepare(_: EvalWork | TrainingWork) -> None:
        raise failure

    monkeypatch.setattr(EvalWork, "prepare", prepare)
    monkeypatch.setattr(TrainingWork, "prepare", prepare)
    services, directory = bench.services, bench.directory(run_id)
    directory.create()
    lease = bench.leases.claim(run_id, "w")
    assert lease is not None
    channel = held(services, lease)
    inputs = RunInputs(services.config, channel, directory)
    return Worker(channel, inputs, directory, bench.clock).run()


@pytest.mark.parametrize(
    "failure",
    [
        UvInterruptedError("building the environment was interrupted: uv was ended by signal 15."),
        DatabaseBusyError("the platform's database is busy."),
        StorageFullError("the platform's disk is full."),
    ],
)
def test_a_fault_of_the_machine(bench: Bench, monkeypatch: pytest.MonkeyPatch, failure: OsmosisError) -> None:
    run_id = bench.add("a")
    assert worked(bench, run_id, failure, monkeypatch) == SET_BACK
    run = bench.run(run_id)
    assert (run.status, run.lease_expires_at, run.error) == ("running", None, None)
    assert bench.directory(run_id).take_setback() == failure.message


@pytest.mark.parametrize("kind", ["eval", "training"])
@pytest.mark.parametrize("when", ["as it begins", "as it ends"])
def test_an_unavailable_store(bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: str, when: str) -> None:
    away = StoreAwayError("the connection to https://bucket/ failed: refused.")
    run_id = bench.add("a", kind=kind)
    release, said = RunChannel.release, []

    def released(channel: RunChannel, **words: Any) -> RunClosed:
        said.append((words["setback"], words["store_away"]))
        return release(channel, **words)

    def finish(_: Publisher) -> NoReturn:
        raise away

    monkeypatch.setattr(RunChannel, "release", released)
    failure: OsmosisError = away
    if when == "as it ends":
        monkeypatch.setattr(Publisher, "finish", finish)
        failure = OsmosisError("the rollout has no such grader.")
    assert worked(bench, run_id, failure, monkeypatch) == STORE_AWAY
    assert said == [(away.message, True)]
    run = bench.run(run_id)
    assert (run.status, run.lease_expires_at, run.error) == ("running", None, None)
    assert bench.directory(run_id).take_setback() == away.message


def test_a_stop_does_not_wait_for_the_store(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def finish(publisher: Publisher) -> NoReturn:
        publisher._channel.stop_asked = True
        raise StoreAwayError("the connection to https://bucket/ failed: refused.")

    monkeypatch.setattr(Publisher, "finish", finish)
    run_id = bench.add("a")
    assert worked(bench, run_id, OsmosisError("the rollout has no such grader."), monkeypatch) == SET_BACK


def no_room() -> OsmosisError:
    """Return what a download says that finds no room, which tells its reason to nobody but who looks for it."""
    try:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            told = f"cannot write source.tar.gz: {error.strerror}."
            raise OsmosisError(told, hint="run the command again") from None
    except OsmosisError as refused:
        return refused


@pytest.mark.parametrize("kind", ["eval", "training"])
@pytest.mark.parametrize("failure", [no_room(), OSError(errno.EFBIG, "File too large")])
def test_a_machine_without_room_for_what_a_run_needs_leaves_it_for_another(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: str, failure: Exception
) -> None:
    run_id = bench.add("a", kind=kind)
    release, of_machine = RunChannel.release, []

    def released(channel: RunChannel, **said: Any) -> RunClosed:
        of_machine.append(said["of_machine"])
        return release(channel, **said)

    monkeypatch.setattr(RunChannel, "release", released)
    assert worked(bench, run_id, failure, monkeypatch) == SET_BACK
    assert of_machine == [True], "others go first"
    run = bench.run(run_id)
    assert (run.status, run.lease_expires_at, run.error) == ("running", None, None)
    reason = bench.directory(run_id).take_setback()
    assert reason.startswith(f"the disk of the worker's machine ({socket.gethostname()}) is full: ")
    assert "again" not in reason, "that is for commands"


def test_a_run_whose_journal_this_disk_does_not_take_is_left_for_another(tmp_path: Path) -> None:
    async def recorded() -> None:
        journal = Journal(tmp_path / "events.jsonl")
        with files_of_at_most(0):
            await journal.append(record(0, 0))

    with pytest.raises(JournalWriteError) as full:
        asyncio.run(recorded())
    halted: Any = SimpleNamespace(complete=False, stop=Stop("fault", str(full.value), full.value))
    result = eval_work._result(halted)
    assert (result.outcome, result.is_infrastructure, result.is_of_machine) == ("failed", True, True)
    assert result.error is not None and "the disk is full" in result.error


def test_what_the_run_itself_is_to_blame_for_ends_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = bench.add("a")
    assert worked(bench, run_id, OsmosisError("main.py has an error."), monkeypatch) == ENDED
    assert (bench.run(run_id).status, bench.run(run_id).error) == ("failed", "main.py has an error.")
    assert messages(bench, run_id) == ["main.py has an error."]


def test_a_failed_training_run_names_its_checkpoint(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = {"step": 1, "blob_key": "runs/a/resume/1-a/checkpoint.tar", "size": 1, "sha256": "0" * 64}
    run_id = bench.add("a", kind="training", training_state={"resume": archive})
    assert worked(bench, run_id, OsmosisError("the GPU is gone."), monkeypatch) == ENDED
    assert bench.run(run_id).error == (
        "the GPU is gone. It can go on from the checkpoint of step 1: `osmosis train resume a`."
    )


@pytest.mark.parametrize("outcome", [None, "failed"])
def test_a_run_that_is_to_stop_stops_whatever_happened(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, outcome: Any
) -> None:
    run_id = bench.add("a", status="running", stop_requested_at=bench.clock.now())
    result = WorkResult(outcome, "the database is busy." if outcome else None, is_infrastructure=True)
    monkeypatch.setattr(Worker, "_result", lambda _: result)
    assert worked(bench, run_id, AssertionError("it is not prepared"), monkeypatch) == ENDED
    assert bench.run(run_id).status == "stopped"


def test_a_worker_whose_credential_is_refused_from_the_start_gets_hold_of_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object, **__: object) -> NoReturn:
        raise CredentialRefusedError("this worker token has been revoked.")

    monkeypatch.setattr(RunChannel, "sync", refused)
    run_id = bench.add("a")
    prepared = AssertionError("it takes long, and nothing of it could be said")
    assert worked(bench, run_id, prepared, monkeypatch) == REFUSED
    assert "not taken any more" in capsys.readouterr().err
    assert bench.run(run_id).status == "running", "for another worker"


@pytest.mark.parametrize(
    ("asks", "next_one"),
    [({}, "the next one"), ({"execution": {"pool": "gpu"}}, "the next one of the pool 'gpu'")],
)
def test_a_worker_that_is_asked_to_end_says_in_the_runs_log_who_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, asks: dict[str, Any], next_one: str
) -> None:
    monkeypatch.setattr(Worker, "_result", lambda _: WorkResult(None))
    run_id = bench.add("a", request={"advanced_config": asks})
    assert worked(bench, run_id, AssertionError("it was left"), monkeypatch) == ENDED
    assert messages(bench, run_id) == [f"the worker was asked to end; {next_one} continues the run"]
    assert bench.run(run_id).status == "running"


@pytest.mark.parametrize(
    ("counted", "said"),
    [
        ("max 7", ["the run was refused a process or a thread 7 times: its limit is 4096"]),
        ("max 1", ["the run was refused a process or a thread once: its limit is 4096"]),
        ("max 0", []),
    ],
)
def test_a_run_that_went_on_without_the_processes_that_it_was_refused_says_so(
    counted: str, said: list[str], bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The kernel's part, refusing and counting, is a file's here."""
    group = RunGroup.make(Delegation(tmp_path, ("pids",)), "r1", RunLimits())
    (group.path / "pids.events").write_text(f"{counted}\n")
    sandbox = Sandbox(Path("/bin/bwrap"), tmp_path, control=group)

    def went_on(this: Worker) -> WorkResult:
        this._containment = RunContainment(Isolation("bubblewrap"), sandbox, tmp_path)
        return WorkResult(None)

    monkeypatch.setattr(Worker, "_result", went_on)
    monkeypatch.setattr(RunGroup, "close", lambda _: None)
    run_id = bench.add("a")
    assert worked(bench, run_id, AssertionError("it went on"), monkeypatch) == ENDED
    assert messages(bench, run_id)[:-1] == said


def test_a_worker_that_is_asked_to_end_while_it_ends_says_how_it_ended() -> None:
    code = """
import os, signal
from osmosis_ai.platform.runs.work import worker

class AskedLast:
    def __del__(self, kill=os.kill, process=os.getpid(), number=signal.SIGTERM):
        kill(process, number)

late = AskedLast()
signal.signal(signal.SIGTERM, lambda *_: None)
worker.end_process(worker.REFUSED)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == REFUSED


class CutOffs:
    """A worker of a training run whose platform is heard of when the test says so, and a clock of the test's."""

    def __init__(self, bench: Bench, member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
        run_id = bench.add("a", kind="training")
        self.directory = bench.directory(run_id)
        self.directory.create()
        lease = bench.leases.claim(run_id, "w")
        assert lease is not None
        self.now = 0.0
        self.channel = held(bench.services, lease)
        self.channel._clock = lambda: self.now
        self.channel.sync()
        self.channel._answered_at = 0.0
        inputs = RunInputs(bench.services.config, self.channel, self.directory)
        self.worker = Worker(self.channel, inputs, self.directory, bench.clock)
        self.interrupt = self.worker._interrupt
        self.stops = 0
        self.interrupt.listen(self._stopped)
        self.knocks: list[Callable[[], object]] = []
        waiting = SimpleNamespace(wait=lambda _: self.knocks.pop(0)())
        monkeypatch.setattr(worker, "threading", SimpleNamespace(Event=lambda: waiting))

    def _stopped(self) -> None:
        self.stops += 1

    def cut_off(self) -> None:
        """Let a whole term go by without a word."""
        self.now += self.channel.term_s
        self.worker._cut_off()

    def pass_s(self, seconds: float) -> None:
        self.now += seconds

    def said(self) -> list[str]:
        return [line.message for line in self.worker._publisher._lines]


@pytest.fixture
def cut_offs(bench: Bench, member: Member, monkeypatch: pytest.MonkeyPatch) -> CutOffs:
    return CutOffs(bench, member, monkeypatch)


def test_what_stands_still_goes_on_when_the_platform_answers_within_a_term_more(cut_offs: CutOffs) -> None:
    for times in (1, 2):
        cut_offs.cut_off()
        assert cut_offs.stops == times
        cut_offs.knocks = [lambda: cut_offs.pass_s(20.0), cut_offs.channel.sync]
        assert cut_offs.interrupt.outlast()
        assert not cut_offs.interrupt, "it can be said anew"
    assert cut_offs.said() == ["the platform was unavailable for 50 s; the run continues"] * 2


def test_what_stands_still_ends_one_term_later(cut_offs: CutOffs) -> None:
    cut_offs.cut_off()
    cut_offs.knocks = [lambda: cut_offs.pass_s(29.0), lambda: cut_offs.pass_s(1.0)]
    assert not cut_offs.interrupt.outlast()
    assert not cut_offs.knocks
    assert cut_offs.interrupt
    assert cut_offs.said() == []


@pytest.mark.parametrize("asked", ["to leave", "to stop"])
def test_what_stands_still_ends_where_the_run_is_to(cut_offs: CutOffs, asked: str) -> None:
    cut_offs.cut_off()
    if asked == "to leave":
        cut_offs.knocks = [cut_offs.worker.leave]
    else:
        cut_offs.channel.stop_asked = True
        cut_offs.knocks = [cut_offs.channel.sync]
    assert not cut_offs.interrupt.outlast()
    assert cut_offs.interrupt
    assert cut_offs.said() == []
