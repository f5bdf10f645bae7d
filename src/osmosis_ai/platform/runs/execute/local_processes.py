"""The platform's own machine as an executor: a job is a process, which ends with this one."""

from __future__ import annotations

import builtins
import contextlib
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from osmosis_ai.errors import reason_of
from osmosis_ai.platform.runs.execute.executor import ExecutorAway, Fault, JobState, WantedJob
from osmosis_ai.platform.runs.execute.worker_process import (
    ENDED,
    LEARNER_LOST,
    LEASE_LOST,
    NOT_MINE,
    REFUSED,
    SET_BACK,
    STORE_AWAY,
    StartWorker,
    WorkerProcess,
)
from osmosis_ai.platform.runs.working_directory import WorkingDirectory
from osmosis_ai.processes import describe_exit

_CLOSES_WITHIN_S = 10.0
_NO_FAILURES = (ENDED, NOT_MINE, LEASE_LOST, REFUSED)


class NoWorkerError(ExecutorAway):
    """This machine starts no process now: its disk is full, say, or its user has too many."""

    where = "the platform's own machine"


@dataclass
class _Worker:
    job: WantedJob
    process: WorkerProcess
    is_stopped: bool = False
    ended: JobState | None = None


class LocalProcesses:
    """Workers that are children of this process."""

    every_s = 0.1
    first_pause_s = 0.5
    works_here = True

    def __init__(
        self,
        runs_dir: Path,
        start_worker: StartWorker,
        *,
        on_closed: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runs_dir = runs_dir
        self._start_worker = start_worker
        self._on_closed = on_closed
        self._monotonic = monotonic
        self._workers: dict[str, _Worker] = {}
        self._damaged: dict[str, JobState] = {}
        self._is_closed = False

    def start(self, job: WantedJob, ticket: str) -> str:
        """Start a process; it has what its machine has, and nothing is to be said of it."""
        if job.id not in self._workers:
            # How they ended, who asks has been told.
            self._workers = {id: worker for id, worker in self._workers.items() if worker.ended is None}
            directory = WorkingDirectory(self._runs_dir, job.run_id)
            try:
                directory.create()
                directory.is_worked_on()  # its worker would fail silently if the lock cannot be taken
                process = self._start_worker(job.run_id, ticket, secrets.token_hex(16))
            except OSError as error:
                if _is_damage(error, directory.path):
                    why = f"its working directory on the platform's machine is damaged ({reason_of(error)})"
                    self._damaged[job.run_id] = JobState(job.id, "ended", why, "ours")
                    return ""
                raise NoWorkerError(f"it cannot start a worker ({reason_of(error)}).") from error
            if self._is_closed:  # by another thread, which did not wait for ever
                process.kill()
                raise NoWorkerError("the platform ends.")
            self._damaged.pop(job.run_id, None)
            self._workers[job.id] = _Worker(job, process)
        return ""

    def state(self, job: WantedJob) -> JobState | None:
        """Return how a process is; None of one that was not started here."""
        worker = self._workers.get(job.id)
        if worker is not None:
            return self._look_at(worker)
        damaged = self._damaged.get(job.run_id)
        return damaged if damaged is not None and damaged.id == job.id else None

    def stop(self, job: WantedJob) -> None:
        """Kill a process and what it started."""
        worker = self._workers.get(job.id)
        if worker is not None and worker.process.poll() is None:
            worker.is_stopped = True
            worker.process.kill()

    def list(self) -> builtins.list[JobState]:
        """Return the processes of this one; those of an earlier one end with it."""
        return [self._look_at(worker) for worker in self._workers.values()]

    def process_of(self, run_id: str) -> WorkerProcess | None:
        """Return the process that works on a run; None where none does, as far as was noticed."""
        living = (worker for worker in self._workers.values() if worker.ended is None)
        return next((worker.process for worker in living if worker.job.run_id == run_id), None)

    def close(self) -> None:
        """Ask the workers to leave their runs as they are, and wait until they have, for some seconds."""
        self._is_closed = True
        processes = [worker.process for worker in self._workers.values() if worker.ended is None]
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
        deadline, waiting = self._monotonic() + _CLOSES_WITHIN_S, threading.Event()
        while any(process.poll() is None for process in processes) and self._monotonic() < deadline:
            waiting.wait(self.every_s)
        for process in processes:
            process.kill()
        self._workers.clear()
        self._on_closed()

    def _look_at(self, worker: _Worker) -> JobState:
        status = worker.process.poll()
        if status is None:
            return JobState(worker.job.id, "running")
        if worker.ended is None:
            worker.process.kill()  # what it started, too
            worker.ended = self._ended(worker, status)
        return worker.ended

    def _ended(self, worker: _Worker, status: int) -> JobState:
        directory = WorkingDirectory(self._runs_dir, worker.job.run_id)
        if worker.is_stopped:
            return JobState(worker.job.id, "ended", "the worker was ended by force")
        if status in _NO_FAILURES:
            return JobState(worker.job.id, "ended")
        if status in (SET_BACK, STORE_AWAY):
            why = directory.take_setback().rstrip(".")
            fault: Fault = "ours" if status == SET_BACK else "nobody"
            unsaid = "the platform could not do its part, and could not say why: its disk may be full"
            return JobState(worker.job.id, "ended", why or unsaid, fault)
        how = "a process of its learner was lost" if status == LEARNER_LOST else describe_exit(status)
        log = f"{directory.log} on the platform's machine"
        return JobState(worker.job.id, "ended", f"the worker ended unexpectedly ({how})", "run", log)


def _is_damage(error: OSError, directory: Path) -> bool:
    """Tell whether a worker could not be started for what one run's directory is, and not for want of anything."""
    if not isinstance(error.filename, str | os.PathLike) or not Path(error.filename).is_relative_to(
        directory
    ):
        return False
    is_no_directory = isinstance(error, FileExistsError)
    return is_no_directory or (directory.is_dir() and isinstance(error, IsADirectoryError | PermissionError))
