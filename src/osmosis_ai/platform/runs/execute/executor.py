"""Starts a worker process for every run that needs one, on this machine, and sees each of them to its end.

The executor owns no run: it starts workers, which claim theirs, and cleans up after those that died. Any number
of times it may be killed itself; what it needs to know is in the database, in the workers' locks and in their
journals. Runs start in the order in which they were submitted, and the workspace with the fewest workers goes
first, so that nobody's hundred runs hold up somebody's one.

A worker that dies is replaced, and so is one that gave up because our own infrastructure failed it: each time in a
row without a record in between after twice the time, and the run's log says why and when. After
:data:`FRUITLESS` deaths, or :data:`SETBACKS` failures of the infrastructure, the run fails: whatever it is
would go on. Deaths together with the platform do not count.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, func, or_, select

from osmosis_ai.api.wire.workers import EndRequest
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.runs.desk.closing import FRUITLESS
from osmosis_ai.platform.runs.execute.last_records import send_left_records
from osmosis_ai.platform.runs.execute.rounds import (
    STOP_GRACE_S,
    ExecutorParts,
    ExecutorRounds,
    FailureStreak,
    fairest,
)
from osmosis_ai.platform.runs.execute.worker_process import (
    ENDED,
    LEARNER_LOST,
    NOT_MINE,
    SET_BACK,
    StartWorker,
    WorkerProcess,
)
from osmosis_ai.platform.runs.lifecycle import CHECKPOINT_KEPT, OPEN, UNFINISHED
from osmosis_ai.platform.runs.resume_state import newest_step
from osmosis_ai.platform.runs.working_directory import WorkingDirectory
from osmosis_ai.supervision import exit_words

logger = logging.getLogger(__name__)

SETBACKS = 3
_FIRST_PAUSE_S = 0.5
_SHUTDOWN_GRACE_S = 10.0

# Built once: building a statement costs more than SQLite takes to answer it.
_OPEN_RUN_IDS = select(DbRun.id).where(DbRun.status.in_(OPEN), DbRun.pool.is_(None))
# Those that name a pool are for its workers, wherever they are.
_RUNNING = (DbRun.status == "running", DbRun.pool.is_(None))
_PENDING = (DbRun.status == "pending", DbRun.pool.is_(None))


@dataclass
class _Worker:
    run_id: str
    run_name: str
    kind: str
    workspace_id: str
    process: WorkerProcess
    recorded: int
    stop_by: float | None = None


class LocalExecutor(ExecutorRounds):
    """Executes runs in child processes of this process.

    Args:
        parts: as of every executor.
        start_worker: starts workers.
        on_closed: called when no worker is left.
        stop_grace_s: how long a worker may take to stop.
    """

    every_s = 0.1

    def __init__(
        self,
        parts: ExecutorParts,
        *,
        start_worker: StartWorker,
        on_closed: Callable[[], None] = lambda: None,
        stop_grace_s: float = STOP_GRACE_S,
    ) -> None:
        super().__init__(parts)
        self._start_worker = start_worker
        self._on_closed = on_closed
        self._stop_grace_s = stop_grace_s
        self._workers: dict[str, _Worker] = {}
        self._has_more = False

    def start(self) -> None:
        """Execute runs from now on, in a thread."""
        self._remove_leftovers()
        super().start()

    def close(self) -> None:
        """Ask the workers to leave their runs as they are, and wait until they have; the runs stay open."""
        self._join()
        for worker in self._workers.values():
            _ask_to_end(worker.process)
        deadline = self._clock.monotonic() + _SHUTDOWN_GRACE_S
        waiting = threading.Event()
        while any(w.process.poll() is None for w in self._workers.values()):
            if self._clock.monotonic() >= deadline:
                break
            waiting.wait(self.every_s)
        for worker in self._workers.values():
            worker.process.kill()
            with contextlib.suppress(OsmosisError):
                self._let_go(worker.run_id)
        self._workers.clear()
        self._on_closed()

    # -- ends ----------------------------------------------------------------------------------

    def _collect(self) -> None:
        for worker in list(self._workers.values()):
            status = worker.process.poll()
            if status is not None:
                worker.process.kill()  # what it started, too
                del self._workers[worker.run_id]
                self._handle_exit(worker, status)

    def _handle_exit(self, worker: _Worker, status: int) -> None:
        """Take note of a worker's end; what it left behind is free for the next one."""
        directory = WorkingDirectory(self._config.runs_dir, worker.run_id)
        self._tickets.withdraw(worker.run_id)
        if status in (ENDED, NOT_MINE):
            self._let_go(worker.run_id)
            self._trouble.pop(worker.run_id, None)
            if status == NOT_MINE:
                self._trouble[worker.run_id] = FailureStreak(
                    _FIRST_PAUSE_S, not_before=self._clock.monotonic() + _FIRST_PAUSE_S
                )
            return
        trouble = self._trouble.setdefault(worker.run_id, FailureStreak(_FIRST_PAUSE_S))
        if directory.recorded(worker.run_name) > worker.recorded:
            trouble.deaths = trouble.setbacks = 0
        if status == SET_BACK:
            trouble.setbacks += 1
        else:
            trouble.deaths += 1
        trouble.not_before = self._clock.monotonic() + trouble.pause_s()
        reason = directory.take_setback() if status == SET_BACK else ""
        given_up = trouble.setbacks >= SETBACKS or trouble.deaths >= FRUITLESS[worker.kind]
        self._let_go(worker.run_id)
        with self._db.transaction() as session:
            run = session.get(DbRun, worker.run_id, with_for_update=True)
            if run is None or not self._leases.is_open(session, run):
                self._trouble.pop(worker.run_id, None)  # it has ended, or somebody else has it
                return
            if not given_up:
                line = LogLine(
                    _retry_sentence(worker, status, trouble, reason), level="warning", step="executor"
                )
                self._logs.add(session, run.id, [line])
                return
            lease = self._leases.give(session, run, secrets.token_urlsafe(24))
        self._trouble.pop(worker.run_id, None)
        goes_on = newest_step(run, self._config.runs_dir) is not None
        sentence = _failure_sentence(status, trouble, reason, directory, goes_on=goes_on)
        lost = send_left_records(self._desk, run, lease, directory.evaluation(run.name))
        if lost is not None:
            self._tell(run.id, lost, "warning")
        ended = EndRequest.model_validate({"lease": lease.token, "outcome": "failed", "error": sentence})
        self._desk.end(run.id, ended)

    def _let_go(self, run_id: str) -> None:
        """Free a run of the lease that a worker of this machine had, which is dead."""
        with self._db.session() as session:
            token = session.scalar(select(DbRun.lease_token).where(DbRun.id == run_id))
        if token is not None and WorkingDirectory(self._config.runs_dir, run_id).had_lease(token):
            self._leases.release(run_id, token)

    # -- stops ---------------------------------------------------------------------------------

    def _stop_asked(self) -> None:
        if not self._workers:
            return
        with self._db.session() as session:
            asked = session.scalars(
                select(DbRun.id).where(DbRun.id.in_(self._workers), DbRun.stop_requested_at.is_not(None))
            ).all()
        for run_id in asked:
            worker = self._workers[run_id]
            if worker.stop_by is None:
                worker.stop_by = self._clock.monotonic() + self._stop_grace_s
            elif self._clock.monotonic() >= worker.stop_by:
                worker.process.kill()

    # -- starts --------------------------------------------------------------------------------

    def _end_abandoned(self) -> None:
        with self._db.session() as session:
            # Nearly always, ten times a second: whatever is open is at work here.
            self._has_more = not self._workers.keys() >= set(session.scalars(_OPEN_RUN_IDS))
        if self._has_more:
            for run in self._to_be_stopped():
                self._finish_stopped(run)

    def _start_waiting(self) -> None:
        while self._has_more and len(self._workers) < self._config.executor_slots:
            chosen = self._next()
            if chosen is None:
                return
            self._start(chosen)

    def _finish_stopped(self, run: DbRun) -> None:
        """Bring a run that is to stop, and that nobody works on, to its end."""
        directory = WorkingDirectory(self._config.runs_dir, run.id)
        if directory.recorded(run.name):
            # A worker gathers what was recorded; it starts nothing, so it needs no slot.
            self._start(run)
            return
        self._desk.close_abandoned(run.id, "stopped")
        directory.remove()

    def _start(self, run: DbRun) -> None:
        directory = WorkingDirectory(self._config.runs_dir, run.id)
        directory.create()
        recorded = directory.recorded(run.name)
        process = self._start_worker(run.id, self._tickets.issue_ticket(run.id), secrets.token_hex(16))
        self._workers[run.id] = _Worker(run.id, run.name, run.kind, run.workspace_id, process, recorded)

    def _to_be_stopped(self) -> list[DbRun]:
        with self._db.session() as session:
            # A pending run is stopped by whoever asks; only running ones wait for it.
            runs = session.scalars(select(DbRun).where(*_RUNNING, DbRun.stop_requested_at.is_not(None))).all()
        # Nobody who wants an end is made to wait for another try.
        return [run for run in runs if run.id not in self._workers and self._is_free(run)]

    def _next(self) -> DbRun | None:
        """Return the run to start: the oldest of the workspace with the fewest workers."""
        at_work = Counter(worker.workspace_id for worker in self._workers.values())
        with self._db.session() as session:
            abandoned = session.scalars(
                select(DbRun).where(*_RUNNING, DbRun.stop_requested_at.is_(None))
            ).all()
            oldest = (
                select(DbRun.workspace_id, func.min(DbRun.created_at).label("created_at"))
                .where(*_PENDING, self._is_due(), DbRun.id.not_in(self._unavailable()))
                .group_by(DbRun.workspace_id)
                .subquery()
            )
            waiting = session.scalars(
                select(DbRun)
                .join(
                    oldest,
                    and_(
                        DbRun.workspace_id == oldest.c.workspace_id, DbRun.created_at == oldest.c.created_at
                    ),
                )
                .where(*_PENDING, self._is_due())
            ).all()
        return fairest((run for run in (*abandoned, *waiting) if self._can_start(run)), at_work)

    def _is_due(self) -> ColumnElement[bool]:
        return or_(DbRun.claimable_at.is_(None), DbRun.claimable_at <= self._clock.now())

    def _unavailable(self) -> list[str]:
        now = self._clock.monotonic()
        paused = [run_id for run_id, trouble in self._trouble.items() if now < trouble.not_before]
        return [*self._workers, *paused]

    def _can_start(self, run: DbRun) -> bool:
        """Tell whether nobody works on the run, here or, as far as its lease tells, elsewhere."""
        return run.id not in self._unavailable() and self._is_free(run)

    def _is_free(self, run: DbRun) -> bool:
        if WorkingDirectory(self._config.runs_dir, run.id).is_worked_on():
            return False  # the worker of a platform that was killed is about to follow it
        if self._leases.is_free(run):
            return True
        # If its worker was of this machine it is dead: there is no reason to wait for the lease to expire.
        token = run.lease_token
        if token is None or not WorkingDirectory(self._config.runs_dir, run.id).had_lease(token):
            return False
        self._leases.release(run.id, token)
        return True

    def _remove_leftovers(self) -> None:
        """Delete the working directories of runs that have ended, as far as a crash has left some."""
        if not self._config.runs_dir.is_dir():
            return
        found = [path.name for path in self._config.runs_dir.iterdir() if path.is_dir()]
        with self._db.session() as session:
            known = select(DbRun.id, DbRun.status, DbRun.completed_at).where(DbRun.id.in_(found))
            runs = {run_id: (status, ended_at) for run_id, status, ended_at in session.execute(known)}
        for run_id in found:
            status, ended_at = runs.get(run_id, ("removed", None))
            directory = WorkingDirectory(self._config.runs_dir, run_id)
            if status in OPEN:
                continue
            if status not in UNFINISHED:
                directory.remove()
            elif ended_at is not None and self._clock.now() - ended_at > CHECKPOINT_KEPT:
                directory.remove_checkpoints()
            elif status == "stopped":
                directory.keep_what_resumes()
            # Of a failed run all stays: what a worker printed before it died is the only trace of why.


def _retry_sentence(worker: _Worker, status: int, trouble: FailureStreak, reason: str) -> str:
    """Return what happened to a worker, and what is done about it."""
    if worker.stop_by is not None:
        return "the worker was ended by force"
    again = f"trying again in {trouble.pause_s():g} s"
    if status == SET_BACK:
        why = reason.rstrip(".") or "the platform could not do its part, and could not say why"
        return f"{why} (no fault of the run, {trouble.setbacks} of {SETBACKS} tries; {again})"
    times = f", {trouble.deaths} times in a row without getting anything done" if trouble.deaths > 1 else ""
    return f"the worker ended unexpectedly ({_how(status)}){times}; {again}"


def _failure_sentence(
    status: int, trouble: FailureStreak, reason: str, directory: WorkingDirectory, *, goes_on: bool
) -> str:
    """Return why a run has failed; of one that can go on, the desk adds how."""
    if status == SET_BACK:
        return reason or "the platform could not do its part, and could not say why: its disk may be full."
    return (
        f"the worker ended unexpectedly {trouble.deaths} times in a row ({_how(status)}) without getting "
        f"anything done; see {directory.log} on the platform's machine"
        f"{'.' if goes_on else ', then submit again.'}"
    )


def _how(status: int) -> str:
    """Return how a worker ended, in words."""
    return "a process of its learner was lost" if status == LEARNER_LOST else exit_words(status)


def _ask_to_end(process: WorkerProcess) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGTERM)
