"""Has a Ray cluster execute runs: a job for every run that nobody works on, seen to its end.

The lease decides, never the cluster: what it says of a job tells when to look. A run gets another job only when its lease
was released or has expired, and a job is worth no more than the ticket it carries. The jobs outlive this process; a
platform that starts finds them by their ids. A cluster that hangs, or is gone, costs nobody anything but time: once it
answers, what it has forgotten is submitted anew.

A job that ended without progress is followed by another after twice the time; after :data:`FRUITLESS` of them in
a row the run fails. Jobs that the cluster lost, or never began, do not count. Why a worker let its run go, the desk says on
the run; it counts these, too.
"""

from __future__ import annotations

import logging
import shlex
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import load_only

from osmosis_ai.config.execution import read_execution
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.runs.desk.closing import FRUITLESS
from osmosis_ai.platform.runs.execute.ray_jobs import (
    TICKET_VARIABLE,
    RayError,
    RayJob,
    RayJobs,
    WantedJob,
    job_id,
    run_and_number,
)
from osmosis_ai.platform.runs.execute.rounds import (
    STOP_GRACE_S,
    ExecutorParts,
    ExecutorRounds,
    FailureStreak,
    fairest,
)
from osmosis_ai.platform.runs.execute.worker_process import ENDED, NOT_MINE
from osmosis_ai.platform.runs.lifecycle import OPEN

logger = logging.getLogger(__name__)

ROUND_S = 2.0
WAITS_LONG_S = 60.0
"""After this a run's log says what its job waits for."""
_FIRST_PAUSE_S = 5.0
_CLOSES_WITHIN_S = 15.0
# Of a cluster that does not answer, that many runs are told.
_MOST_TOLD = 1000
# Let go on purpose, or not to be had yet.
_NO_FAILURES = (ENDED, NOT_MINE)

# Built once; what a run drew and came to can be large, and is of no account here.
_OPEN_RUNS = (
    select(DbRun)
    .where(DbRun.status.in_(OPEN), DbRun.pool.is_(None))
    .options(
        load_only(
            DbRun.workspace_id,
            DbRun.kind,
            DbRun.created_at,
            DbRun.request,
            DbRun.lease_token,
            DbRun.lease_expires_at,
            DbRun.stop_requested_at,
            DbRun.claimable_at,
            DbRun.journal_generation,
            DbRun.journal_bytes,
            DbRun.training_state,
        )
    )
)


@dataclass
class _Job:
    """A job that has not ended, as far as is known.

    Attributes:
        run_id: whose it is.
        id: of the job.
        since: when it began to wait (monotonic seconds).
        mark: how far the run had come.
        is_certain: whether the cluster is known to have it.
        asked_at, waits_for: when the cluster was last asked what the job waits for, and what it said.
        stop_by: when it is ended, after its run was to end.
    """

    run_id: str
    id: str
    since: float
    mark: object = None
    is_certain: bool = True
    is_running: bool = False
    asked_at: float | None = None
    waits_for: str = ""
    stop_by: float | None = None


@dataclass
class _Outage:
    """A cluster that cannot be asked: since when, and the runs that were told why."""

    since: float
    message: str
    told: set[str] = field(default_factory=set)


class RayExecutor(ExecutorRounds):
    """Executes runs as jobs of a Ray cluster.

    Args:
        parts: as of every executor; their settings name the cluster, and where nodes reach the platform.
        jobs: stands in for the cluster.
    """

    every_s = ROUND_S

    def __init__(self, parts: ExecutorParts, *, jobs: RayJobs | None = None) -> None:
        if parts.config.ray is None:
            raise OsmosisError("no Ray cluster is configured.", code="INTERNAL")
        super().__init__(parts)
        self._ray = jobs or RayJobs(parts.config.ray, monotonic=parts.clock.monotonic)
        self._jobs: dict[str, _Job] = {}
        self._numbers: Counter[str] = Counter()
        self._runs: dict[str, DbRun] = {}
        self._has_looked = False
        self._outage: _Outage | None = None

    def close(self) -> None:
        """Leave the cluster; its jobs go on, and the next start finds them."""
        self._join(_CLOSES_WITHIN_S)
        self._ray.close()

    def round(self) -> None:
        """As of every executor; where the cluster can not be asked, runs that are to end do so nevertheless."""
        self._runs = self._open_runs()
        try:
            super().round()
            if self._outage is not None:
                logger.info("the Ray cluster answers again")
            self._outage = None
        except RayError as error:
            self._note_outage(error)
            self._end_abandoned()

    # -- looking -------------------------------------------------------------------------------

    def _open_runs(self) -> dict[str, DbRun]:
        with self._db.session() as session:
            return {run.id: run for run in session.scalars(_OPEN_RUNS)}

    def _collect(self) -> None:
        if not self._has_looked:
            self._find_jobs()
        for job in list(self._jobs.values()):
            if self._ending.is_set():
                return
            self._look_at(job, self._runs.get(job.run_id))

    def _find_jobs(self) -> None:
        """Take up the jobs that an earlier process of this platform has started."""
        for job in self._ray.list():
            known = run_and_number(job.id)
            if known is None:
                continue
            run_id, number = known
            self._numbers[run_id] = max(self._numbers[run_id], number)
            if job.phase != "ended" and run_id in self._runs:
                mark = _mark(self._runs[run_id])
                self._jobs[run_id] = _Job(run_id, job.id, self._clock.monotonic(), mark)
        self._has_looked = True

    def _look_at(self, job: _Job, run: DbRun | None) -> None:
        state = self._ray.state(job.id)
        if state is None or state.phase == "ended":
            del self._jobs[job.run_id]
            self._tickets.withdraw(job.run_id)
            if run is not None:
                self._handle_end(job, run, state)
            return
        job.is_certain = True
        if state.phase == "running" and not job.is_running:
            job.is_running = True
            self._tickets.note_running(job.run_id)
            self._tell(job.run_id, f"the Ray job {job.id} is running")
        if run is not None and run.stop_requested_at is None and state.phase == "waiting":
            self._say_what_it_waits_for(job, run)

    def _stop_asked(self) -> None:
        for job in list(self._jobs.values()):
            run = self._runs.get(job.run_id)
            if run is None or run.stop_requested_at is not None:
                self._stop_in_time(job)

    def _stop_in_time(self, job: _Job) -> None:
        """End a job whose run has ended or is to end, and whose worker does not end by itself."""
        now = self._clock.monotonic()
        if not job.is_running:
            # Asked to stop, a job that no node can hold goes on waiting; without its ticket it can claim nothing.
            self._tickets.withdraw(job.run_id)
            self._ray.stop(job.id)
            del self._jobs[job.run_id]
        elif job.stop_by is None:
            job.stop_by = now + STOP_GRACE_S
        elif now >= job.stop_by:
            self._ray.stop(job.id)
            job.stop_by = now + STOP_GRACE_S

    def _say_what_it_waits_for(self, job: _Job, run: DbRun) -> None:
        now = self._clock.monotonic()
        if now - (job.since if job.asked_at is None else job.asked_at) < WAITS_LONG_S:
            return
        job.asked_at = now
        waits = self._ray.shortage(self._wanted(run, job.id, "").needs)
        if waits != job.waits_for:
            job.waits_for = waits
            self._tell(run.id, f"the Ray job {job.id} {waits}", "warning")

    # -- ends ----------------------------------------------------------------------------------

    def _handle_end(self, job: _Job, run: DbRun, state: RayJob | None) -> None:
        """Take note of a job that is gone while its run goes on."""
        if state is None and not job.is_certain:
            return  # it never got there
        trouble = self._trouble.setdefault(run.id, FailureStreak(_FIRST_PAUSE_S))
        if _mark(run) != job.mark:
            trouble.deaths = trouble.setbacks = 0
        is_death = state is not None and not state.is_blameless and state.exit_code not in _NO_FAILURES
        trouble.deaths += is_death
        trouble.setbacks += not is_death
        trouble.not_before = self._clock.monotonic() + trouble.pause_s()
        if state is None:
            what = "is not known to the cluster any more: it was deleted, or the head was restarted"
        else:
            what = f"has ended: {state.ending}"
            if is_death and trouble.deaths >= FRUITLESS[run.kind]:
                trouble.verdict = (
                    f"{trouble.deaths} Ray jobs in a row ended without getting anything done, the last one, {job.id}, so: "
                    f"{state.ending}. The cluster has their logs (`ray job logs {job.id}`)."
                )
                return
        self._tell(
            run.id,
            f"the Ray job {job.id} {what}; another one follows in {trouble.pause_s():g} s, or when the run's lease has "
            "ended",
            "warning",
        )

    def _end_abandoned(self) -> None:
        for run in self._runs.values():
            trouble = self._trouble.get(run.id)
            verdict = trouble.verdict if trouble is not None else None
            is_stopped = run.stop_requested_at is not None
            if run.id in self._jobs or not (is_stopped or verdict) or not self._leases.is_free(run):
                continue
            self._desk.close_abandoned(
                run.id, "stopped" if is_stopped else "failed", None if is_stopped else verdict
            )
        for run_id in self._trouble.keys() - self._runs.keys():
            del self._trouble[run_id]

    # -- starts --------------------------------------------------------------------------------

    def _start_waiting(self) -> None:
        runs = self._runs
        at_work = Counter(runs[run_id].workspace_id for run_id in self._jobs if run_id in runs)
        now, moment = self._clock.monotonic(), self._clock.now()
        waiting = [run for run in runs.values() if self._may_start(run, now) and _is_due(run, moment)]
        while len(self._jobs) < self._config.executor_slots and not self._ending.is_set():
            run = fairest(waiting, at_work)
            if run is None:
                return
            waiting.remove(run)
            if self._leases.is_free(run):
                at_work[run.workspace_id] += 1
                self._start(run)

    def _may_start(self, run: DbRun, now: float) -> bool:
        trouble = self._trouble.get(run.id)
        is_paused = trouble is not None and (trouble.verdict is not None or now < trouble.not_before)
        return run.id not in self._jobs and run.stop_requested_at is None and not is_paused

    def _start(self, run: DbRun) -> None:
        self._numbers[run.id] += 1
        job = job_id(run.id, self._numbers[run.id])
        wanted = self._wanted(run, job, self._tickets.issue_ticket(run.id))
        # Noted first: where nobody can say whether the cluster took it, the next round asks.
        self._jobs[run.id] = _Job(run.id, job, self._clock.monotonic(), _mark(run), is_certain=False)
        self._ray.start(wanted)
        self._jobs[run.id].is_certain = True
        self._tell(run.id, f"submitted to the Ray cluster as {job}")

    def _wanted(self, run: DbRun, job: str, ticket: str) -> WantedJob:
        asked = read_execution(run.request.get("advanced_config"))
        command = ["osmosis", "platform", "worker", "--run", run.id, "--url", self._config.base_url]
        return WantedJob(
            job,
            # `exec`: what the cluster ends is the worker, with no shell in between.
            shlex.join(["exec", *command, "--token-env", TICKET_VARIABLE]),
            ticket,
            cpus=asked.cpus or 1.0,
            gpus=asked.gpus or 0,
            memory_gb=asked.memory_gb,
        )

    # -- telling -------------------------------------------------------------------------------

    def _note_outage(self, error: RayError) -> None:
        """Say once in the log, and after a while on the runs that wait for it, why the cluster is of no use."""
        now = self._clock.monotonic()
        if self._outage is None or self._outage.message != error.message:
            hint = f" ({error.hint})" if error.hint else ""
            logger.warning("the executor waits: %s%s", error.message, hint)
            since = now if self._outage is None else self._outage.since
            self._outage = _Outage(since, error.message)
        if now - self._outage.since < WAITS_LONG_S:
            return
        for run in _first(self._runs.values(), _MOST_TOLD):
            if run.id not in self._outage.told and self._leases.is_free(run):
                self._outage.told.add(run.id)
                self._tell(run.id, f"waits for the Ray cluster: {error.message}", "warning")


def _mark(run: DbRun) -> object:
    """Return what changes when a run makes progress."""
    return run.journal_generation, run.journal_bytes, run.training_state


def _is_due(run: DbRun, now: datetime) -> bool:
    return run.claimable_at is None or run.claimable_at <= now + timedelta(seconds=ROUND_S)


def _first(runs: Iterable[DbRun], most: int) -> list[DbRun]:
    return sorted(runs, key=lambda run: (run.created_at, run.id))[:most]
