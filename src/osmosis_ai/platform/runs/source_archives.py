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
from typing import BinaryIO

from sqlalchemy import ColumnElement, and_, delete, exists, or_, select, update

from osmosis_ai.datasets import file_digest
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.blobs.store import BlobError, BlobNotFound, BlobStore
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.base import rows_changed, upsert
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRepository, DbRun, DbSourceArchive
from osmosis_ai.platform.gitsync.mirror import MirrorStore
from osmosis_ai.platform.runs.lifecycle import CHECKPOINT_KEPT, OPEN, UNFINISHED

WANTED_FOR = timedelta(hours=1)
"""How long an archive stays that was asked for by a submit, whose run may be on its way."""
FOUND_WITHIN_S = 5.0
"""How long a thread waits for an archive being packed: some commits take minutes, and threads are few."""
_PACKED_AT_ONCE = 2
_FOLDER = "sources"
_BLOCK_BYTES = 1 << 20


class StillPackingError(OsmosisError):
    """The archive of a commit is being made, which takes longer than anybody waits for."""

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
        self._stored: set[str] = set()
        self._doubted: set[tuple[str, str]] = set()
        self._threads = ThreadPoolExecutor(_PACKED_AT_ONCE, thread_name_prefix="source-archive")

    def close(self) -> None:
        """Stop; unfinished archives are packed again on request."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def prepare(self, repository: DbRepository, sha: str) -> Future[DbSourceArchive]:
        """Return a commit's archive for a run about to be submitted; it is kept for :data:`WANTED_FOR`."""
        known = (repository.workspace_id, sha)
        wanted = update(DbSourceArchive).where(*_is(known)).values(created_at=self._clock.now())
        with self._db.transaction() as session:
            is_there = rows_changed(session, wanted) > 0
        archive = self._known(known) if is_there else None
        if archive is None or known in self._doubted:
            return self._make(repository, sha)
        done: Future[DbSourceArchive] = Future()
        done.set_result(archive)
        return done

    def find(self, workspace_id: str, repository: DbRepository | None, sha: str) -> DbSourceArchive | None:
        """Return the archive of a commit, made now if there is none; None where its repository is gone, too."""
        known = self._known((workspace_id, sha))
        if repository is None or (known is not None and (workspace_id, sha) not in self._doubted):
            return known
        making = self._make(repository, sha)
        try:
            return making.result(timeout=FOUND_WITHIN_S)
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
        stored, within_reach = list(self._blobs.keys(_FOLDER)), self._clock.now() - CHECKPOINT_KEPT
        with self._lock:
            being_stored = set(self._stored)
        goes_on = or_(
            DbRun.status.in_(OPEN),
            and_(
                DbRun.kind == "training",
                DbRun.status.in_(UNFINISHED),
                DbRun.completed_at > within_reach,
            ),
        )
        of_archive = (
            DbRun.workspace_id == DbSourceArchive.workspace_id,
            DbRun.commit_sha == DbSourceArchive.commit_sha,
        )
        with self._db.transaction() as session:
            # A single statement: a concurrent submit either moves the date first or finds no archive.
            session.execute(
                delete(DbSourceArchive).where(
                    DbSourceArchive.created_at < self._clock.now() - WANTED_FOR,
                    ~exists().where(*of_archive, goes_on),
                )
            )
            kept = set(session.scalars(select(DbSourceArchive.blob_key)))
        for key in stored:
            if key not in kept | being_stored:
                self._blobs.delete(key)

    def _known(self, known: tuple[str, str]) -> DbSourceArchive | None:
        """Return the archive of a commit, unless its bytes were lost or cut short behind us: the mirror has them still."""
        with self._db.session() as session:
            archive = session.get(DbSourceArchive, known)
        try:
            is_whole = archive is not None and self._blobs.size(archive.blob_key) == archive.size
        except BlobNotFound:
            return None
        except BlobError:
            return archive  # which its worker fetches when the store is back
        return archive if is_whole else None

    def _is_right(self, archive: DbSourceArchive) -> bool:
        """Tell whether an archive has the bytes it was made with; only of a doubted one they are read."""
        known = (archive.workspace_id, archive.commit_sha)
        if known not in self._doubted:
            return True
        digest = hashlib.sha256()
        try:
            with self._blobs.open(archive.blob_key) as stored:
                while block := stored.read(_BLOCK_BYTES):
                    digest.update(block)
        except BlobNotFound:
            return False
        except BlobError:
            return True  # and doubted still, when the store is back
        is_right = digest.hexdigest() == archive.sha256
        if is_right:
            self._doubted.discard(known)
        return is_right

    def _make(self, repository: DbRepository, sha: str) -> Future[DbSourceArchive]:
        """Begin to make an archive; who asks while it is made gets the same one."""
        known = (repository.workspace_id, sha)
        with self._lock:
            made = self._making.get(known)
            if made is None:
                made = self._making[known] = self._threads.submit(self._pack, repository, sha)
                is_mine = True
            else:
                is_mine = False
        if is_mine:
            made.add_done_callback(lambda _: self._making.pop(known, None))
        return made

    def _pack(self, repository: DbRepository, sha: str) -> DbSourceArchive:
        workspace_id = repository.workspace_id
        before = self._known((workspace_id, sha))
        if before is not None and self._is_right(before):
            return before  # made between two looks, or doubted without reason
        self._mirrors.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".source.", dir=self._mirrors.root) as scratch:
            source, packed = Path(scratch, "source"), Path(scratch, "source.tar.gz")
            self._mirrors.export(repository, sha, source)
            with packed.open("wb") as file:
                pack(source, file)
            # The same bytes may be stored again after they were swept: a key is used once.
            key = f"{_FOLDER}/{workspace_id}/{file_digest(packed)}.{secrets.token_hex(4)}.tar.gz"
            made = self._keep(workspace_id, sha, packed, key)
        self._doubted.discard((workspace_id, sha))
        return made

    def _keep(self, workspace_id: str, sha: str, packed: Path, key: str) -> DbSourceArchive:
        with self._lock:
            self._stored.add(key)
        try:
            with packed.open("rb") as file:
                info = self._blobs.put(key, file)
            made = {
                "workspace_id": workspace_id,
                "commit_sha": sha,
                "blob_key": key,
                "size": info.size,
                "sha256": info.sha256,
                "created_at": self._clock.now(),
            }
            with self._db.transaction() as session:
                upsert(session, DbSourceArchive, [made])
        finally:
            with self._lock:
                self._stored.discard(key)
        return DbSourceArchive(**made)


def _is(known: tuple[str, str]) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return DbSourceArchive.workspace_id == known[0], DbSourceArchive.commit_sha == known[1]


def pack(source: Path, target: BinaryIO) -> None:
    """Write the files and symbolic links below ``source`` to ``target`` as a compressed archive."""
    with (
        gzip.GzipFile("", "wb", 6, target, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for path in sorted(_files(source)):
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


def _files(source: Path) -> list[str]:
    found = []
    for folder, folders, files in os.walk(source):
        links = [name for name in folders if Path(folder, name).is_symlink()]
        found += [str(Path(folder, name).relative_to(source)) for name in (*files, *links)]
    return found
