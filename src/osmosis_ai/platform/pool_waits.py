"""Explain why runs of pools wait: no known machine may take them or has the requested resources.

Machines are read once for a whole list of runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from sqlalchemy import select

from osmosis_ai.config.execution import ExecutionSection
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbKnownWorker, DbWorkerToken
from osmosis_ai.platform.runs.demands import Demands
from osmosis_ai.platform.runs.fitting import Machine, needs_key
from osmosis_ai.platform.runs.leases import last_heard_of_workers
from osmosis_ai.platform.runs.waiting import BegunRun

_MOST_NAMED = 3


class RunThatWaits(BegunRun, Protocol):
    """What is read of a run to tell what it waits for, begun or not."""

    @property
    def workspace_id(self) -> str: ...
    @property
    def commit_sha(self) -> str | None: ...
    @property
    def request(self) -> Mapping[str, Any]: ...


class PoolWaits:
    """Why the runs of one list wait for workers of their pools."""

    def __init__(self, db: Database, demands: Demands, known_for: timedelta) -> None:
        self._db = db
        self._demands = demands
        self._known_for = known_for
        self._known: list[tuple[DbWorkerToken, DbKnownWorker | None]] | None = None
        self._told: dict[tuple[str, str, str | None], str | None] = {}

    def why(self, run: RunThatWaits) -> str | None:
        """Return why no worker may take a run that has none, in a sentence; None of a run without a pool, and where one may."""
        if run.pool is None:
            return None
        asks = self._demands.read(run.request)
        alike = run.workspace_id, run.pool, needs_key(asks)
        if alike not in self._told:
            self._told[alike] = self._why(run.workspace_id, run.pool, asks)
        return self._told[alike]

    def _why(self, workspace_id: str, pool: str, asks: ExecutionSection) -> str | None:
        if self._known is None:
            self._known = self._read()
        may_have = [
            worker
            for token, worker in self._known
            if token.pool == pool and (token.workspace_ids is None or workspace_id in token.workspace_ids)
        ]
        if not may_have:
            return (
                f"no worker token is good for the pool '{pool}' and this workspace: the operator creates one "
                f"with `osmosis platform worker-token create --pool {pool}`."
            )
        workers = [worker for worker in may_have if worker is not None]
        if not workers:
            return (
                f"no worker of the pool '{pool}' has asked for a run in the last {self._known_for.days} days."
            )
        return _why_none_fits(pool, asks, workers)

    def _read(self) -> list[tuple[DbWorkerToken, DbKnownWorker | None]]:
        """Return the tokens that are good, each with every machine that asks with it, in one statement."""
        heard = last_heard_of_workers().subquery()
        asked = (
            select(DbWorkerToken, DbKnownWorker, heard.c.moment)
            .outerjoin(DbKnownWorker, DbKnownWorker.token_id == DbWorkerToken.id)
            .outerjoin(heard, heard.c.worker_id == DbKnownWorker.id)
            .where(DbWorkerToken.revoked_at.is_(None))
            .order_by(DbKnownWorker.machine, DbKnownWorker.id)
        )
        with self._db.session() as session:
            found = sorted(session.execute(asked), key=lambda row: _latest(row[1], row[2]), reverse=True)
        return [(token, worker) for token, worker, _ in found]


def _latest(worker: DbKnownWorker | None, of_a_run: datetime | None) -> float:
    moments = (worker.seen_at if worker is not None else None, of_a_run)
    return max((moment.timestamp() for moment in moments if moment is not None), default=0.0)


def _why_none_fits(pool: str, asks: ExecutionSection, workers: Sequence[DbKnownWorker]) -> str | None:
    lacking = {worker.id: list(Machine.known(worker).lacks(asks)) for worker in workers}
    if not all(lacking.values()):
        return None
    had = frozenset[str]().union(*(worker.labels for worker in workers))
    if nowhere := [label for label in asks.labels or () if label not in had]:
        named = ", ".join(f"`{label}`" for label in nowhere)
        return f"no known worker of the pool '{pool}' has the label{'s' if len(nowhere) > 1 else ''} {named}."
    # A machine is known once for each size and token that it asked with, and what it lacks may be the same.
    told = list(dict.fromkeys(_lacks(worker, lacking[worker.id]) for worker in workers))
    if (more := len(told) - _MOST_NAMED) > 0:
        told[_MOST_NAMED:] = [f"and {more} more lack something"]
    return f"no known worker of the pool '{pool}' has all that this run asks for: {'; '.join(told)}."


def _lacks(worker: DbKnownWorker, lacking: Sequence[str]) -> str:
    because = f" ({worker.sandbox_problem})" if "a sandbox" in lacking and worker.sandbox_problem else ""
    return f"{worker.machine or worker.id[:8]} lacks {', '.join(lacking)}{because}"
