"""Start a worker for every run that needs one and supervise it, for any executor.

A thread repeats four steps: *look* at started jobs, *stop* those that must stop, *end* unclaimed runs that must end,
and *start* waiting runs. Each step reads the actual state, so the next round repairs a failed one and the process
may be killed at any moment. All state is in the database, the workers' locks and their journals. The lease, not the
executor, decides who owns a run. Runs start in submission order, workspaces with the fewest active runs first.

A job without progress is retried after twice the previous delay, and the run's log has the reason. A run fails after
:data:`~osmosis_ai.platform.runs.desk.closing.FRUITLESS` such jobs or
:data:`~osmosis_ai.platform.runs.execute.failure_streak.SETBACKS` infrastructure failures.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Protocol

from osmosis_ai.config.execution import read_execution
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.log_lines import Level, LogLine
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.runs.desk.run_desk import RunDesk
from osmosis_ai.platform.runs.execute.executor import (
    Executor,
    ExecutorAway,
    JobState,
    WantedJob,
    job_id,
    run_and_number,
)
from osmosis_ai.platform.runs.execute.failure_streak import FailureStreak
from osmosis_ai.platform.runs.execute.given_up_runs import GivenUpRuns
from osmosis_ai.platform.runs.execute.runs_to_execute import RunsToExecute, fairest, was_resumed
from osmosis_ai.platform.runs.leases import Leases
from osmosis_ai.platform.runs.lifecycle import OPEN
from osmosis_ai.platform.runs.resume_state import newest_step
from osmosis_ai.platform.runs.working_directory import WorkingDirectory

logger = logging.getLogger(__name__)

STOP_GRACE_S = 30.0
"""How long a worker may take to stop before it is ended by force."""
_MOST_DOUBLED = 5
"""How often that is doubled at most."""
TOLD_AFTER_S = 60.0
"""How long an executor may be unavailable before runs report it."""
_ENDS_WITHIN_S = 15.0
_AWAY_EVERY_S = 1.0
"""Minimum interval between requests to an unavailable executor."""
# Maximum number of runs that report an unavailable executor.
_MOST_TOLD = 1000


class Tickets(Protocol):
    """Makes and voids the tickets that runs are claimed with."""

    def issue_ticket(self, run_id: str) -> str: ...

    def note_running(self, run_id: str) -> None: ...

    def withdraw(self, run_id: str) -> None: ...

    def why_unconfined(self, run_id: str) -> str | None: ...


@dataclass(frozen=True)
class ExecutorParts:
    """What the loop works with."""

    config: PlatformConfig
    db: Database
    clock: Clock
    logs: LogStore
    desk: RunDesk
    tickets: Tickets


@dataclass
class _Started:
    """A job that has not ended, as far as is known."""

    job: WantedJob
    workspace_id: str
    mark: object
    attempt: int
    gathers: bool
    told: str = ""
    is_waiting: bool = True
    stop_by: float | None = None


@dataclass
class _Outage:
    """An executor that cannot be asked: since when, and the runs that were told why."""

    since: float
    message: str
    told: set[str] = field(default_factory=set)


class ExecutorLoop:
    """Executes runs; its thread does all of its work, but what :meth:`close` does."""

    def __init__(
        self, parts: ExecutorParts, executor: Executor, *, stop_grace_s: float = STOP_GRACE_S
    ) -> None:
        self._config = parts.config
        self._db = parts.db
        self._clock = parts.clock
        self._logs = parts.logs
        self._desk = parts.desk
        self._tickets = parts.tickets
        self._leases = Leases(parts.db, parts.clock, parts.config.lease_term)
        self._runs = RunsToExecute(parts.db, self._leases)
        self._given_up = GivenUpRuns(
            parts.db, parts.clock, parts.logs, parts.desk, self._leases, parts.config.runs_dir
        )
        self._executor = executor
        self._stop_grace_s = stop_grace_s
        self._jobs: dict[str, _Started] = {}
        self._numbers: Counter[str] = Counter()
        self._streaks: dict[str, FailureStreak] = {}
        self._has_listed = False
        self._outage: _Outage | None = None
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Execute runs from now on, in a thread."""
        self._thread = threading.Thread(target=self._work, name="executor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End; runs stay open, for the next start."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(_ENDS_WITHIN_S)
        self._executor.close()
        for run_id in list(self._jobs):
            with contextlib.suppress(OsmosisError):
                self._let_go(run_id)
        self._jobs.clear()

    def round(self) -> None:
        """Do once what there is to do. The thread does this again and again."""
        try:
            self._look()
            known, has_more = self._known(), not self._runs.are_all(self._jobs.keys())
            runs = self._runs.at_work(known) if known or has_more else {}
            for step in (self._stop, self._end, self._start) if has_more else (self._stop, self._end):
                if not self._ending.is_set():
                    step(runs)
            if self._outage is not None:
                logger.warning("the executor continues")
                for run_id in self._outage.told:
                    job = self._jobs.get(run_id)
                    self._desk.note_executor(run_id, job.told if job is not None and job.is_waiting else "")
            self._outage = None
        except ExecutorAway as error:
            self._note_outage(error)
            self._end(self._runs.at_work(self._known()))

    def _work(self) -> None:
        waits_for: str | None = None
        while not self._ending.wait(self._pause_s()):
            try:
                self.round()
                waits_for = None
            except OsmosisError as error:
                # The database is busy or the disk full: the next round finds the same work to do. It is said
                # once, because a log that grows ten times a second does no good to a full disk.
                if error.message != waits_for:
                    logger.warning("the executor waits: %s", error.message)
                waits_for = error.message
            except Exception:  # the edge of this thread, without which no run would ever start or end
                logger.exception("the executor met an unexpected error and continues")

    def _pause_s(self) -> float:
        return self._executor.every_s if self._outage is None else max(self._executor.every_s, _AWAY_EVERY_S)

    # -- what was started ----------------------------------------------------------------------

    def _look(self) -> None:
        """Take note of what has become of the jobs since the last round."""
        if not self._has_listed:
            self._take_up()
        for started in list(self._jobs.values()):
            if self._ending.is_set():
                return
            state = self._executor.state(started.job)
            if state is not None and state.phase != "ended":
                self._note(started, state)
                continue
            # Forgotten last: what the database did not take, the next round notes.
            self._tickets.withdraw(started.job.run_id)
            if state is not None:
                self._handle_end(started, state)
            del self._jobs[started.job.run_id]

    def _take_up(self) -> None:
        """Go on with the jobs that an earlier process of this platform has started."""
        open_jobs: dict[str, int] = {}
        for state in self._executor.list():
            if (known := run_and_number(state.id)) is not None:
                run_id, number = known
                self._numbers[run_id] = max(self._numbers[run_id], number)
                if state.phase != "ended":
                    open_jobs[run_id] = max(open_jobs.get(run_id, 0), number)
        for run_id in self._runs.at_work(open_jobs).keys() & open_jobs.keys():
            with self._db.session() as session:
                run = session.get_one(DbRun, run_id)
            self._jobs[run_id] = self._started(run, open_jobs[run_id])
        self._has_listed = True

    def _note(self, started: _Started, state: JobState) -> None:
        """Say once what a job waits for, and that it runs."""
        run_id = started.job.run_id
        if started.is_waiting and state.phase == "running":
            started.is_waiting = False
            self._tickets.note_running(run_id)
            self._desk.note_executor(run_id, "")
        if state.told and state.told != started.told:
            started.told = state.told
            self._tell(run_id, state.told, "warning" if state.phase == "waiting" else "info")
            self._desk.note_executor(run_id, state.told if state.phase == "waiting" else "")

    def _handle_end(self, started: _Started, state: JobState) -> None:
        """Record a job's end. Its run becomes free once its worker is known to be dead."""
        run = self._let_go(started.job.run_id)
        if run is None or was_resumed(run, started.attempt):
            self._streaks.pop(started.job.run_id, None)
            return
        known = self._streaks.get(run.id)
        streak = FailureStreak(self._executor.first_pause_s) if known is None else deepcopy(known)
        now = self._clock.monotonic()
        if self._mark(run) != started.mark:
            streak.begin_anew(now)
        else:
            streak.add(state.fault, now)
        if started.gathers:
            streak.gathers_from = streak.not_before
        if streak.is_hopeless(run.kind):
            goes_on = newest_step(run, self._config.runs_dir) is not None
            why = self._tickets.why_unconfined(run.id)
            streak.verdict = streak.failure_sentence(state, goes_on=goes_on, why=why)
        elif run.stop_requested_at is not None and state.told:
            self._tell(run.id, state.told, "warning")
        elif state.told:
            sentence = streak.retry_sentence(state, is_free=self._leases.is_free(run))
            self._tell(run.id, sentence, "warning")
        self._streaks[run.id] = streak

    def _let_go(self, run_id: str) -> DbRun | None:
        """Free a run of the lease that a dead worker of this machine had; return it as it is then, if it is open."""
        with self._db.session() as session:
            run = session.get(DbRun, run_id)
        if run is None or run.status not in OPEN:
            return None
        if run.lease_token is None or not self._is_free(run):
            return run
        with self._db.session() as session:
            return session.get(DbRun, run_id)

    def _stop(self, runs: Mapping[str, DbRun]) -> None:
        """Stop what works on runs that are to stop, or have ended, and does not end by itself."""
        now = self._clock.monotonic()
        for run_id, started in list(self._jobs.items()):
            run = runs.get(run_id)
            if run is not None and run.stop_requested_at is None:
                continue
            if started.is_waiting:
                # A job that no node can hold keeps waiting even after a stop request; without its ticket it cannot claim.
                self._tickets.withdraw(run_id)
                self._executor.stop(started.job)
                del self._jobs[run_id]
            elif started.stop_by is None:
                started.stop_by = now + self._grace_s(run_id)
            elif now >= started.stop_by:
                self._executor.stop(started.job)
                started.stop_by = now + self._stop_grace_s

    def _grace_s(self, run_id: str) -> float:
        """Return how long a worker may take to stop: twice as long behind each that came to nothing."""
        streak = self._streaks.get(run_id)
        before = 0 if streak is None else min(streak.ends["nobody"], _MOST_DOUBLED)
        return self._stop_grace_s * float(2**before)

    # -- ends ----------------------------------------------------------------------------------

    def _end(self, runs: Mapping[str, DbRun]) -> None:
        """Bring runs to their end that are to end, and that nobody works on."""
        for run_id in self._streaks.keys() - runs.keys():
            del self._streaks[run_id]
        self._given_up.say_again()
        for run in runs.values():
            streak = self._streaks.get(run.id)
            verdict = streak.verdict if streak is not None else None
            is_over = verdict is not None or run.stop_requested_at is not None
            if run.id in self._jobs or not is_over or not self._is_free(run):
                continue
            if verdict is not None:
                self._given_up.give_up(run.id, verdict)
            elif streak is None or self._clock.monotonic() >= streak.gathers_from:
                self._finish_stopped(run)

    def _finish_stopped(self, run: DbRun) -> None:
        directory = WorkingDirectory(self._config.runs_dir, run.id)
        if self._executor.works_here and directory.recorded(run.name):
            # A worker gathers what was recorded; it starts nothing, so it needs no slot.
            self._start_job(run.id)
            return
        self._desk.close_abandoned(run.id, "stopped")
        directory.remove()

    # -- starts --------------------------------------------------------------------------------

    def _start(self, runs: Mapping[str, DbRun]) -> None:
        """Have runs executed that nobody works on, as many as there is room for."""
        abandoned = {run.id: run for run in self._runs.that_go_on(runs.values())}
        while len(self._jobs) < self._config.executor_slots and not self._ending.is_set():
            taken = self._unavailable()
            waiting = (*abandoned.values(), *self._runs.oldest_waiting(taken))
            startable = (run for run in waiting if run.id not in taken and self._is_free(run))
            at_work = Counter(started.workspace_id for started in self._jobs.values())
            run = fairest(startable, at_work)
            if run is None:
                return
            abandoned.pop(run.id, None)
            self._start_job(run.id)

    def _start_job(self, run_id: str) -> None:
        with self._db.session() as session:
            run = session.get_one(DbRun, run_id)
        self._numbers[run_id] += 1
        started = self._started(run, self._numbers[run_id])
        ticket = self._tickets.issue_ticket(run_id)
        # Noted first: where nobody can say whether it was started, the next round asks.
        self._jobs[run_id] = started
        told = self._executor.start(started.job, ticket)
        self._desk.note_executor(run_id, "")  # what its last job waited for
        if told:
            self._tell(run_id, told)

    def _started(self, run: DbRun, number: int) -> _Started:
        asked = read_execution(run.request.get("advanced_config"))
        needs = asked.cpus or 1.0, asked.gpus or 0, asked.memory_gb
        job = WantedJob(job_id(run.id, number), run.id, *needs)
        gathers = run.stop_requested_at is not None
        return _Started(job, run.workspace_id, self._mark(run), run.attempt, gathers=gathers)

    def _mark(self, run: DbRun) -> object:
        """Return what changes when something is done that need not be done again, here or anywhere."""
        directory = WorkingDirectory(self._config.runs_dir, run.id)
        if run.kind == "training":
            return newest_step(run, self._config.runs_dir)
        return run.journal_generation, max(run.journal_bytes, directory.recorded(run.name))

    # -- which runs ----------------------------------------------------------------------------

    def _known(self) -> set[str]:
        return {*self._jobs, *self._streaks}

    def _unavailable(self) -> set[str]:
        now = self._clock.monotonic()
        return {*self._jobs, *(id for id, streak in self._streaks.items() if streak.is_paused(now))}

    def _is_free(self, run: DbRun) -> bool:
        """Tell whether nobody works on the run, here or, as far as its lease tells, elsewhere."""
        directory = WorkingDirectory(self._config.runs_dir, run.id)
        try:
            if directory.is_worked_on():
                return False  # the worker of a platform that was killed is about to follow it
        except OSError:
            return self._leases.is_free(run)  # a damaged directory: its start says so
        if self._leases.is_free(run):
            return True
        # If its worker was of this machine it is dead: there is no reason to wait for the lease to expire.
        token = run.lease_token
        if token is None or not directory.had_lease(token):
            return False
        self._leases.release(run.id, token)
        return True

    # -- telling -------------------------------------------------------------------------------

    def _note_outage(self, error: ExecutorAway) -> None:
        """Say once in the log, and after a while on the runs that wait for it, why the executor is of no use."""
        now = self._clock.monotonic()
        if self._outage is None or self._outage.message != error.message:
            hint = f" ({error.hint})" if error.hint else ""
            logger.warning("the executor waits: %s%s", error.message, hint)
            since = now if self._outage is None else self._outage.since
            self._outage = _Outage(since, error.message)
        if now - self._outage.since < TOLD_AFTER_S:
            return
        for run in self._runs.oldest(_MOST_TOLD):
            if run.id not in self._outage.told and self._leases.is_free(run):
                self._outage.told.add(run.id)
                # What begins with where it is, as the address of a cluster does, says that by itself.
                names_it = error.message.startswith(error.where)
                self._tell(
                    run.id, f"waits{'' if names_it else f' for {error.where}'}: {error.message}", "warning"
                )
                why = error.message if names_it else f"it waits for {error.where}: {error.message}"
                self._desk.note_executor(run.id, why)

    def _tell(self, run_id: str, message: str, level: Level = "info") -> None:
        self._logs.append(run_id, [LogLine(message, level=level, step="executor")])
