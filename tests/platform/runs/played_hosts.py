"""A platform, its workers and its time, as a machine that takes runs meets them: played by a test."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.api.wire.workers import (
    AssignedLease,
    AssignedRun,
    Assignment,
    InputDownload,
    ReleaseRequest,
    RunClosed,
    StoredJournal,
    WorkerOffer,
)
from osmosis_ai.platform.runs.execute.worker_process import ENDED
from osmosis_ai.platform.runs.work.host_terms import HostTerms
from osmosis_ai.platform.runs.work.taken_runs import TakenRuns
from osmosis_ai.platform.runs.work.worked_runs import WorkedRun
from osmosis_ai.platform.runs.work.worker_host import WorkerHost

ROWS = InputDownload(url="/blobs/rows", size=1, sha256="0" * 64)


def assignment(name: str) -> Assignment:
    run = AssignedRun(
        id=f"run_{name}",
        name=name,
        kind="eval",
        workspace_id="wsp_1",
        request={},
        commit_sha="c" * 40,
        rollout_name="multiply",
        dataset_name="rows",
        model_path="osmosis/tiny",
        seed=0,
        selection={},
    )
    return Assignment(
        run=run,
        lease=AssignedLease(token=f"lease of {name}", attempt=1, term_s=30),  # type: ignore[arg-type]
        dataset=ROWS,
        dataset_extension="jsonl",
        journal=StoredJournal(generation=0, bytes=0),
    )


class Worker:
    """A worker's process, which ends as the test says."""

    def __init__(self, status: int | None, signals: list[int]) -> None:
        self.status = status
        self.pid = os.getpid()  # signals are caught by the test
        self.signals = signals

    def poll(self) -> int | None:
        return self.status

    def kill(self) -> None:
        self.status = self.status if self.status is not None else -signal.SIGKILL


class Platform:
    """A platform: what it answers to each claim, and what it heard.

    Args:
        answers: one for each claim; after the last the platform is told to have the host end.
        statuses: how the workers end, one by one; None: when they are asked to.
    """

    def __init__(self, answers: list[Assignment | Exception | None], statuses: list[int | None]) -> None:
        self.answers = answers
        self.statuses = statuses
        self.offers: list[WorkerOffer] = []
        self.released: list[tuple[str, str, str | None]] = []
        self.left: list[WorkerOffer] = []
        self.of_machine: list[bool] = []
        self.started: list[tuple[str, str]] = []
        self.workers: list[Worker] = []
        self.signals: list[int] = []
        self.said: list[str] = []
        self.now = 0.0
        self.workers_end_at = math.inf
        self.asked_at: list[float] = []
        self.host: WorkerHost | None = None
        self.threads_before = set(threading.enumerate())

    def claim(self, offer: WorkerOffer) -> Assignment | None:
        self.offers.append(offer)
        self.asked_at.append(self.now)
        answer = self.answers.pop(0) if self.answers else self._end()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _end(self) -> None:
        assert self.host is not None
        self.host.ask_to_end()

    def release(self, run_id: str, request: ReleaseRequest) -> RunClosed:
        self.of_machine.append(request.of_machine)
        self.released.append((run_id, request.lease.get_secret_value(), request.setback))
        return RunClosed(status="running")

    def leave(self, offer: WorkerOffer) -> None:
        self.left.append(offer)

    def start(self, run_id: str, claim_id: str) -> Worker:
        self.started.append((run_id, claim_id))
        self.workers.append(Worker(self.statuses.pop(0), self.signals))
        return self.workers[-1]

    def monotonic(self) -> float:
        """Time passes by being looked at, so that pauses are over soon; not while a question is under way, however long."""
        for thread in threading.enumerate():
            if thread.name.startswith("claim") and thread not in self.threads_before:
                # One that a test holds up gives itself another name.
                while thread.is_alive() and thread.name.startswith("claim"):
                    thread.join(0.01)
        self.now += 0.5
        if self.now > self.workers_end_at:
            for worker in self.workers:
                worker.status = ENDED if worker.status is None else worker.status
        return self.now


Play = Callable[..., tuple[Platform, WorkerHost]]


def player(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Play:
    """Return what makes a platform with its answers, and a machine that asks it."""
    monkeypatch.setattr("osmosis_ai.platform.runs.work.worker_host.ROUND_S", 0.001)

    def playing(
        answers: list[Assignment | Exception | None], statuses: list[int | None] | None = None, **terms: Any
    ) -> tuple[Platform, WorkerHost]:
        platform = Platform(answers, statuses or [])
        link: Any = platform
        platform.host = WorkerHost(
            link,
            lambda run_id, claim_id: platform.start(run_id, claim_id),
            HostTerms(**{"pool": "gpu", **terms}),
            TakenRuns(tmp_path),
            say=platform.said.append,
            monotonic=platform.monotonic,
        )

        def sent(pid: int, number: int) -> None:
            platform.signals.append(number)
            for worker in platform.workers:
                worker.status = ENDED if worker.status is None else worker.status

        monkeypatch.setattr(os, "kill", sent)
        return platform, platform.host

    return playing


def endings(worked: list[WorkedRun]) -> list[str | None]:
    return [run.ending for run in worked]
