"""Machines that recently failed a run for reasons of their own, such as a full disk; other machines get it first.

A machine that is the only candidate is not skipped and retries at the usual pace.
"""

from __future__ import annotations

import threading
from datetime import timedelta

from sqlalchemy import and_, or_, select

from osmosis_ai.config.execution import ExecutionSection
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbKnownWorker, DbRun, DbWorkerToken
from osmosis_ai.platform.runs.fitting import Machine
from osmosis_ai.platform.runs.leases import that_known_workers_have

GIVES_WAY_S = 600.0
"""For how long others go first: they may be at work on something else."""
_ASKED_WITHIN = timedelta(minutes=2)
"""Of a machine that is idle: that it asks is noted once a minute."""
_MOST = 10_000


class UnfitMachines:
    """The machines that gave runs back, in memory only; forgetting them costs one try."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock
        self._until: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def note(self, run_id: str, token: str) -> None:
        """Remember who has the lease ``token`` of a run, which it is about to give back."""
        with self._db.session() as session:
            run = session.get(DbRun, run_id)
        if run is None or run.lease_token != token or run.worker_id is None:
            return
        place = run_id, run.worker_id
        with self._lock:
            self._until.pop(place, None)
            self._until[place] = self._clock.monotonic() + GIVES_WAY_S
            if len(self._until) > _MOST:
                del self._until[next(iter(self._until))]

    def gives_way(
        self, worker_id: str | None, run_id: str, workspace_id: str, asks: ExecutionSection
    ) -> bool:
        """Tell whether a machine is not to have a run, because another one may have more luck with it."""
        if worker_id is None or not self._is_unfit(run_id, worker_id):
            return False
        now = self._clock.now()
        with self._db.session() as session:
            found = session.execute(
                select(DbKnownWorker, DbWorkerToken.workspace_ids)
                .join(DbWorkerToken, DbWorkerToken.id == DbKnownWorker.token_id)
                .where(
                    DbWorkerToken.pool == asks.pool,
                    DbWorkerToken.revoked_at.is_(None),
                    or_(
                        and_(DbKnownWorker.seen_at > now - _ASKED_WITHIN, DbKnownWorker.left_at.is_(None)),
                        DbKnownWorker.id.in_(select(DbRun.worker_id).where(that_known_workers_have(now))),
                    ),
                )
            ).all()
        return any(
            (spaces is None or workspace_id in spaces)
            and not self._is_unfit(run_id, worker.id)
            and next(Machine.known(worker).lacks(asks), None) is None
            for worker, spaces in found
        )

    def _is_unfit(self, run_id: str, worker_id: str) -> bool:
        with self._lock:
            return self._until.get((run_id, worker_id), 0.0) > self._clock.monotonic()
