"""Source archives of commits, for workers without access to the mirror or Git host.

Packing is reproducible: names are sorted, and times and owners omitted. An archive is therefore created once, and its
key is its digest.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import secrets
import tarfile
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

from sqlalchemy import and_, delete, exists, or_, select, update

from osmosis_ai.datasets import file_digest
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.blobs.store import BlobError, BlobNotFound, BlobStore
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
_BLOCK_BYTES = 1 << 20


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
        self._doubted: set[tuple[str, str]] = set()
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
        if archive is None or key in self._doubted:
            return self._make(repository, sha)
        done: Future[DbSourceArchive] = Future()
        done.set_result(archive)
        return done

    def find(self, workspace_id: str, repository: DbRepository | None, sha: str) -> DbSourceArchive | None:
        """Return the archive of a commit, made now if there is none; None if its repository is gone as well."""
        known = self._known((workspace_id, sha))
        if repository is None or (known is not None and (workspace_id, sha) not in self._doubted):
            return known
        try:
            return self._make(repository, sha).result(timeout=FOUND_WITHIN_S)
        except FutureTimeout:
            raise StillPackingError(f"the commit {sha[:12]} is still being packed for workers.") from None

    def doubt(self, run_id: str) -> None:
        """Verify a commit's archive before its next use, because a worker could not unpack it."""
        of_run = select(DbRun.workspace_id, DbRun.commit_sha).where(DbRun.id == run_id)
        with self._db.session() as session:
            found = session.execute(of_run).first()
        if found is not None and found.commit_sha is not None:
            self._doubted.add((found.workspace_id, found.commit_sha))

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
        with self._db.session() as session:
            archive = session.get(DbSourceArchive, key)
        try:
            is_whole = archive is not None and self._blobs.size(archive.blob_key) == archive.size
        except BlobNotFound:
            return None
        except BlobError:
            return archive  # a worker fetches it when the store is back
        return archive if is_whole else None

    def _is_right(self, archive: DbSourceArchive) -> bool:
        """Return whether a doubted archive still has the bytes that were stored; others are not read."""
        key = (archive.workspace_id, archive.commit_sha)
        if key not in self._doubted:
            return True
        digest = hashlib.sha256()
        try:
            with self._blobs.open(archive.blob_key) as stored:
                while block := stored.read(_BLOCK_BYTES):
                    digest.update(block)
        except BlobNotFound:
            return False
        except BlobError:
            return True  # read when the store is back: it remains doubted
        if digest.hexdigest() != archive.sha256:
            return False
        self._doubted.discard(key)
        return True

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
        before = self._known((workspace_id, sha))
        if before is not None and self._is_right(before):
            return before
        self._mirrors.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".source.", dir=self._mirrors.root) as scratch:
            source, packed = Path(scratch, "source"), Path(scratch, "source.tar.gz")
            self._mirrors.export(repository, sha, source)
            with packed.open("wb") as file:
                pack(source, file)
            # The same bytes may be stored again after they were swept: a key is used once.
            digest, suffix = file_digest(packed), f"{secrets.token_hex(4)}.tar.gz"
            made: dict[str, Any] = {
                "workspace_id": workspace_id,
                "commit_sha": sha,
                "blob_key": f"{_FOLDER}/{workspace_id}/{digest}.{suffix}",
                "size": packed.stat().st_size,
                "sha256": digest,
                "created_at": self._clock.now(),
            }
            # The row is written first, because a sweep deletes archives without a row.
            with self._db.transaction() as session:
                upsert(session, DbSourceArchive, [made])
            with packed.open("rb") as file:
                self._blobs.put(made["blob_key"], file)
        self._doubted.discard((workspace_id, sha))
        return DbSourceArchive(**made)


def pack(source: Path, target: BinaryIO) -> None:
    """Write the files and symbolic links below ``source`` to ``target`` as a compressed archive."""
    paths = []
    for folder, folders, files in os.walk(source):
        links = [name for name in folders if Path(folder, name).is_symlink()]
        paths += [str(Path(folder, name).relative_to(source)) for name in (*files, *links)]
    with (
        gzip.GzipFile("", "wb", 6, target, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for path in sorted(paths):
            member = tarfile.TarInfo(path)
            file = source / path
            if file.is_symlink():
                member.type, member.linkname = tarfile.SYMTYPE, str(file.readlink())
                archive.addfile(member)
                continue
            member.size = file.stat().st_size
            member.mode = 0o755 if os.access(file, os.X_OK) else 0o644
            with file.open("rb") as content:
                archive.addfile(member, content)
