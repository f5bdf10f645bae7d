"""Source archives of commits, for workers without access to the mirror or Git host. An archive is created once."""

from __future__ import annotations

import secrets
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from datetime import timedelta
from typing import Any

from sqlalchemy import and_, delete, exists, or_, select, update

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.blobs.store import BlobError, BlobNotFound, BlobStore, measure
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.base import upsert
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRepository, DbRun, DbSourceArchive
from osmosis_ai.platform.gitsync.mirror import MirrorStore
from osmosis_ai.platform.runs.lifecycle import CHECKPOINT_KEPT, OPEN, UNFINISHED

WANTED_FOR = timedelta(hours=1)
"""How long an archive is kept for a submit whose run may not exist yet."""
FOUND_WITHIN_S = 5.0
"""How long a thread waits for an archive being packed: some commits take minutes, and threads are few."""
_PACKED_AT_ONCE = 2
_FOLDER = "sources"


class StillPackingError(OsmosisError):
    """The archive of a commit is still being made."""

    default_code = "PLATFORM_ERROR"
    is_infrastructure = True


class SourceArchives:
    """The archives of one platform; each is made once at a time, by threads of their own."""

    def __init__(self, db: Database, blobs: BlobStore, clock: Clock, mirrors: MirrorStore) -> None:
        self._db = db
        self._blobs = blobs
        self._clock = clock
        self._mirrors = mirrors
        self._lock = threading.Lock()
        self._making: dict[tuple[str, str], Future[DbSourceArchive]] = {}
        self._threads = ThreadPoolExecutor(_PACKED_AT_ONCE, thread_name_prefix="source-archive")

    def close(self) -> None:
        """Stop; unfinished archives are packed again on request."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def prepare(self, repository: DbRepository, sha: str) -> Future[DbSourceArchive]:
        """Return a commit's archive for a run about to be submitted; it is kept for :data:`WANTED_FOR`."""
        key = (repository.workspace_id, sha)
        mine = (DbSourceArchive.workspace_id == key[0], DbSourceArchive.commit_sha == sha)
        with self._db.transaction() as session:
            session.execute(update(DbSourceArchive).where(*mine).values(created_at=self._clock.now()))
        archive = self._known(key)
        if archive is None:
            return self._make(repository, sha)
        done: Future[DbSourceArchive] = Future()
        done.set_result(archive)
        return done

    def find(self, workspace_id: str, repository: DbRepository | None, sha: str) -> DbSourceArchive | None:
        """Return the archive of a commit, made now if there is none; None if its repository is gone as well."""
        known = self._known((workspace_id, sha))
        if repository is None or known is not None:
            return known
        try:
            return self._make(repository, sha).result(timeout=FOUND_WITHIN_S)
        except FutureTimeout:
            raise StillPackingError(f"the commit {sha[:12]} is still being packed for workers.") from None

    def doubt(self, run_id: str) -> None:
        """Delete the archive of a run's commit if it is damaged, because a worker may have failed on it."""
        of_run = (
            DbRun.workspace_id == DbSourceArchive.workspace_id,
            DbRun.commit_sha == DbSourceArchive.commit_sha,
        )
        archive = self._db.scalar(
            select(DbSourceArchive).join(DbRun, and_(*of_run)).where(DbRun.id == run_id)
        )
        if archive is not None:
            self._threads.submit(self._delete_if_damaged, archive)

    def _delete_if_damaged(self, archive: DbSourceArchive) -> None:
        with suppress(BlobError), self._blobs.open(archive.blob_key) as stored:
            if measure(stored).sha256 != archive.sha256:
                damaged = delete(DbSourceArchive).where(DbSourceArchive.blob_key == archive.blob_key)
                with self._db.transaction() as session:
                    session.execute(damaged)

    def sweep(self) -> None:
        """Delete archives that no run which could still be executed refers to, and what a crash has left of others."""
        stored, now = list(self._blobs.keys(_FOLDER)), self._clock.now()
        resumable = (DbRun.kind == "training", DbRun.status.in_(UNFINISHED))
        of_archive = (
            DbRun.workspace_id == DbSourceArchive.workspace_id,
            DbRun.commit_sha == DbSourceArchive.commit_sha,
            or_(DbRun.status.in_(OPEN), and_(*resumable, DbRun.completed_at > now - CHECKPOINT_KEPT)),
        )
        with self._db.transaction() as session:
            # A single statement: a concurrent submit either moves the date first or finds no archive.
            old = DbSourceArchive.created_at < now - WANTED_FOR
            session.execute(delete(DbSourceArchive).where(old, ~exists().where(*of_archive)))
            kept = set(session.scalars(select(DbSourceArchive.blob_key)))
        for key in stored:
            if key not in kept:
                self._blobs.delete(key)

    def _known(self, key: tuple[str, str]) -> DbSourceArchive | None:
        """Return the archive of a commit, unless the store has lost its bytes."""
        archive = self._db.get(DbSourceArchive, key)
        try:
            is_whole = archive is not None and self._blobs.size(archive.blob_key) == archive.size
        except BlobNotFound:
            return None
        except BlobError:
            return archive  # a worker fetches it when the store is back
        return archive if is_whole else None

    def _make(self, repository: DbRepository, sha: str) -> Future[DbSourceArchive]:
        """Begin to make an archive, unless it is being made."""
        key = (repository.workspace_id, sha)
        with self._lock:
            if key in self._making:
                return self._making[key]
            made = self._making[key] = self._threads.submit(self._pack, repository, sha)
        made.add_done_callback(lambda _: self._making.pop(key, None))
        return made

    def _pack(self, repository: DbRepository, sha: str) -> DbSourceArchive:
        workspace_id = repository.workspace_id
        if (known := self._known((workspace_id, sha))) is not None:
            return known
        self._mirrors.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self._mirrors.root) as packed:
            self._mirrors.archive(repository, sha, packed)
            packed.seek(0)
            info = measure(packed)
            # The same bytes may be stored again after they were swept: a key is used once.
            suffix = f"{secrets.token_hex(4)}.tar.gz"
            made: dict[str, Any] = {
                "workspace_id": workspace_id,
                "commit_sha": sha,
                "blob_key": f"{_FOLDER}/{workspace_id}/{info.sha256}.{suffix}",
                "size": info.size,
                "sha256": info.sha256,
                "created_at": self._clock.now(),
            }
            # The row is written first, because a sweep deletes archives without a row.
            with self._db.transaction() as session:
                upsert(session, DbSourceArchive, [made])
            packed.seek(0)
            self._blobs.put(made["blob_key"], packed)
        return DbSourceArchive(**made)
