"""A worker's process: what it starts from, how it ends, and who continues its shard."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.api.models.workers import Assignment, FinishRequest, ReleaseRequest
from osmosis_ai.controller.environments import UvInterruptedError
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.engine import DatabaseBusyError
from osmosis_ai.platform.runs.run_store import STOPPING
from osmosis_ai.platform.worker import reporter, worker
from osmosis_ai.platform.worker.client import StoreAwayError, StoredBytesError, WorkerClient
from osmosis_ai.platform.worker.evaluation import EvalWork
from osmosis_ai.platform.worker.process import WorkerExit, WorkingDirectory, worker_starter
from osmosis_ai.platform.worker.training import TrainingWork
from osmosis_ai.platform.worker.work import Interrupt, RunContainment, ShardEnd
from osmosis_ai.platform.worker.worker import Worker
from osmosis_ai.processes.child_process import ChildProcess
from tests.evaluation.builders import record
from tests.platform.conftest import World
from tests.platform.evaluations import wait_until
from tests.platform.fake_worker import EVALS, GPU, TRAININGS, FakeWorker, journal_of
from tests.platform.worker.fake_platform import Asked, FakePlatform, assignment, refusal

Execute = Callable[[Interrupt], ShardEnd]


@pytest.fixture(autouse=True)
def unchanged_signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


class Work:
    """Executes shards in this process, with work that does what the test says."""

    def __init__(
        self, client: WorkerClient, assigned: Assignment, config: PlatformConfig, patch: pytest.MonkeyPatch
    ) -> None:
        self.patch = patch
        self.directory = WorkingDirectory(config.runs_dir, assigned.shard.id)
        self.directory.create()
        self.worker = Worker(client, assigned, config, self.directory)

    def run(
        self,
        execute: Execute | None = None,
        *,
        failure: Exception | None = None,
        containment: RunContainment | None = None,
    ) -> int:
        """Return the exit status of a worker whose work prepares nothing, or fails."""

        def prepare(work: Any) -> None:
            if failure is not None:
                raise failure
            work.containment = containment

        async def executing(_: Any, interrupt: Interrupt) -> ShardEnd:
            assert execute is not None
            return await asyncio.to_thread(execute, interrupt)

        for kind in (EvalWork, TrainingWork):
            self.patch.setattr(kind, "prepare", prepare)
            self.patch.setattr(kind, "execute", executing)
        return self.worker.run()


class Claimed(Work):
    """The worker of a shard of the real platform."""

    def __init__(
        self, api: TestClient, world: World, client: WorkerClient, patch: pytest.MonkeyPatch
    ) -> None:
        self.api, self.world, self.client, self.patch = api, world, client, patch

    def claim(self, kind: str = "eval", pool: str | None = None) -> Claimed:
        config = {} if pool is None else {"advanced_config": GPU}
        (EVALS if kind == "eval" else TRAININGS).taken(self.api, **config)
        return self.continues(FakeWorker.claims(self.world, pool))

    def continues(self, owner: FakeWorker) -> Claimed:
        self.owner = owner
        super().__init__(self.client, owner.assignment, self.world.services.config, self.patch)
        return self

    @property
    def state(self) -> tuple[str, str, int, str | None]:
        """Return the status of the run and of its shard, the failed attempts, and the run's error."""
        run, shard = self.owner.run, self.owner.shard
        return run.status, shard.status, shard.failed_attempts, run.error


@pytest.fixture
def claimed(api: TestClient, world: World, real: WorkerClient, monkeypatch: pytest.MonkeyPatch) -> Claimed:
    return Claimed(api, world, real, monkeypatch)


def until_interrupted(interrupt: Interrupt) -> ShardEnd:
    wait_until(lambda: interrupt)
    return ReleaseRequest()


def no_room() -> OsmosisError:
    """Return the error of a download that finds no room."""
    error = OsmosisError("cannot write source.tar.gz: No space left on device.", hint="run the command again")
    error.__context__ = OSError(errno.ENOSPC, "No space left on device")
    return error


FULL = f"the disk of the worker's machine ({socket.gethostname()}) is full: "


@pytest.mark.parametrize("kind", ["eval", "training"])
@pytest.mark.parametrize(
    ("failure", "failed", "said"),
    [
        (UvInterruptedError("uv was ended by signal 15."), 1, "uv was ended by signal 15"),
        (DatabaseBusyError("the database is busy."), 1, "the database is busy"),
        (StoreAwayError("the bucket is unavailable."), 0, "the bucket is unavailable"),
        (no_room(), 1, FULL + "cannot write source.tar.gz: No space left on device"),
        (OSError(errno.EFBIG, "File too large"), 1, FULL),
        (OsmosisError("main.py has an error.", hint="fix it"), None, "main.py has an error; fix it."),
        (ValueError("odd"), None, "the worker had an internal error (ValueError)"),
    ],
    ids=["interrupted", "busy", "store", "full", "too large", "fault", "unexpected"],
)
def test_preparation_failures(
    claimed: Claimed, kind: str, failure: Exception, failed: int | None, said: str
) -> None:
    assert claimed.claim(kind).run(failure=failure) == WorkerExit.ENDED
    run, shard, attempts, error = claimed.state
    messages = claimed.owner.messages()
    if failed is None:
        assert shard == "failed" and error is not None and error.startswith(said)
        assert not claimed.directory.path.exists()
        assert any("ValueError: odd" in each for each in messages) == isinstance(failure, ValueError)
    else:
        assert (run, shard, attempts, error) == ("running", "pending", failed, None)
        (line,) = [each for each in messages if "trying again" in each]
        assert line.startswith(said) and "run the command" not in line
        assert claimed.directory.take_failure().startswith(said)


@pytest.mark.parametrize(
    "end",
    [FinishRequest(outcome="finished"), ReleaseRequest(), ReleaseRequest(reason="the database is busy.")],
    ids=["finished", "left", "failed"],
)
def test_a_run_with_a_stop_request_is_stopped(claimed: Claimed, end: ShardEnd) -> None:
    claimed.claim()
    path = f"/api/cli/eval-runs/{claimed.owner.run_id}"
    claimed.api.post(f"{path}/stop", json={})
    shown = (
        claimed.api.get(path).json()["waits"],
        claimed.api.get("/api/cli/eval-runs").json()["eval_runs"][0]["waits"],
    )
    assert set(shown) == {STOPPING}

    def execute(interrupt: Interrupt) -> ShardEnd:
        wait_until(lambda: interrupt)
        return end

    assert claimed.run(execute) == WorkerExit.ENDED
    assert claimed.state[1] == "stopped"


@pytest.mark.parametrize("pool", [None, "gpu"])
def test_a_signal_releases_the_shard(claimed: Claimed, pool: str | None) -> None:
    def execute(interrupt: Interrupt) -> ShardEnd:
        os.kill(os.getpid(), signal.SIGTERM)
        return until_interrupted(interrupt)

    assert claimed.claim(pool=pool).run(execute) == WorkerExit.ENDED
    assert claimed.state == ("running", "pending", 0, None)
    whose = " of the pool 'gpu'" if pool else ""
    assert claimed.owner.messages()[-1] == (
        f"the worker is shutting down; another worker{whose} can continue the run"
    )


# -- a platform that refuses or is unreachable -----------------------------------------------------------


@pytest.fixture
def work(
    worker_client: WorkerClient,
    platform: FakePlatform,
    config: PlatformConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> Work:
    """A worker of the fake platform, whose lease lasts 0.3 s."""
    monkeypatch.setattr(reporter, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(worker, "_KNOCK_S", 0.01)
    platform.sync = {"stop": False, "term_s": 0.3, "next_poll_s": 0.02}
    assigned = assignment(lease={"token": "osml_lease-canary", "attempt": 1, "term_s": 0.3}, next_poll_s=0.02)
    return Work(worker_client, assigned, config, monkeypatch)


def test_refused_worker_prepares_nothing(
    work: Work, platform: FakePlatform, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    platform.answer = lambda _: refusal(401, "TOKEN_REVOKED")
    start = work.worker._reporter.start

    def started() -> None:
        start()
        wait_until(lambda: work.worker._is_refused)

    monkeypatch.setattr(work.worker._reporter, "start", started)
    assert work.run(failure=AssertionError("it is prepared")) == WorkerExit.LEASE_LOST
    assert "refuses this worker" in capsys.readouterr().err
    assert not platform.calls("finish") + platform.calls("release")


def test_a_shard_that_cannot_be_closed_is_left_with_the_reason(work: Work, platform: FakePlatform) -> None:
    platform.answer = lambda _: refusal(503)
    assert work.run(failure=OsmosisError("main.py has an error.")) == WorkerExit.UNREACHABLE
    assert work.directory.take_failure()


def test_a_rejected_report_releases_the_shard_with_the_reason(work: Work, platform: FakePlatform) -> None:
    platform.answer = lambda asked: (
        refusal(400, "VALIDATION") if "log" in (asked.body or {}) else None  # every report with a log line
    )
    assert work.run(until_interrupted) == WorkerExit.ENDED
    (released,) = platform.calls("release")
    assert released.body == {"reason": "validation.", "counts": True, "unfit": False}


def test_work_begins_again_when_the_platform_is_back(work: Work, platform: FakePlatform) -> None:
    times: list[bool] = []

    def execute(interrupt: Interrupt) -> ShardEnd:
        times.append(bool(interrupt))
        if len(times) == 2:
            return FinishRequest(outcome="finished")
        platform.answer = lambda _: refusal(503)
        wait_until(lambda: interrupt)
        platform.answer = lambda _: None
        return ReleaseRequest()

    assert work.run(execute) == WorkerExit.ENDED
    assert times == [False, False]
    assert [line for line in platform.messages if "unavailable" in line] == [
        "the platform was unavailable for 0 s; the run continues"
    ]
    assert platform.calls("finish")[0].body == {"outcome": "finished", "error": None, "note": None}


@pytest.mark.parametrize("end", ["back", "silent", "leave", "stop"])
def test_paused_work_continues_only_if_the_platform_is_back_within_a_lease(
    work: Work, platform: FakePlatform, end: str
) -> None:
    outlasted: list[bool] = []

    def execute(interrupt: Interrupt) -> ShardEnd:
        platform.answer = lambda _: refusal(503)
        wait_until(lambda: interrupt)
        if end == "leave":
            work.worker.leave()
        elif end != "silent":
            platform.sync["stop"] = end == "stop"
            platform.answer = lambda _: None
        outlasted.append(interrupt.outlast())
        assert bool(interrupt) == (end != "back"), "it can be requested again"
        platform.answer = lambda _: None
        work.worker.leave()
        return ReleaseRequest()

    assert work.run(execute) == WorkerExit.ENDED
    assert outlasted == [end == "back"]


def test_a_stop_is_forced_if_the_work_does_not_end(
    work: Work, platform: FakePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    exits: list[int] = []
    forced = threading.Event()

    def end(status: int) -> None:
        exits.append(status)
        forced.set()

    monkeypatch.setattr(worker.os, "_exit", end)
    monkeypatch.setitem(worker._STOP_WITHIN_S, "eval", 0.01)

    def execute(interrupt: Interrupt) -> ShardEnd:
        work.worker.leave()
        assert forced.wait(60)
        return ReleaseRequest()

    work.run(execute)
    assert exits == [WorkerExit.ENDED] and platform.calls("release")
    work.worker._end_by_force()
    assert exits == [WorkerExit.ENDED]


# -- the journal -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "kept", "fetched"),
    [
        (None, None, True),
        ([0, 1, 2, 3, 4], None, False),
        ([0, 1, 2], None, False),
        ([0, 1], "events.jsonl.diverged", True),
        ([7, 8, 9], "events.jsonl.diverged", True),
        ("link", None, True),
    ],
    ids=["empty disk", "ahead", "equal", "behind", "diverged", "link"],
)
def test_the_local_journal_is_continued_if_it_begins_with_the_platforms(
    claimed: Claimed, tmp_path: Path, own: Any, kept: str | None, fetched: bool
) -> None:
    EVALS.taken(claimed.api, evaluation_config={"limit": 10, "n": 1})
    earlier = FakeWorker.claims(claimed.world)
    earlier.records(3)
    earlier.releases()
    claimed.continues(FakeWorker.claims(claimed.world))
    events = claimed.directory.evaluation(earlier.assignment.run.name).events
    events.parent.mkdir(parents=True)
    stored, written = earlier.journal, b""
    if own == "link":
        (tmp_path / "elsewhere").write_bytes(stored)
        events.symlink_to(tmp_path / "elsewhere")
    elif own is not None:
        written = journal_of(record(row) for row in own) + b'{"torn'
        events.write_bytes(written)
    claimed.worker._work._adopt_journal()  # type: ignore[attr-defined]
    claimed.worker._reporter.flush()
    assert not events.is_symlink()
    assert events.read_bytes() == (stored if fetched else written)
    others = {path.name for path in events.parent.iterdir()} - {"events.jsonl"}
    assert others == ({"events.jsonl.diverged"} if kept or own == "link" else set())
    if kept:
        assert (events.parent / kept).read_bytes() == written
    assert any("continues from the 3 records" in line for line in claimed.owner.messages()) == fetched
    rows = [sample.row_index for sample in claimed.owner.samples()]
    assert rows == (list(range(5)) if own == [0, 1, 2, 3, 4] else [0, 1, 2])


def test_a_journal_that_was_changed_on_its_way_is_downloaded_again(
    platform: FakePlatform,
    worker_client: WorkerClient,
    config: PlatformConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shard = {"id": "shd_1", "journal_bytes": 5, "journal_sha256": "0" * 64}
    changed = Work(worker_client, assignment(shard=shard), config, monkeypatch)
    platform.blobs["journal"] = b"other"
    with pytest.raises(StoredBytesError) as caught:
        changed.worker._work._adopt_journal()  # type: ignore[attr-defined]
    assert caught.value.is_infrastructure
    assert not changed.directory.evaluation("1").events.exists()


# -- real processes ------------------------------------------------------------------------------------------


def test_assignment_through_a_pipe_and_release_after_a_signal(
    port: str, platform: FakePlatform, config: PlatformConfig
) -> None:
    fetching, go_on = threading.Event(), threading.Event()

    def answer(_: Asked) -> None:
        fetching.set()
        go_on.wait(60)

    platform.answer = answer
    config.prepare_home()
    process = worker_starter(replace(config, isolation="off"), port)(assignment())
    assert isinstance(process, ChildProcess)
    try:
        assert fetching.wait(60), WorkingDirectory(config.runs_dir, "shd_1").log.read_text()
        place = Path("/proc", str(process.pid))
        shown = (place / "cmdline").read_bytes() + (place / "environ").read_bytes()
        assert b"canary" not in shown and port.encode() not in shown
        other = WorkingDirectory(config.runs_dir, "shd_1")
        assert not other.lock(), "it is the only worker of its shard here"
        os.kill(process.pid, signal.SIGTERM)
        go_on.set()
        assert process.finish(timeout_s=60) == WorkerExit.ENDED
    finally:
        go_on.set()
        process.kill()
    assert len(platform.calls("release") + platform.calls("finish")) == 1
