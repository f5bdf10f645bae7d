"""The files of runs: where their bytes are, and packing small ones into a blob when the run has ended.

A file is a blob, a compressed range of a blob, or, while its run is open, a compressed row of ``conversations``. Packing
writes a blob first and then moves the files to it, some in each transaction, so it may be interrupted at any moment.
"""

from __future__ import annotations

import secrets
import tempfile
import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from io import BytesIO
from typing import BinaryIO, cast

from sqlalchemy import delete, select, update

from osmosis_ai.platform.blobs.signing import DownloadGrant, UrlSigner
from osmosis_ai.platform.blobs.store import BlobError, BlobNotFound, BlobStore
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbConversation, DbRunFile

PACK_FOLDER = "packs"
"""The folder of packs among the blobs of a run."""
_MOST_OF_A_PACK = 64 << 20
_BATCH = 500
_IN_MEMORY_BYTES = 8 << 20


class RunFiles:
    """Opens the files of runs."""

    def __init__(self, db: Database, blobs: BlobStore, signer: UrlSigner) -> None:
        self._db = db
        self._blobs = blobs
        self._signer = signer

    def open(self, file: DbRunFile) -> BinaryIO:
        """Open a file for reading; the caller closes it."""
        if file.blob_key is None:
            return self._open_row(file)
        if file.offset is None or file.length is None:
            return self._blobs.open(file.blob_key)
        return BytesIO(_unpacked(self._blobs.read(file.blob_key, file.offset, file.length), file))

    def open_granted(self, run_id: str, path: str) -> BinaryIO:
        """Open the file of a signed URL, which may have been packed since the URL was made."""
        with self._db.session() as session:
            file = session.get(DbRunFile, (run_id, path))
        if file is None:
            raise BlobNotFound("this file was replaced or removed.")
        return self.open(file)

    def url(self, file: DbRunFile, *, filename: str, ttl: timedelta) -> str:
        """Return a URL that serves a file as a download named ``filename``."""
        if file.blob_key is not None and file.offset is None:
            return self._blobs.signed_get_url(file.blob_key, filename=filename, ttl=ttl)
        return self._signer.sign(DownloadGrant(file.run_id, filename, path=file.path), ttl=ttl)

    def _open_row(self, file: DbRunFile) -> BinaryIO:
        with self._db.session() as session:
            row = session.get(DbConversation, (file.run_id, file.path))
            current = session.get(DbRunFile, (file.run_id, file.path)) if row is None else None
        if row is not None:
            return BytesIO(_unpacked(row.content, file))
        # It may have been packed since it was found.
        if current is None or current.blob_key is None:
            raise BlobNotFound("this file was replaced or removed.")
        return self.open(current)


def pack_files(db: Database, blobs: BlobStore, run_id: str, keep_lease: Callable[[], None]) -> None:
    """Move the small files of a run from the database into blobs."""
    mine = DbConversation.run_id == run_id
    asked = select(DbConversation.path).where(mine).order_by(DbConversation.path).limit(100_000)
    while True:
        with db.session() as session:
            paths = session.scalars(asked).all()
        if not paths:
            return
        key, packed = f"runs/{run_id}/{PACK_FOLDER}/{secrets.token_hex(16)}", list[tuple[str, int, int]]()
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES) as pack:
            for start in range(0, len(paths), _BATCH):
                keep_lease()
                some = select(DbConversation).where(
                    mine, DbConversation.path.in_(paths[start : start + _BATCH])
                )
                with db.session() as session:
                    for row in session.scalars(some.order_by(DbConversation.path)):
                        packed.append((row.path, pack.tell(), len(row.content)))
                        pack.write(row.content)
                if pack.tell() >= _MOST_OF_A_PACK:
                    break
            pack.seek(0)
            blobs.put(key, cast(BinaryIO, pack))
        for start in range(0, len(packed), _BATCH):
            keep_lease()
            _move(db, run_id, key, packed[start : start + _BATCH])


def _move(db: Database, run_id: str, key: str, packed: Sequence[tuple[str, int, int]]) -> None:
    rows = [
        {"run_id": run_id, "path": path, "blob_key": key, "offset": offset, "length": length}
        for path, offset, length in packed
    ]
    moved = DbConversation.run_id == run_id, DbConversation.path.in_([path for path, _, _ in packed])
    with db.transaction() as session:
        session.execute(update(DbRunFile), rows)
        session.execute(delete(DbConversation).where(*moved))


def _unpacked(packed: bytes, file: DbRunFile) -> bytes:
    unpacking = zlib.decompressobj()
    try:
        content = unpacking.decompress(packed, file.size + 1)
    except zlib.error:
        content = None
    if content is None or len(content) != file.size or not unpacking.eof:
        raise BlobError(f"the stored bytes of {file.path} are damaged.")
    return content
