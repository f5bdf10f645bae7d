"""A machine that executes runs: when it claims, how it ends, and what it reports about its workers."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.models.workers import (
    Assignment,
    ClaimReply,
    ClaimRequest,
    ReleaseRequest,
    ShardClosed,
    SyncReply,
    SyncRequest,
)
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.worker import host as host_module
from osmosis_ai.platform.worker.client import (
    CredentialRefusedError,
    NoPlatformError,
    PlatformUnreachableError,
)
from osmosis_ai.platform.worker.host import ExecutedShard, Host, HostOptions
from osmosis_ai.platform.worker.process import WorkerExit, WorkingDirectory, worker_environment
from osmosis_ai.process_environment import program_environment
from osmosis_ai.sandbox.isolation import SandboxCapability
from tests.platform.worker.fake_platform import assignment

AWAY = PlatformUnreachableError("the platform is unreachable: connection refused.")
ANSWERED = PlatformError("this claim has been answered.", status=409, code="CONFLICT")
Answer = Assignment | Exception | float


class Process:
    """A worker that ends as the test says."""

    def __init__(self, status: int | None) -> None:
        self.status, self.pid = status, os.getpid()  # signals are caught by the test

    def poll(self) -> int | None:
        return self.status

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.status = -number if self.status is None else self.status


class Platform:
    """The platform and the time of a host.

    Attributes:
        answers: to claims: an assignment, an error, or the seconds until the next claim. Then the host is asked to end.
        statuses: with which workers end; None if they end when they are asked to.
        events: what happens at which time.
    """

    def __init__(self, answers: list[Answer], statuses: list[int | Exception | None]) -> None:
        self.answers, self.statuses = answers, statuses
        self.claims: list[ClaimRequest] = []
        self.claimed_at: list[float] = []
        self.left: list[ClaimRequest] = []
        self.released: list[tuple[str, str, ReleaseRequest]] = []
        self.kept: list[str] = []
        self.processes: list[Process] = []
        self.signals: list[int] = []
        self.said: list[str] = []
        self.now, self.tick = 0.0, 0.25
        self.events: list[tuple[float, Callable[[], None]]] = []
        self.host: Host

    def claim(self, request: ClaimRequest) -> ClaimReply:
        if request.leaves:
            self.left.append(request)
            return ClaimReply()
        self.claims.append(request)
        self.claimed_at.append(self.now)
        if not self.answers:
            self.host.ask_to_end()
            return ClaimReply(next_poll_s=1.0)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Assignment):
            return ClaimReply(assignment=answer)
        return ClaimReply(next_poll_s=answer)

    def end(self, shard_id: str, lease: Any, request: ReleaseRequest, *, lasting_s: float) -> ShardClosed:
        self.released.append((shard_id, lease.get_secret_value(), request))
        return ShardClosed(status="pending")

    def sync(self, shard_id: str, lease: Any, request: SyncRequest) -> SyncReply:
        self.kept.append(shard_id)
        return SyncReply(stop=False, term_s=30, next_poll_s=1)

    def start(self, claimed: Assignment) -> Process:
        status = self.statuses.pop(0)
        if isinstance(status, Exception):
            raise status
        self.processes.append(Process(status))
        return self.processes[-1]

    def monotonic(self) -> float:
        """Time passes when it is looked at."""
        self.now += self.tick
        while self.events and self.events[0][0] <= self.now:
            self.events.pop(0)[1]()
        return self.now

    def kill(self, pid: int = 0, number: int = 0) -> None:
        """Let all workers end by themselves."""
        self.signals.append(number)
        for process in self.processes:
            process.status = WorkerExit.ENDED if process.status is None else process.status

    @property
    def waits(self) -> list[float]:
        """Return the seconds between claims."""
        return [later - earlier for earlier, later in pairwise(self.claimed_at)]

    @property
    def reasons(self) -> list[tuple[str, str | None, bool, bool]]:
        return [(shard, each.reason, each.counts, each.unfit) for shard, _, each in self.released]


Play = Callable[..., tuple[Platform, Host]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Play:
    """Return a function that creates a platform and a host without pauses."""
    monkeypatch.setattr(host_module, "_ROUND_S", 0.001)
    monkeypatch.setattr(host_module, "_LOOK_S", 0.001)
    monkeypatch.setattr(host_module, "remove_old", lambda _: None)

    def playing(
        answers: list[Answer], statuses: list[Any] | None = None, **options: Any
    ) -> tuple[Platform, Host]:
        platform = Platform(answers, statuses or [])
        monkeypatch.setattr(os, "kill", platform.kill)
        client: Any = platform
        start: Any = platform.start
        platform.host = Host(
            client,
            start,
            HostOptions(**({"pool": "gpu"} | options)),
            tmp_path,
            address="https://platform.example",
            say=platform.said.append,
            monotonic=platform.monotonic,
        )
        return platform, platform.host

    return playing


def endings(executed: list[ExecutedShard]) -> list[str | None]:
    return [shard.ending for shard in executed]


def test_poll_interval_and_claim_ids(play: Play) -> None:
    platform, host = play(
        [assignment("a"), 40.0, 5.0, assignment("b")], [WorkerExit.ENDED, WorkerExit.ENDED], gpus=2
    )
    assert endings(host.run()) == ["ended", "ended"]
    first, second, third, fourth, *_ = platform.claims
    assert (first.pool, first.gpus, first.run_id) == ("gpu", 2, None)
    assert first.claim_id != second.claim_id == third.claim_id == fourth.claim_id
    assert platform.waits[1] >= 40 and 5 <= platform.waits[2] < 40
    assert platform.released == [], "workers release and finish themselves"
    assert len(platform.left) == 1
    assert platform.said[0] == "executes runs of https://platform.example"


def test_slots_limit_the_workers(play: Play) -> None:
    platform, host = play([assignment(name) for name in "abc"], [None] * 3, slots=2)
    platform.events = [(100, host.ask_to_end)]
    assert len(host.run()) == len(platform.claims) == 2
    assert platform.signals[0] == signal.SIGTERM and host.processes() == []


def test_once_and_a_named_run(play: Play) -> None:
    platform, host = play([assignment("a"), assignment("b")], [WorkerExit.ENDED], once=True)
    assert endings(host.run()) == ["ended"] and len(platform.claims) == 1
    platform, host = play([1.0, assignment("a")], [WorkerExit.ENDED], pool=None, run_id="run_a")
    assert endings(host.run()) == ["ended"]
    assert {(each.pool, each.run_id) for each in platform.claims} == {(None, "run_a")}
    assert len({each.claim_id for each in platform.claims}) == 1, "a ticket is bound to it"


@pytest.mark.parametrize(
    ("status", "ending", "reason", "counts"),
    [
        (WorkerExit.ENDED, "ended", None, None),
        (WorkerExit.LEASE_LOST, "lease_lost", None, None),
        (-signal.SIGKILL, "died", "the worker died (signal 9", True),
        (1, "died", "the worker died (exit status 1)", True),
        (WorkerExit.LEARNER_LOST, "died", "a process of its learner died", True),
        (WorkerExit.BUSY, "died", "an earlier worker on the same machine has not ended yet", False),
        (WorkerExit.UNREACHABLE, "unreachable", "the store is unavailable.", False),
    ],
)
def test_each_exit_status(
    play: Play, tmp_path: Path, status: int, ending: str, reason: str | None, counts: bool | None
) -> None:
    platform, host = play([assignment("a")], [status], once=True)
    directory = WorkingDirectory(tmp_path, "shd_a")
    directory.create()
    directory.note_failure("the store is unavailable.")
    assert endings(host.run()) == [ending]
    if reason is None:
        assert platform.released == []
    else:
        ((shard_id, lease, request),) = platform.released
        assert (shard_id, lease, request.counts, request.unfit) == (
            "shd_a",
            "osml_lease-canary",
            counts,
            False,
        )
        assert request.reason is not None and reason in request.reason
        assert platform.said[-1].startswith("released the run a: ")
    assert "canary" not in "".join(platform.said)


def test_pauses_grow_after_each_death(play: Play) -> None:
    full = OSError(28, "No space left on device")
    platform, host = play([assignment(name) for name in "abcd"], [1, 1, 1, full])
    assert endings(host.run()) == ["died"] * 4
    assert platform.waits == sorted(platform.waits) and platform.waits[3] >= 8
    shard_id, reason, counts, unfit = platform.reasons[-1]
    assert (shard_id, counts, unfit) == ("shd_d", True, True), "a machine that starts no worker is unfit"
    assert reason is not None and reason.endswith("could not start a worker: No space left on device")


def test_lease_of_a_worker_that_is_slow_to_start(play: Play) -> None:
    platform, host = play([assignment("a"), *[1.0] * 400], [None], slots=2, once=True)
    platform.tick, platform.events = 1.0, [(101, platform.kill)]
    assert endings(host.run()) == ["ended"]
    assert 4 <= len(platform.kept) <= 6 and set(platform.kept) == {"shd_a"}, "a third of the lease, for 60 s"


def test_unresponsive_worker_is_killed(play: Play, tmp_path: Path) -> None:
    platform, host = play([assignment("a"), *[1.0] * 900], [None], slots=2, once=True)
    directory = WorkingDirectory(tmp_path, "shd_a")
    assert directory.lock()

    def touch() -> None:
        os.utime(tmp_path / "shd_a" / "worker.lock", (platform.now, platform.now))

    platform.tick, platform.events = 1.0, [(second, touch) for second in range(200)]
    assert endings(host.run()) == ["died"]
    assert 320 <= platform.now <= 340, "four leases after it responded last"
    ((_, reason, counts, _),) = platform.reasons
    assert counts and reason is not None and reason.startswith("the worker died (it did not respond)")


def test_second_request_to_end_kills_the_workers(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    platform, host = play([assignment("a")], [None], slots=2)
    monkeypatch.setattr(os, "kill", lambda *_: host.ask_to_end())
    monkeypatch.setattr(host_module, "_LAST_CALLS_S", math.inf)
    with pytest.raises(KeyboardInterrupt):
        host.run()
    assert platform.processes[0].status == -signal.SIGKILL
    assert platform.reasons == [("shd_a", None, False, False)]
    assert "released the run a for another worker" in platform.said[-1]
    assert len(platform.left) == 1


# -- a platform that refuses or is unreachable -------------------------------------------------------


@pytest.mark.parametrize(("error", "claims"), [(AWAY, 1), (ANSWERED, 4)])
def test_failed_claims_are_repeated_with_growing_pauses(play: Play, error: OsmosisError, claims: int) -> None:
    platform, host = play([error, error, error, assignment("a")], [WorkerExit.ENDED], once=True)
    assert endings(host.run()) == ["ended"]
    assert len({each.claim_id for each in platform.claims}) == claims
    assert platform.said.count(f"trying again: {error.message}") == 1
    assert platform.waits == sorted(platform.waits) and platform.waits[-1] >= 4


@pytest.mark.parametrize("outage", [[], [AWAY]])
@pytest.mark.parametrize(
    "error",
    [CredentialRefusedError("This token has been revoked."), NoPlatformError("no platform.")],
    ids=repr,
)
def test_refusal_ends_the_host(play: Play, error: OsmosisError, outage: list[Exception]) -> None:
    platform, host = play([assignment("a"), *outage, error], [None], slots=2)
    with pytest.raises(type(error)) as caught:
        host.run()
    assert caught.value is error
    assert platform.signals == [signal.SIGTERM]
    assert platform.said[-3:] == [
        f"no more runs are claimed: {error}",
        "released the run a",
        "executed 1 run",
    ]


@pytest.mark.parametrize(
    "only", [{"idle_exit_s": 30}, {"idle_exit_s": 30, "once": True}, {"run_id": "run_a"}]
)
def test_idle_exit_and_claim_timeout(play: Play, only: dict[str, Any]) -> None:
    _, host = play([AWAY] * 1000, **only)
    with pytest.raises(PlatformUnreachableError):
        host.run()
    platform, host = play([1.0] * 10_000, **only)
    if "run_id" in only:
        with pytest.raises(OsmosisError, match="the run run_a could not be claimed"):
            host.run()
    else:
        assert host.run() == []
    assert platform.now >= (600 if "run_id" in only else 30)
    assert len(platform.left) == 1


def test_claim_describes_the_machine() -> None:
    broken = SandboxCapability(problem="bubblewrap is\nnot installed", remedy="x" * 600)
    options = HostOptions(machine="box-1", labels=("a100",), gpus=2, memory_gb=64.0, cpus=8, sandbox=broken)
    request = options.request("0" * 32)
    assert (request.machine, request.labels, request.gpus, request.cpus) == ("box-1", ["a100"], 2, 8)
    assert request.sandbox is False and request.sandbox_problem is not None
    assert request.sandbox_problem.startswith("bubblewrap is not installed; xxx")
    assert len(request.sandbox_problem) == 500
    works = HostOptions(sandbox=SandboxCapability(Path("/bin/bwrap"))).request("0" * 32)
    assert (works.sandbox, works.sandbox_problem) == (True, None)


def test_worker_environment_has_no_secrets() -> None:
    shell = {"PATH": "/bin", "LC_ALL": "C", "UV_OFFLINE": "1", "OSMOSIS_CACHE_DIR": "/c", "HF_HOME": "/m"}
    secret = {"OPENAI_API_KEY": "sk", "OSMOSIS_TOKEN": "osm", "HF_TOKEN": "hf", "AWS_ACCESS_KEY_ID": "AKIA"}
    assert program_environment({**shell, **secret}) == {"PATH": "/bin", "LC_ALL": "C"}
    config = PlatformConfig(
        home=Path("/h"), database_url="postgresql://u:password@h/d", blobs_url="s3://bucket/x"
    )
    worker = worker_environment({**shell, **secret}, config)
    assert (worker["UV_OFFLINE"], worker["OSMOSIS_HOME"], worker["HF_HOME"]) == ("1", "/h", "/m")
    assert not secret.keys() & worker.keys() and "password" not in str(worker) and "s3:" not in str(worker)
