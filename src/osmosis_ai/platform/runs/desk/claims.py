"""Choose the run for a worker: unclaimed, permitted, fitting, and from the workspace with the fewest active runs.

A claim is one transaction that puts a new token into the run's row. A repeated claim returns the same token until the
worker's first sync, and then fails.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, or_, select
from sqlalchemy.orm import Session

from osmosis_ai.api.wire.workers import WorkerOffer
from osmosis_ai.config.execution import ExecutionSection
from osmosis_ai.errors import ConflictError
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.runs.demands import Demands
from osmosis_ai.platform.runs.desk.unfit_machines import UnfitMachines
from osmosis_ai.platform.runs.fitting import Machine
from osmosis_ai.platform.runs.leases import Lease, Leases, that_are_due, that_are_free
from osmosis_ai.platform.runs.lifecycle import OPEN

# Of each workspace that many are looked at, of those that ask for the same so many: who waits for a machine that there is
# not holds up none that another could take.
_MOST_OF_WORKSPACE = 50
_OLDEST_OF_KIND = 5
_MOST_SILENT = 10_000


@dataclass(frozen=True, slots=True)
class ClaimScope:
    """Which runs a worker may have."""

    run_id: str | None = None
    workspaces: frozenset[str] | None = None
    pool: str | None = None
    worker_id: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class WaitingRun:
    """A run that nobody works on, and what it asks of a machine."""

    id: str
    workspace_id: str
    created_at: datetime
    asks: ExecutionSection

    def fits(self, offer: WorkerOffer, scope: ClaimScope) -> bool:
        """Tell whether the machine has what the run asks for; of what the worker does not know it is not asked."""
        # A run's own ticket was given to a machine that was chosen for it.
        return scope.run_id is not None or next(Machine.of(offer).lacks(self.asks), None) is None


class Claims:
    """The claims of one platform's workers."""

    def __init__(
        self, db: Database, leases: Leases, unfit: UnfitMachines, demands: Demands | None = None
    ) -> None:
        self._db = db
        self._leases = leases
        self._unfit = unfit
        self._demands = demands or Demands()
        self._silent: dict[str, str] = {}
        self._lock = threading.Lock()

    def waiting(self, scope: ClaimScope, run_id: str | None) -> list[WaitingRun]:
        """Return, by reading alone, the runs that claims (of ``run_id`` alone) may find now, the first choice first."""
        with self._db.session() as session:
            return self._in_order(session, scope, run_id)

    def suits(self, run: WaitingRun, offer: WorkerOffer, scope: ClaimScope) -> bool:
        """Tell whether a worker's machine can carry a run, and nobody else is to try first."""
        if not run.fits(offer, scope):
            return False
        return not self._unfit.gives_way(scope.worker_id, run.id, run.workspace_id, run.asks)

    def take(self, offer: WorkerOffer, scope: ClaimScope) -> tuple[Lease, bool] | None:
        """Become the owner of a run; None where there is none."""
        with self._db.transaction() as session:
            # Once it is over, it finds no other run: nobody would read the answer.
            made = session.scalar(select(DbRun).where(DbRun.claim_id == offer.claim_id).with_for_update())
            if made is not None:
                return self._given_again(session, made, scope), True
            for run_id in self._candidates(session, offer, scope):
                query = select(DbRun).where(DbRun.id == run_id).with_for_update(skip_locked=True)
                run = session.scalar(query.execution_options(populate_existing=True))
                if run is None or not self._leases.is_open(session, run):
                    continue
                run.claim_id, run.is_claim_answered = offer.claim_id, False
                run.worker_id = scope.worker_id
                run.log_lines, run.claimable_at = 0, None
                if run.lease_expires_at is not None:
                    run.fruitless += 1  # its owner let it go by falling silent
                    self._note_silence(run.id, run.lease_token)
                run.fruitless = max(0, run.fruitless)  # what the last owner got done is not the next one's
                return self._leases.give(session, run, secrets.token_urlsafe(24)), False
        return None

    def hear_late(self, run_id: str, token: str) -> None:
        """Take back that a run's former owner got nothing done: it speaks, so it was slow or cut off, and no crash."""
        with self._lock:
            if self._silent.get(run_id) != token:
                return
            del self._silent[run_id]
        with self._db.transaction() as session:
            run = session.get(DbRun, run_id, with_for_update=True)
            if run is not None and run.status in OPEN and run.fruitless > 0:
                run.fruitless -= 1

    def _note_silence(self, run_id: str, token: str | None) -> None:
        """Remember who fell silent; of very many runs, or across a restart, it is forgotten and counts."""
        with self._lock:
            self._silent.pop(run_id, None)
            if token is not None:
                self._silent[run_id] = token
            if len(self._silent) > _MOST_SILENT:
                del self._silent[next(iter(self._silent))]

    def stopped(self) -> list[str]:
        """Return the runs of pools that are to stop and that nobody works on."""
        with self._db.session() as session:
            asked = (
                DbRun.status == "running",
                DbRun.stop_requested_at.is_not(None),
                DbRun.pool.is_not(None),
                that_are_free(self._leases.now(session), self._leases.term),
            )
            return list(session.scalars(select(DbRun.id).where(*asked)))

    def take_abandoned(self, run_id: str) -> Lease | None:
        """Become the owner of an open run to end it, which is no attempt at it; None where it has one, or has ended."""
        with self._db.transaction() as session:
            run = session.get(DbRun, run_id, with_for_update=True)
            if run is None or not self._leases.is_open(session, run):
                return None
            run.status, run.claim_id = "running", None
            run.lease_token = secrets.token_urlsafe(24)
            self._leases.extend(session, run)
            return Lease(run.id, run.lease_token, run.attempt)

    def _given_again(self, session: Session, run: DbRun, scope: ClaimScope) -> Lease:
        if (
            run.is_claim_answered
            or run.lease_expires_at is None
            or run.lease_token is None
            or not _in_scope(run, scope)
        ):
            raise ConflictError("this claim has been answered; a new claim needs an id of its own.")
        self._leases.extend(session, run)
        return Lease(run.id, run.lease_token, run.attempt)

    def _candidates(self, session: Session, offer: WorkerOffer, scope: ClaimScope) -> list[str]:
        """Return the runs to try, the first choice first."""
        return [
            run.id for run in self._in_order(session, scope, offer.run_id) if self.suits(run, offer, scope)
        ]

    def _in_order(self, session: Session, scope: ClaimScope, run_id: str | None) -> list[WaitingRun]:
        """Return what waits, the run first whose workspace has the fewest at work; of one workspace the oldest."""
        now = self._leases.now(session)
        rows = session.execute(_waiting(now, self._leases.term, scope, run_id))
        waiting = [
            WaitingRun(row.id, row.workspace_id, row.created_at, self._demands.read(row.request))
            for row in rows
        ]
        if len(waiting) < 2:
            return waiting
        counted = session.execute(
            select(DbRun.workspace_id, func.count())
            .where(DbRun.status == "running", DbRun.lease_expires_at > now)
            .group_by(DbRun.workspace_id)
        )
        at_work = Counter({row[0]: row[1] for row in counted})
        return sorted(waiting, key=lambda run: (at_work[run.workspace_id], run.created_at, run.id))


def _waiting(now: datetime, term: timedelta, scope: ClaimScope, run_id: str | None) -> Select[Any]:
    """Return the query of unclaimed runs in ``scope``: the oldest per workspace and machine requirements."""
    is_abandoned = and_(DbRun.status == "running", that_are_free(now, term))
    is_waiting = and_(
        or_(DbRun.status == "pending", is_abandoned), that_are_due(now), *_conditions(scope, run_id)
    )
    age = (DbRun.created_at, DbRun.id)
    alike = func.row_number().over(partition_by=(DbRun.workspace_id, DbRun.needs), order_by=age)
    waiting = select(DbRun.id, DbRun.workspace_id, DbRun.created_at, alike.label("place")).where(is_waiting)
    each = waiting.subquery()
    turn = func.row_number().over(
        partition_by=each.c.workspace_id, order_by=(each.c.place, each.c.created_at, each.c.id)
    )
    found = select(each.c.id, turn.label("turn")).where(each.c.place <= _OLDEST_OF_KIND).subquery()
    return (
        select(DbRun.id, DbRun.workspace_id, DbRun.created_at, DbRun.request)
        .join(found, found.c.id == DbRun.id)
        .where(found.c.turn <= _MOST_OF_WORKSPACE)
    )


def _conditions(scope: ClaimScope, run_id: str | None) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if scope.run_id is not None:
        return [DbRun.id == scope.run_id]
    conditions.append(DbRun.pool.is_(None) if scope.pool is None else DbRun.pool == scope.pool)
    if scope.workspaces is not None:
        conditions.append(DbRun.workspace_id.in_(scope.workspaces))
    if run_id is not None:
        conditions.append(DbRun.id == run_id)
    return conditions


def _in_scope(run: DbRun, scope: ClaimScope) -> bool:
    if scope.run_id is not None:
        return run.id == scope.run_id
    return run.pool == scope.pool and (scope.workspaces is None or run.workspace_id in scope.workspaces)
