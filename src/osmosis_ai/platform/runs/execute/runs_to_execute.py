"""The runs that are this platform's own to execute, as its executor asks for them: few columns, and never all that wait."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set

from sqlalchemy import and_, bindparam, func, or_, select
from sqlalchemy.orm import load_only

from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.runs.leases import Leases, is_due, that_are_due
from osmosis_ai.platform.runs.lifecycle import OPEN

# Built once: building a statement costs more than SQLite takes to answer it. Those that name a pool are for its workers.
_OPEN = (DbRun.status.in_(OPEN), DbRun.pool.is_(None))
_OPEN_IDS = select(DbRun.id).where(*_OPEN)
_PENDING = (DbRun.status == "pending", DbRun.pool.is_(None))
_OPEN_RUNS = (
    select(DbRun)
    .where(*_OPEN)
    .options(
        load_only(
            DbRun.workspace_id,
            DbRun.name,
            DbRun.status,
            DbRun.created_at,
            DbRun.lease_token,
            DbRun.lease_expires_at,
            DbRun.stop_requested_at,
            DbRun.claimable_at,
        )
    )
)
_AT_WORK = _OPEN_RUNS.where(or_(DbRun.status == "running", DbRun.id.in_(bindparam("known", expanding=True))))


class RunsToExecute:
    """Open runs without a pool."""

    def __init__(self, db: Database, leases: Leases) -> None:
        self._db = db
        self._leases = leases

    def are_all(self, known: Set[str]) -> bool:
        """Tell whether there is no other open run: nearly always, ten times a second."""
        with self._db.session() as session:
            return known >= set(session.scalars(_OPEN_IDS))

    def at_work(self, known: Collection[str]) -> dict[str, DbRun]:
        """Return the runs that were begun, and those of ``known`` that have not ended, by their ids."""
        with self._db.session() as session:
            return {run.id: run for run in session.scalars(_AT_WORK, {"known": list(known)})}

    def that_go_on(self, runs: Iterable[DbRun]) -> list[DbRun]:
        """Return those of ``runs`` that were begun, are not to stop and may be claimed now."""
        begun = [run for run in runs if run.status == "running" and run.stop_requested_at is None]
        if all(run.claimable_at is None for run in begun):
            return begun
        with self._db.session() as session:
            now = self._leases.now(session)
        return [run for run in begun if is_due(run, now)]

    def oldest_waiting(self, but: Collection[str]) -> list[DbRun]:
        """Return of each workspace the run that was submitted first, of those that wait, ``but`` for some."""
        with self._db.session() as session:
            are_due = that_are_due(self._leases.now(session))
            oldest = (
                select(DbRun.workspace_id, func.min(DbRun.created_at).label("created_at"))
                .where(*_PENDING, are_due, DbRun.id.not_in(but))
                .group_by(DbRun.workspace_id)
                .subquery()
            )
            is_oldest = and_(
                DbRun.workspace_id == oldest.c.workspace_id, DbRun.created_at == oldest.c.created_at
            )
            return list(session.scalars(_OPEN_RUNS.join(oldest, is_oldest).where(*_PENDING, are_due)))

    def oldest(self, most: int) -> list[DbRun]:
        """Return the runs that were submitted first, at most so many."""
        asked = _OPEN_RUNS.order_by(DbRun.created_at, DbRun.id).limit(most)
        with self._db.session() as session:
            return list(session.scalars(asked))


def fairest(runs: Iterable[DbRun], at_work: Mapping[str, int]) -> DbRun | None:
    """Return the run to start next: the oldest of the workspace with the fewest ``at_work``; None of none."""
    return min(runs, key=lambda run: (at_work.get(run.workspace_id, 0), run.created_at, run.id), default=None)


def was_resumed(run: DbRun, attempt: int) -> bool:
    """Return whether an open run was resumed after it had been claimed ``attempt`` times."""
    return run.status == "pending" and run.attempt > attempt
