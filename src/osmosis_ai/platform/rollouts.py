"""Rollouts of a repository, as of its last sync.

A rollout keeps its row and id while the repository is connected. It becomes inactive when it disappears from
the default branch, and active when it reappears. A sync waits for a remote machine, so it
never runs inside a database session. A failed sync is noted on the repository and changes nothing else.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRepository, DbRollout, new_id
from osmosis_ai.platform.gitsync.mirror import MirrorStore
from osmosis_ai.platform.gitsync.rollouts import RolloutDirectory

logger = logging.getLogger(__name__)

FRESH_S = 3.0
"""How old a sync may be for a list to be content with it, in seconds."""
_PARALLEL_SYNCS = 4
# Syncs that found nothing new are noted this seldom, so that reading does not become writing.
_NOTED_EVERY = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class RolloutAt:
    """A rollout at a commit."""

    row: DbRollout
    sha: str | None
    active: bool


class RolloutStore:
    """The rollouts of all connected repositories."""

    def __init__(self, db: Database, mirrors: MirrorStore, clock: Clock) -> None:
        self._db = db
        self._mirrors = mirrors
        self._clock = clock
        self._threads = ThreadPoolExecutor(_PARALLEL_SYNCS, thread_name_prefix="osmosis-sync")
        self._syncing: dict[str, Future[DbRepository]] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """End the syncs that run and start no more."""
        self._mirrors.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def start_sync(self, repository_id: str) -> Future[DbRepository]:
        """Sync in the background unless that was done moments ago; who asks meanwhile gets the same future."""
        with self._lock:
            running = self._syncing.get(repository_id)
            if running is None:
                running = self._threads.submit(self.sync, repository_id, max_age_s=FRESH_S)
                self._syncing[repository_id] = running
                running.add_done_callback(lambda _: self._forget(repository_id))
        return running

    def sync(self, repository_id: str, *, max_age_s: float = 0.0) -> DbRepository:
        """Fetch a repository and record the rollouts of its default branch; blocks while it does."""
        with self._db.session() as session:
            repository = _repository(session, repository_id)
        try:
            sha = self._mirrors.sync(repository, max_age_s=max_age_s).sha
            if self._is_known(repository, sha):
                return repository
            found = self._mirrors.list_rollouts(repository, sha) if sha else []
        except OsmosisError as error:
            problem = error.with_hint
            if problem != repository.sync_error:
                logger.warning("%s", problem)
            return self._note_failure(repository_id, problem)
        return self._record(repository_id, sha, found)

    def page(self, repository_id: str, *, limit: int, offset: int) -> tuple[list[RolloutAt], int]:
        """Return one page of the rollouts, active ones first, then by name, and how many there are in all."""
        rollouts = select(DbRollout).where(DbRollout.repository_id == repository_id)
        with self._db.session() as session:
            total = session.scalar(select(func.count()).select_from(rollouts.subquery())) or 0
            rows = session.scalars(
                rollouts.order_by(DbRollout.is_active.desc(), DbRollout.name).limit(limit).offset(offset)
            ).all()
        return [RolloutAt(row, row.last_synced_commit_sha, row.is_active) for row in rows], total

    def on_branch(self, repository: DbRepository, branch: str) -> list[RolloutAt]:
        """Return the rollouts at the head of a branch, as last fetched, by name."""
        sha = self._mirrors.resolve(repository, branch=branch)
        found = self._mirrors.list_rollouts(repository, sha)
        names = [entry.name for entry in found]
        with self._db.session() as session:
            rows = _rows(session, repository.id, names)
        if len(rows) < len(names):
            with self._db.transaction() as session:
                row = _repository(session, repository.id, lock=True)
                rows = _rows(session, repository.id, names)
                new = [self._new_row(row, entry) for entry in found if entry.name not in rows]
                session.add_all(new)
                rows.update({rollout.name: rollout for rollout in new})
        return [RolloutAt(rows[name], sha, True) for name in names]

    def _forget(self, repository_id: str) -> None:
        with self._lock:
            self._syncing.pop(repository_id, None)

    def _is_known(self, repository: DbRepository, sha: str | None) -> bool:
        noted = repository.last_synced_at
        return (
            repository.sync_error is None
            and repository.last_synced_sha == sha
            and noted is not None
            and abs(self._clock.now() - noted) < _NOTED_EVERY
        )

    def _note_failure(self, repository_id: str, problem: str) -> DbRepository:
        with self._db.transaction() as session:
            repository = _repository(session, repository_id)
            repository.sync_error = problem
        return repository

    def _record(self, repository_id: str, sha: str | None, found: Sequence[RolloutDirectory]) -> DbRepository:
        now = self._clock.now()
        by_name = {entry.name: entry for entry in found}
        with self._db.transaction() as session:
            repository = _repository(session, repository_id, lock=True)
            repository.sync_error, repository.last_synced_sha, repository.last_synced_at = None, sha, now
            rows = _rows(session, repository_id)
            new = [self._new_row(repository, entry) for entry in found if entry.name not in rows]
            session.add_all(new)
            for row in [*rows.values(), *new]:
                entry = by_name.get(row.name)
                row.is_active = entry is not None
                if entry is not None:
                    row.description, row.last_synced_commit_sha, row.last_synced_at = (
                        entry.description,
                        sha,
                        now,
                    )
        return repository

    def _new_row(self, repository: DbRepository, entry: RolloutDirectory) -> DbRollout:
        return DbRollout(
            id=new_id("rol"),
            workspace_id=repository.workspace_id,
            repository_id=repository.id,
            name=entry.name,
            description=entry.description,
            is_active=False,
            created_at=self._clock.now(),
        )


def _repository(session: Session, repository_id: str, *, lock: bool = False) -> DbRepository:
    """Return the row; ``lock`` keeps others from recording rollouts of it until the transaction ends."""
    repository = session.get(DbRepository, repository_id, with_for_update=lock)
    if repository is None:
        raise NotFoundError(f"there is no repository '{repository_id}'.")
    return repository


def _rows(session: Session, repository_id: str, names: Iterable[str] | None = None) -> dict[str, DbRollout]:
    query = select(DbRollout).where(DbRollout.repository_id == repository_id)
    if names is not None:
        query = query.where(DbRollout.name.in_(names))
    return {row.name: row for row in session.scalars(query)}
