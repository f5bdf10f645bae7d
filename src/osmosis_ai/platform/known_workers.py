"""Machines that have asked for runs: their resources, and why a waiting run does not fit them.

A machine is identified by its description and token, so a restart does not change it. A machine that has left stays
known until it asks again. This is informational only: a claim decides whether a worker gets a run.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from typing import Any

import orjson
from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from osmosis_ai.api.wire.workers import WorkerOffer
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.base import upsert
from osmosis_ai.platform.db.engine import Database, DatabaseBusyError, StorageFullError
from osmosis_ai.platform.db.tables import DbKnownWorker, DbRun, DbWorkerToken
from osmosis_ai.platform.pool_waits import PoolWaits
from osmosis_ai.platform.runs.demands import Demands
from osmosis_ai.platform.runs.leases import last_heard_of_workers, that_known_workers_have

KEPT = timedelta(days=7)
"""How long a machine is known after it last asked for a run, or worked on one."""
_MOST_KEPT = 5000
_MOST_OF_TOKEN = 500
"""Maximum number of machines per token, since its holder can invent descriptions."""
_NOTED_EVERY = timedelta(minutes=1)
_OF_A_MACHINE = frozenset({"machine", "labels", "cpus", "gpus", "memory_gb", "sandbox", "sandbox_problem"})


class KnownWorkers:
    """The known machines of one platform."""

    def __init__(self, db: Database, clock: Clock, demands: Demands | None = None) -> None:
        self._db = db
        self._demands = demands or Demands()
        self._clock = clock
        self._noted: dict[str, datetime] = {}

    def note(self, offer: WorkerOffer, token: DbWorkerToken) -> str | None:
        """Remember who asks, at most once a minute, and never at the price of the claim; return its id."""
        if offer.run_id is not None and offer.model_fields_set.isdisjoint(_OF_A_MACHINE):
            return None
        said, now = _said(offer, token), self._clock.now()
        known = _id_of(said)
        if known in self._noted and abs(now - self._noted[known]) < _NOTED_EVERY:
            return known
        row = {"id": known, "pool": token.pool, "seen_at": now, "left_at": None, **said}
        try:
            with self._db.transaction(wait_s=0) as session:
                upsert(session, DbKnownWorker, [row])
                newest = select(DbKnownWorker.id).where(DbKnownWorker.token_id == token.id)
                newest = newest.order_by(DbKnownWorker.seen_at.desc(), DbKnownWorker.id)
                if too_many := session.scalars(newest.offset(_MOST_OF_TOKEN)).all():
                    session.execute(delete(DbKnownWorker).where(DbKnownWorker.id.in_(too_many)))
        except (DatabaseBusyError, StorageFullError):
            return known
        if len(self._noted) > _MOST_KEPT:
            self._noted.clear()
        self._noted[known] = now
        return known

    def note_left(self, offer: WorkerOffer, token: DbWorkerToken) -> None:
        """Remember that a machine has left; another process of the same words, which asks on, is heard with its next claim."""
        known = _id_of(_said(offer, token))
        self._noted.pop(known, None)
        with self._db.transaction() as session:
            of_it = update(DbKnownWorker).where(DbKnownWorker.id == known, DbKnownWorker.left_at.is_(None))
            session.execute(of_it.values(left_at=self._clock.now()))

    def all(self) -> list[tuple[DbKnownWorker, int, datetime]]:
        """Return the machines whose token is good and that have not left, by pool and name."""
        with self._db.session() as session:
            at_work = _at_work(session, self._clock.now())
            rows = session.scalars(
                select(DbKnownWorker)
                .join(DbWorkerToken, DbWorkerToken.id == DbKnownWorker.token_id)
                .where(DbWorkerToken.revoked_at.is_(None))
                .order_by(DbKnownWorker.pool, DbKnownWorker.machine, DbKnownWorker.seen_at.desc())
            )
            heard = _heard_of_runs(session)
            return [
                (row, at_work.get(row.id, 0), max(row.seen_at, heard.get(row.id, row.seen_at)))
                for row in rows
                if row.left_at is None or row.id in at_work or heard.get(row.id, row.left_at) > row.left_at
            ]

    def forget_old(self) -> None:
        """Forget machines that have not been seen for long, and the oldest of too many."""
        with self._db.transaction() as session:
            session.execute(
                delete(DbKnownWorker).where(
                    DbKnownWorker.seen_at < self._clock.now() - KEPT,
                    DbKnownWorker.id.not_in(
                        select(DbRun.worker_id).where(that_known_workers_have(self._clock.now()))
                    ),
                )
            )
            newest = select(DbKnownWorker.id).order_by(DbKnownWorker.seen_at.desc()).limit(_MOST_KEPT)
            if (session.scalar(select(func.count()).select_from(DbKnownWorker)) or 0) > _MOST_KEPT:
                kept = set(session.scalars(newest))
                session.execute(delete(DbKnownWorker).where(DbKnownWorker.id.not_in(kept)))

    def waits(self) -> PoolWaits:
        """Return what tells why runs of pools wait: of all runs of one list, and for no longer."""
        return PoolWaits(self._db, self._demands, KEPT)


def _said(offer: WorkerOffer, token: DbWorkerToken) -> dict[str, Any]:
    """Return what tells a machine from others."""
    return {
        "token_id": token.id,
        "machine": offer.machine,
        "labels": sorted(set(offer.labels)),
        "cpus": offer.cpus,
        "gpus": offer.gpus,
        "memory_gb": offer.memory_gb,
        "sandbox": offer.sandbox,
        "sandbox_problem": offer.sandbox_problem,
    }


def _id_of(said: dict[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(said, option=orjson.OPT_SORT_KEYS)).hexdigest()[:40]


def _at_work(session: Session, now: datetime) -> dict[str, int]:
    counted = session.execute(
        select(DbRun.worker_id, func.count()).where(that_known_workers_have(now)).group_by(DbRun.worker_id)
    )
    return {worker: runs for worker, runs in counted if worker is not None}


def _heard_of_runs(session: Session) -> dict[str, datetime]:
    """Return when machines last spoke of a run: one that has no room for another does not ask for any."""
    found = session.execute(last_heard_of_workers())
    return {worker: moment for worker, moment in found if worker is not None and moment is not None}
