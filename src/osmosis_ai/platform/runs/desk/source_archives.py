"""A commit's files as one archive, for workers that have neither the mirror nor the Git host.

The same commit gives the same bytes, wherever and whenever it is packed: names in order, no times, no owners. So an archive
is made once, and its key is its digest.
"""

from __future__ import annotations

import gzip
import os
import tarfile
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from typing import BinaryIO

from osmosis_ai.datasets import file_digest
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.base import upsert
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRepository, DbSourceArchive
from osmosis_ai.platform.gitsync.mirror import MirrorStore


class SourceArchives:
    """The archives of one platform.

    Args:
        db, blobs, clock, mirrors: the platform's.
    """

    def __init__(self, db: Database, blobs: BlobStore, clock: Clock, mirrors: MirrorStore) -> None:
        self._db = db
        self._blobs = blobs
        self._clock = clock
        self._mirrors = mirrors
        self._one_at_a_time: dict[tuple[str, str], threading.Lock] = defaultdict(threading.Lock)

    def find(self, workspace_id: str, repository: DbRepository | None, sha: str) -> DbSourceArchive | None:
        """Return the archive of a commit, made now if there is none; None where its repository is gone, too. Blocking.

        Raises:
            GitError: the commit cannot be read, is too large, or holds what no directory may hold.
            OSError, BlobStoreError: there is no room for it.
        """
        with self._one_at_a_time[workspace_id, sha]:
            known = self._known(workspace_id, sha)
            if known is not None or repository is None:
                return known
            return self._make(workspace_id, repository, sha)

    def _known(self, workspace_id: str, sha: str) -> DbSourceArchive | None:
        with self._db.session() as session:
            return session.get(DbSourceArchive, (workspace_id, sha))

    def _make(self, workspace_id: str, repository: DbRepository, sha: str) -> DbSourceArchive:
        self._mirrors.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".source.", dir=self._mirrors.root) as scratch:
            source, packed = Path(scratch, "source"), Path(scratch, "source.tar.gz")
            self._mirrors.export(repository, sha, source)
            with packed.open("wb") as file:
                pack(source, file)
            key = f"sources/{workspace_id}/{file_digest(packed)}.tar.gz"
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
        return DbSourceArchive(**made)


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
