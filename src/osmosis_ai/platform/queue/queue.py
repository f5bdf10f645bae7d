"""The run queue: which worker executes which shard, and what it has reported.

Workers claim the ``work`` shards of runs (``phases.py``); the platform itself claims the others (``finalize.py``).

A lease is a random token with an expiry in the shard's row. Every write checks the token in its transaction, so a
replaced worker cannot write. The expiry only says when others may claim: until somebody does, the owner of an expired
lease may continue. Time is the database's on PostgreSQL and the platform's on SQLite. Clocks may jump, which only
changes when others try.

A transaction locks the run before its shards.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import product
from typing import Any

from sqlalchemy import ColumnElement, bindparam, func, or_, select, update
from sqlalchemy.orm import Session

from osmosis_ai.api.models import workers as wire
from osmosis_ai.config.execution import ExecutionSection, read_execution
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.platform.blobs.store import BlobError
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.tables import DbRun, DbRunShard, DbSample, DbSecretAccess, DbWorkerToken, new_id
from osmosis_ai.platform.log_lines import LogLine, bounded, bounded_details, storable
from osmosis_ai.platform.machines import Machine
from osmosis_ai.platform.queue.assignment import Assignments
from osmosis_ai.platform.queue.phases import LONGEST_PAUSE, RunPhases, is_over, used_up
from osmosis_ai.platform.queue.reports import (
    BegunUpload,
    RunUploads,
    apply_training,
    attempt_of,
    check_contents,
    require_own_names,
    take_files,
)
from osmosis_ai.platform.runs.journals import AttemptKey, NewLines, append_lines, read_lines
from osmosis_ai.platform.runs.lifecycle import OPEN, LeaseLostError, Outcome, UploadLimitError
from osmosis_ai.platform.runs.requests import RowSelection, evaluation_settings
from osmosis_ai.redaction import Redactor

MAX_FAILED_ATTEMPTS = {"eval": 3, "training": 12}
"""Workers in a row that failed without progress, after which a run fails. The hours of a training run are worth waiting for
memory or a GPU that others use; the records of an evaluation are safe."""
_FIRST_PAUSE = timedelta(seconds=0.5)
_INPUTS_PAUSE = timedelta(seconds=10)
_UNFIT_FOR = timedelta(minutes=1)
"""For how long a shard that a machine could not execute is left to other machines."""
_MOST_CANDIDATES = 250
"""Shards of a workspace with the same needs that a claim considers."""
_MOST_EXTENTS = 4096
_FACTS = {"environment": 4096, "isolation": 255, "grader_digest": 64}
_OWNED: Any = (
    select(
        *(DbRunShard.number, DbRunShard.count, DbRunShard.attempt),
        *(DbRunShard.journal_bytes, DbRunShard.log_lines, DbRunShard.worked_s),
        *(DbRun.id.label("run_id"), DbRun.revision, DbRun.accepted, DbRun.stop_requested_at, DbRun.error),
    )
    .join(DbRun)
    .where(DbRunShard.id == bindparam("shard_id"), DbRunShard.lease_token == bindparam("token"))
    .where(DbRunShard.status == "running")
    .with_for_update()
)
"""The rows that a sync reads."""
# A sync uses no objects of SQLAlchemy's ORM, which would take three times as long.
_CHANGED_RUN: Any = update(DbRun.__table__).where(DbRun.id == bindparam("row"))  # type: ignore[arg-type]
_CHANGED_SHARD: Any = update(DbRunShard.__table__).where(DbRunShard.id == bindparam("row"))  # type: ignore[arg-type]
LOCAL = "local"
"""The ``token_id`` of shards that the platform's own host has claimed."""


@dataclass(frozen=True, slots=True)
class ClaimScope:
    """The shards that the bearer of a worker token or ticket may claim."""

    pool: str | None = None
    workspaces: frozenset[str] | None = None
    shard_id: str | None = None
    token_id: str | None = None
    worker_id: str | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write a shard."""

    shard_id: str
    token: str
    run_id: str


class Pace:
    """Chooses how long workers and hosts wait until their next call: longer the more there are."""

    def __init__(self, clock: Clock, term: timedelta, *, shortest_s: float) -> None:
        self._clock = clock
        self._term_s = term.total_seconds()
        self._shortest_s = shortest_s
        self._seen: dict[str, float] = {}
        self._lock = threading.Lock()

    def next_s(self, caller: str) -> float:
        now = self._clock.monotonic()
        with self._lock:
            # The callers that were seen last come last.
            self._seen.pop(caller, None)
            self._seen[caller] = now
            while now - self._seen[oldest := next(iter(self._seen))] > 2 * self._term_s:
                del self._seen[oldest]
            return min(max(self._shortest_s, len(self._seen) / 100), self._term_s / 3)


@dataclass
class RunQueue(RunPhases):
    """The queue of one platform. Every method blocks, and none may be called inside a transaction unless it takes one."""

    assignments: Assignments = field(kw_only=True)
    uploads: RunUploads = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.claim_pace = Pace(self.clock, self.term, shortest_s=1.0)
        self._syncs = Pace(self.clock, self.term, shortest_s=min(2.0, self.term.total_seconds() / 6))
        # Building a statement takes as long as executing it, and a moment of the database's clock is part of it.
        self._renewing = _CHANGED_SHARD.values(self._renewal()) if self._has_own_clock else _CHANGED_SHARD
        self._extents: dict[str, _Extent] = {}
        self._reported: set[tuple[str, type[OsmosisError]]] = set()

    def claim(self, request: wire.ClaimRequest, scope: ClaimScope) -> wire.Assignment | None:
        """Assign a shard to a worker, with everything it needs; None if there is none for it."""
        while (lease := self._take(request, scope)) is not None:
            try:
                next_poll_s = self._syncs.next_s(lease.shard_id)
                assignment = self.assignments.of(lease.shard_id, next_poll_s=next_poll_s)
            except OsmosisError as error:
                if error.is_infrastructure:
                    what = "the store" if isinstance(error, BlobError) else "its inputs"
                    self._return(lease, f"it waits for {what}: {error.message}")
                    raise
                with self.writing(lease.shard_id, lease.token) as (session, run, shard):
                    shard.claim_id = None  # the same claim may get another shard
                    self._end_shard(session, run, shard, "failed", sentence_of(error))
                continue
            except BaseException:
                self._return(lease, None)
                raise
            if assignment.lease.token.get_secret_value() != lease.token:
                # The lease expired before the assignment was read, and another worker has the shard.
                continue
            if assignment.secrets:
                self._log_secrets(assignment, request, scope)
            return assignment
        return None

    def take(self, kind: str) -> Lease | None:
        """Assign a ``prepare`` or ``finalize`` shard to the platform itself."""
        # Most calls find nothing, so this read avoids a write transaction.
        claimable = select(DbRunShard.id).join(DbRun).where(self._is_claimable(kind)).limit(1)
        if self.db.scalar(claimable) is None:
            return None
        with self._writing() as session:
            found = lock_shard(session, self._is_claimable(kind), skip_locked=True)
            return self._own(*found) if found is not None else None

    @contextmanager
    def writing(self, shard_id: str, token: str) -> Iterator[tuple[Session, DbRun, DbRunShard]]:
        """Write as the owner of a shard, and extend its lease."""
        with self._writing() as session:
            run, shard = _leased(session, shard_id, token)
            if shard.status != "running":
                raise _lost()
            self._extend(shard)
            yield session, run, shard

    def _take(self, request: wire.ClaimRequest, scope: ClaimScope) -> Lease | None:
        is_repeated = DbRunShard.claim_id == request.claim_id
        with self.db.session() as session:
            # Most claims find nothing, so these reads avoid a write transaction.
            is_new = session.scalar(select(DbRunShard.id).where(is_repeated)) is None
            if is_new and not self._candidates(session, request, scope):
                return None
        with self._writing() as session:
            if not self.db.is_sqlite:
                # A claim that arrives twice at the same time must not get two shards.
                session.execute(select(func.pg_advisory_xact_lock(int(request.claim_id[:15], 16))))
            if (found := lock_shard(session, is_repeated)) is not None:
                run, shard = found
                is_its_own = shard.token_id == scope.token_id and scope.shard_id in (None, shard.id)
                if shard.status != "running" or not is_its_own:
                    raise ConflictError("this claim has been answered; a new claim needs an id of its own.")
                self._extend(shard)
                return Lease(shard.id, shard.lease_token or "", run.id)
            if scope.token_id not in (None, LOCAL):
                # It cannot be revoked until the transaction ends.
                named = DbWorkerToken.id == scope.token_id, DbWorkerToken.revoked_at.is_(None)
                valid = select(DbWorkerToken.id).where(*named).with_for_update(read=True)
                if session.scalar(valid) is None:
                    return None
            for shard_id in self._candidates(session, request, scope):
                is_free = DbRunShard.id == shard_id, self._is_claimable("work")
                if (found := lock_shard(session, *is_free, skip_locked=True)) is None:
                    continue
                run, shard = found
                if shard.status == "running":
                    silent = f"worker {shard.number + 1} stopped reporting, and its lease expired"
                    self.logs.add(session, run.id, [LogLine(silent, level="warning", step="queue")])
                    shard.failed_attempts += 1
                    if shard.failed_attempts >= MAX_FAILED_ATTEMPTS[run.kind]:
                        self._end_shard(session, run, shard, "failed", _hopeless(shard.failed_attempts))
                        continue
                shard.claim_id, shard.token_id = request.claim_id, scope.token_id
                shard.worker_id = scope.worker_id
                if run.status == "pending":
                    run.status, run.started_at = "running", run.started_at or self.clock.now()
                return self._own(run, shard)
        return None

    def _candidates(
        self, session: Session, request: wire.ClaimRequest | None, scope: ClaimScope
    ) -> list[str]:
        """Return the shards that a machine can execute, those of the workspace with the fewest active ones first."""
        conditions = [self._is_claimable("work")]
        if scope.shard_id is not None:
            conditions.append(DbRunShard.id == scope.shard_id)
        else:
            conditions.append(DbRun.pool.is_(None) if scope.pool is None else DbRun.pool == scope.pool)
            if scope.workspaces is not None:
                conditions.append(DbRun.workspace_id.in_(scope.workspaces))
            if scope.worker_id is not None:
                is_fit = func.coalesce(DbRunShard.unfit_worker_id, "") != scope.worker_id
                has_waited = is_over(DbRunShard.not_before, self._now - _UNFIT_FOR, LONGEST_PAUSE)
                conditions.append(or_(is_fit, has_waited))
        if request is not None and request.run_id is not None:
            conditions.append(DbRun.id == request.run_id)
        age = DbRun.created_at, DbRun.id, DbRunShard.number
        place = func.row_number().over(partition_by=(DbRun.workspace_id, DbRun.needs), order_by=age)
        placed = select(DbRunShard.id, place.label("place")).join(DbRun).where(*conditions).subquery()
        oldest = select(placed.c.id).where(placed.c.place <= _MOST_CANDIDATES)
        asked = select(DbRunShard.id, DbRun.workspace_id, DbRun.request).join(DbRun).order_by(*age)
        found = session.execute(asked.where(DbRunShard.id.in_(oldest))).all()
        if scope.shard_id is None and request is not None:
            machine = Machine.of(request)
            found = [row for row in found if not any(machine.lacks(self.demands.read(row.request)))]
        if len(found) > 1:
            live = DbRunShard.status == "running", DbRunShard.lease_expires_at > self._now
            counted = select(DbRun.workspace_id, func.count()).join(DbRunShard)
            counted = counted.where(DbRunShard.kind == "work", *live)
            active = dict(session.execute(counted.group_by(DbRun.workspace_id)).all())
            found = sorted(found, key=lambda row: active.get(row.workspace_id, 0))
        return [row.id for row in found]

    def _own(self, run: DbRun, shard: DbRunShard) -> Lease:
        shard.status, shard.lease_token = "running", f"osml_{secrets.token_urlsafe(24)}"
        shard.attempt += 1
        shard.log_lines, shard.not_before, shard.unfit_worker_id = 0, None, None
        self._extend(shard)
        return Lease(shard.id, shard.lease_token, run.id)

    def _return(self, lease: Lease, waits: str | None) -> None:
        """Undo a claim that could not be answered; others go first for a while."""
        with self.writing(lease.shard_id, lease.token) as (session, _, shard):
            shard.attempt -= 1
            shard.claim_id = shard.lease_token = None
            self._make_pending(shard, _INPUTS_PAUSE)
            self._explain(session, shard, waits)

    def _log_secrets(
        self, assignment: wire.Assignment, request: wire.ClaimRequest, scope: ClaimScope
    ) -> None:
        """Record which secrets a claim is answered with, before it is: for the workspace, and in the run's log."""
        run, attempt, names = assignment.run, assignment.lease.attempt, sorted(assignment.secrets)
        entry = DbSecretAccess(
            id=new_id("sac"),
            workspace_id=run.workspace_id,
            run_id=run.id,
            run_name=run.name,
            attempt=attempt,
            claim_id=request.claim_id,
            names=names,
            machine=None if request.machine is None else storable(request.machine),
            pool=scope.pool,
            created_at=self.clock.now(),
        )
        where = {"machine": request.machine, "pool": scope.pool}
        details = {name: value for name, value in where.items() if value is not None}
        message = f"the worker of attempt {attempt} received these secrets: {', '.join(names)}"
        with self._writing() as session:
            session.add(entry)
            self.logs.add(session, run.id, [LogLine(message, step="queue", details=details or None)])

    def waiting_shards(self, besides: Collection[str] = ()) -> list[tuple[DbRunShard, ExecutionSection]]:
        """Return the shards that wait for the platform's own machines, with what their runs require."""
        with self.db.session() as session:
            ids = self._candidates(session, None, ClaimScope())
            wanted = [shard_id for shard_id in ids if shard_id not in besides]
            asked = select(DbRunShard, DbRun.request).join(DbRun).where(DbRunShard.id.in_(wanted))
            found = {shard.id: (shard, request) for shard, request in session.execute(asked)}
        return [(shard, self.demands.read(request)) for shard, request in map(found.__getitem__, wanted)]

    def open_shard(self, shard_id: str) -> DbRunShard | None:
        shard = self.db.get(DbRunShard, shard_id)
        return shard if shard is not None and shard.status in OPEN else None

    def must_stop(self, run_id: str) -> bool:
        run = self.db.get(DbRun, run_id)
        return run is None or run.stop_requested_at is not None or run.error is not None

    def give_back(self, shard_id: str, reason: str, *, counts: bool) -> None:
        """Return a shard whose job has ended without doing so."""
        with self._writing() as session:
            found = lock_shard(session, DbRunShard.id == shard_id, DbRunShard.status.in_(OPEN))
            if found is not None:
                self._release(session, *found, wire.ReleaseRequest(reason=reason, counts=counts))

    def give_back_local(self) -> None:
        """Return the shards of this platform's previous process, whose workers ended with it."""
        mine = DbRunShard.token_id == LOCAL, DbRunShard.kind == "work", DbRunShard.status == "running"
        for shard_id in self.db.scalars(select(DbRunShard.id).where(*mine)):
            self.give_back(shard_id, "the platform was restarted", counts=True)

    def explain(self, shard_ids: Sequence[str], reason: str) -> None:
        """Record why shards wait; an empty reason removes the former one."""
        waits = f"{reason.rstrip('.')}." if reason else None
        pending = DbRunShard.id.in_(shard_ids), DbRunShard.status == "pending"
        with self._writing() as session:
            for shard in session.scalars(select(DbRunShard).where(*pending)):
                self._explain(session, shard, waits)

    def _explain(self, session: Session, shard: DbRunShard, waits: str | None) -> None:
        if waits is not None and waits != shard.waits:
            self.logs.add(session, shard.run_id, [LogLine(waits, level="warning", step="queue")])
        shard.waits = waits

    def log(self, run_id: str, message: str) -> None:
        self.logs.append(run_id, [LogLine(message, step="queue")])

    def sync(self, shard_id: str, token: str, request: wire.SyncRequest) -> wire.SyncReply:
        """Extend a lease, and write everything that a worker reports, or nothing."""
        lines = read_lines(request.journal) if request.journal is not None else None
        begun: Sequence[BegunUpload] = ()
        if request.sent or request.wanted or request.files:
            # Before anything that costs more than a call of somebody else may.
            run_id = self.require_owner(shard_id, token)
            names = [each.name for each in request.sent] + [each.name for each in request.wanted]
            require_own_names(shard_id, [*names, *(part.blob for part in request.files if part.blob)])
            check_contents(request.files)
            self.uploads.complete(run_id, request.sent)
            begun = self.uploads.begin(run_id, request.wanted)
        try:
            reply, replaced, obsolete = self._write(shard_id, token, request, lines, begun)
        except BaseException as error:
            if begun:
                self.uploads.give_up(begun)
            if isinstance(error, UploadLimitError | _ForeignAttemptError):
                run_id = self.require_owner(shard_id, token)
                # Once per run: a message may name anything that the worker has sent.
                if (known := (run_id, type(error))) not in self._reported:
                    self._reported.add(known)
                    self.logs.append(run_id, [LogLine(error.with_hint, level="warning", step="queue")])
            raise
        self.uploads.clear(replaced, obsolete)
        if begun:
            reply.uploads = [each.grant for each in begun]
        if request.find_agent:
            reply.agent = self.assignments.agent_of(shard_id)
        return reply

    def _write(
        self,
        shard_id: str,
        token: str,
        request: wire.SyncRequest,
        lines: NewLines | None,
        begun: Sequence[BegunUpload],
    ) -> tuple[wire.SyncReply, Sequence[Any], Sequence[str]]:
        with self._writing() as session:
            held = session.connection().execute(_OWNED, {"shard_id": shard_id, "token": token}).one_or_none()
            if held is None:
                raise _lost()
            run_id, error = held.run_id, held.error
            changes, run_changes = dict[str, Any](), dict[str, Any]()
            has_progress, extent = False, None
            if lines is not None or request.files:
                extent = self._extent(session, shard_id)
                samples = lines.samples if lines is not None else []
                attempts = [(each["row_index"], each["run_index"]) for each in samples]
                extent.require_own([*attempts, *map(attempt_of, request.files)], samples)
            if lines is not None:
                end, accepted = append_lines(
                    session, run_id, shard_id, lines, held.journal_bytes, held.accepted
                )
                has_progress, changes["journal_bytes"] = end > held.journal_bytes, end
                run_changes["accepted"] = accepted
            replaced = self.uploads.note_wanted(session, run_id, begun)
            if request.files:
                take_files(session, run_id, held.revision, request.files)
            if request.log is not None:
                changes["log_lines"] = self._take_log(session, held, request.log)
            if request.worked_s is not None:
                changes["worked_s"] = max(held.worked_s, min(request.worked_s, 1e8))
            if request.limited_by is not None:
                changes["limited_by"] = bounded_details(request.limited_by, Redactor(()))
            for name, most in _FACTS.items():
                if (fact := getattr(request, name)) is not None:
                    run_changes[name] = storable(fact)[:most]
            if has_progress and extent is not None and error is None:
                error = run_changes["error"] = used_up(session, run_id, extent.limits, extent.rows * extent.n)
            checkpoints: dict[int, str] = {}
            obsolete: Sequence[str] = ()
            if request.training is not None:
                run = session.get_one(DbRun, run_id)
                applied = apply_training(session, run, held.attempt, request.training, self.clock.now())
                checkpoints, obsolete = applied.checkpoints, applied.obsolete
                has_progress |= applied.has_progress
            if has_progress:
                changes |= {"failed_attempts": 0, "waits": None}
            if run_changes:
                session.connection().execute(_CHANGED_RUN, {"row": run_id, **run_changes})
            if self._renewing is _CHANGED_SHARD:
                changes |= self._renewal()
            session.connection().execute(self._renewing, {"row": shard_id, **changes})
            reply = wire.SyncReply(
                stop=held.stop_requested_at is not None or error is not None,
                term_s=self.term.total_seconds(),
                next_poll_s=self._syncs.next_s(shard_id),
                journal_bytes=changes.get("journal_bytes", held.journal_bytes),
                log_lines=changes.get("log_lines", held.log_lines),
                checkpoints=checkpoints,
            )
        return reply, replaced, obsolete

    def _take_log(self, session: Session, held: Any, part: wire.LogPart) -> int:
        # An older state of the database knows fewer lines; those between are lost.
        new = part.lines[max(0, held.log_lines - part.first) :]
        prefix = f"worker {held.number + 1}: " if held.count > 1 else ""
        lines = [
            LogLine(
                prefix + storable(line.message), line.level, storable(line.step), line.details, line.timestamp
            )
            for line in new
        ]
        self.logs.add(session, held.run_id, lines)
        known: int = held.log_lines
        return max(known, part.first + len(part.lines))

    def _renewal(self) -> dict[str, Any]:
        return {"heartbeat_at": self._now, "lease_expires_at": self._now + self.term}

    def require_owner(self, shard_id: str, token: str) -> str:
        """Check a lease by reading; return the run's id."""
        is_owned = DbRunShard.lease_token == token, DbRunShard.status == "running"
        run_id = self.db.scalar(select(DbRunShard.run_id).where(DbRunShard.id == shard_id, *is_owned))
        if run_id is None:
            raise _lost()
        return run_id

    def _extent(self, session: Session, shard_id: str) -> _Extent:
        if (extent := self._extents.get(shard_id)) is None:
            asked = select(DbRunShard, DbRun).join(DbRun).where(DbRunShard.id == shard_id)
            shard, run = session.execute(asked).one()
            extent = _Extent.of(run, shard)
            if len(self._extents) >= _MOST_EXTENTS:
                self._extents.clear()
            self._extents[shard_id] = extent
        return extent

    def finish(self, shard_id: str, token: str, request: wire.FinishRequest) -> wire.ShardClosed:
        """End a shard. A run with a stop request is stopped, whatever else happened."""
        with self._writing() as session:
            run, shard = _leased(session, shard_id, token)
            if shard.status == "pending":
                raise _lost()
            if shard.status == "running":
                if request.note is not None:
                    run.results = {**(run.results or {}), "ending": bounded(storable(request.note))}
                status: Outcome = "stopped" if run.stop_requested_at is not None else request.outcome
                error = request.error
                if status == "finished" and run.error is None and (missing := _missing(session, run, shard)):
                    status = "failed"
                    error = f"the worker finished without the records of {missing} attempts."
                self._end_shard(session, run, shard, status, error)
            return wire.ShardClosed(status=shard.status)  # type: ignore[arg-type]

    def release(self, shard_id: str, token: str, request: wire.ReleaseRequest) -> wire.ShardClosed:
        """Return a shard for another worker, which continues from what was reported."""
        with self._writing() as session:
            run, shard = _leased(session, shard_id, token)
            if shard.status == "running":
                self._release(session, run, shard, request)
            status = shard.status
        if request.counts:
            self.assignments.sources.doubt(run.id)
        return wire.ShardClosed(status=status)  # type: ignore[arg-type]

    def _release(self, session: Session, run: DbRun, shard: DbRunShard, request: wire.ReleaseRequest) -> None:
        reason = bounded(storable(request.reason)).rstrip(".") if request.reason else None
        if request.counts:
            shard.failed_attempts += 1
            if shard.failed_attempts >= MAX_FAILED_ATTEMPTS[run.kind]:
                why = f"{reason}; " if reason else ""
                self._end_shard(session, run, shard, "failed", f"{why}{_hopeless(shard.failed_attempts)}")
                return
        pause, waits = timedelta(), None
        if reason is not None:
            waits = f"it waits for a worker: {reason}." if shard.kind == "work" else f"{reason}."
        if waits is not None and waits == shard.waits and not request.counts:
            # An outage may last for hours, and is logged once.
            pause = _INPUTS_PAUSE
        elif reason is not None:
            pause = min(LONGEST_PAUSE, _FIRST_PAUSE * 2 ** max(0, shard.failed_attempts - 1))
            whose = f"worker {shard.number + 1}: " if shard.count > 1 else ""
            again = f"{whose}{reason} (trying again in {pause.total_seconds():g} s)"
            self.logs.add(session, run.id, [LogLine(again, level="warning", step="queue")])
        if request.unfit:
            shard.unfit_worker_id, pause = shard.worker_id, max(pause, _FIRST_PAUSE)
        self._make_pending(shard, pause)
        shard.waits = waits
        self._advance(session, run)

    def _make_pending(self, shard: DbRunShard, pause: timedelta) -> None:
        shard.status, shard.lease_expires_at = "pending", None
        shard.not_before = self._now + pause if pause else None
        self.claimable.set()

    def _end_shard(
        self, session: Session, run: DbRun, shard: DbRunShard, status: Outcome, error: str | None = None
    ) -> None:
        """End a shard; one that failed ends its run."""
        shard.status, shard.lease_expires_at = status, None
        if status == "failed":
            shard.error = bounded(storable(error or "the worker did not report why."))
            if run.stop_requested_at is None and run.error is None:
                run.error = shard.error
        self._advance(session, run)


class _ForeignAttemptError(ConflictError):
    """A worker reported an attempt that is not part of its shard."""


@dataclass(frozen=True, slots=True)
class _Extent:
    """The attempts that belong to a shard of an evaluation."""

    rows: int
    n: int
    dataset_rows: int
    number: int
    count: int
    attempts: frozenset[tuple[int, int]] | None
    limits: ExecutionSection

    @classmethod
    def of(cls, run: DbRun, shard: DbRunShard) -> _Extent:
        if run.kind != "eval":
            raise OsmosisError("a training run has no records of attempts.")
        rows = RowSelection.read(run.selection)
        listed = None if shard.attempts is None else frozenset(map(tuple, shard.attempts))
        n = evaluation_settings(run.request).n
        limits = read_execution(run.request.get("advanced_config"))
        return cls(len(rows.rows()), n, rows.total_rows, shard.number, shard.count, listed, limits)

    def require_own(self, attempts: Sequence[AttemptKey], samples: Sequence[Mapping[str, Any]]) -> None:
        """Refuse attempts that are not part of the shard, and samples of rows that do not exist."""
        problems = [self._problem(*attempt) for attempt in attempts]
        if any(each["source_row_index"] >= self.dataset_rows for each in samples):
            problems.append(f"the dataset has only {self.dataset_rows} rows")
        if found := next(filter(None, problems), None):
            raise _ForeignAttemptError(f"a record or file does not belong to this part of the run: {found}.")

    def _problem(self, row: int, number: int) -> str | None:
        if row >= self.rows:
            return f"the run has {self.rows} rows, and no row {row}"
        if number >= self.n:
            return f"the run has {self.n} attempts per row, and no attempt {number}"
        is_own = row % self.count == self.number if self.attempts is None else (row, number) in self.attempts
        return None if is_own else f"row {row}, attempt {number} is part of another shard, or has a score"


def _missing(session: Session, run: DbRun, shard: DbRunShard) -> int:
    """Return the number of attempts of a shard that have no record."""
    if (run.kind, shard.kind) != ("eval", "work"):
        return 0
    extent = _Extent.of(run, shard)
    own = extent.attempts or product(range(extent.number, extent.rows, extent.count), range(extent.n))
    new = DbSample.run_id == run.id, DbSample.position > run.reopened_at
    recorded = set(map(tuple, session.execute(select(DbSample.row_index, DbSample.run_index).where(*new))))
    return sum(attempt not in recorded for attempt in own)


def lock_shard(
    session: Session, *conditions: ColumnElement[bool], skip_locked: bool = False
) -> tuple[DbRun, DbRunShard] | None:
    """Lock and return the first such shard and its run."""
    asked = select(DbRun, DbRunShard).join(DbRunShard).where(*conditions).order_by(DbRunShard.id).limit(1)
    asked = asked.with_for_update(skip_locked=skip_locked)
    found = session.execute(asked.execution_options(populate_existing=True)).one_or_none()
    return None if found is None else (found[0], found[1])


def _leased(session: Session, shard_id: str, token: str) -> tuple[DbRun, DbRunShard]:
    """Return a run and the shard with this lease, which it keeps after its end, to recognize repeated calls."""
    found = lock_shard(session, DbRunShard.id == shard_id, DbRunShard.lease_token == token)
    if found is None:
        raise _lost()
    return found


def _lost() -> LeaseLostError:
    return LeaseLostError(
        "this lease has ended or never existed: another worker has the shard, or the run has ended."
    )


def _hopeless(failed_attempts: int) -> str:
    return f"{failed_attempts} workers in a row failed without progress. See the run's log, then submit it again."


def sentence_of(error: OsmosisError) -> str:
    """Return the error of a run that an error of the platform ends."""
    hint = f"; {error.hint.rstrip('.')}" if error.hint else ""
    return f"{error.message.rstrip('.')}{hint}."
