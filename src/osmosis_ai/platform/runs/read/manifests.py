"""Manifests of a run's downloadable files: written once at the end, filtered on reading.

A manifest is stored as tab-separated lines with a file's type, row, size and JSON entry, so that filtering needs
no parsing and no more memory than a block.
"""

from __future__ import annotations

import bisect
import gzip
import hashlib
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from typing import Any, BinaryIO, cast

import orjson
from sqlalchemy import select

from osmosis_ai.errors import ConflictError
from osmosis_ai.platform.blobs.store import BlobNotFound, BlobStore
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun, DbRunFile
from osmosis_ai.platform.runs.lifecycle import OPEN
from osmosis_ai.platform.runs.read.derived_files import JOURNAL, KINDS, LOGS, DerivedFiles

Ranges = Sequence[tuple[int, int]]
"""Rows of a dataset as first and last row, ascending and apart from one another."""

_BATCH = 5000
_IN_MEMORY_BYTES = 8 * 1024 * 1024
_BLOCK_BYTES = 64 * 1024
_LEVEL = 1
_EVERY_ROW = b"*"
"""In the place of a row: of the whole run."""
_ASKED_FOR = (LOGS, JOURNAL)
"""Made when they are asked for: lines are written in a log after its run has ended, too; few want the journal."""


class RunManifests:
    """The manifests of all runs."""

    def __init__(self, db: Database, blobs: BlobStore, derived: DerivedFiles) -> None:
        self._db = db
        self._blobs = blobs
        self._derived = derived

    def read(self, run: DbRun, types: Sequence[str], ranges: Ranges | None) -> Iterator[bytes]:
        """Yield the document in pieces, with files of these types and, for sample files, these rows."""
        if run.status == "pending":
            raise ConflictError(
                f"the evaluation run {run.name} has not begun; there is nothing to download yet."
            )
        newest = [self._made(run, path) for path in _ASKED_FOR if KINDS[path] in types]
        return _document(self._lines(run), list(filter(None, newest)), types, ranges)

    def _lines(self, run: DbRun) -> BinaryIO:
        """Open the run's whole manifest but for :data:`_ASKED_FOR`."""
        if run.status in OPEN:
            return self._written(run)
        version = f"{run.status} {run.completed_at}"
        key = f"runs/{run.id}/derived/{hashlib.sha256(version.encode()).hexdigest()}/manifest.gz"
        lines = self._kept(key)
        if lines is None:
            lines = self._written(run)
            with _spool() as packed:
                with gzip.GzipFile("", "wb", _LEVEL, packed, mtime=0) as out:
                    shutil.copyfileobj(lines, out, _BLOCK_BYTES)
                packed.seek(0)
                self._blobs.put(key, packed)
            lines.seek(0)
        return lines

    def _kept(self, key: str) -> BinaryIO | None:
        """Unpack a stored manifest; None if it is missing or corrupt, in which case it is generated again."""
        lines = _spool()
        try:
            with self._blobs.open(key) as kept, gzip.open(kept, "rb") as unpacked:
                shutil.copyfileobj(unpacked, lines, _BLOCK_BYTES)
                # An empty file unpacks to nothing, too; a manifest has some lines in any case.
                if not lines.tell():
                    raise EOFError
        except (BlobNotFound, gzip.BadGzipFile, EOFError, zlib.error):
            lines.close()
            return None
        except BaseException:
            lines.close()
            raise
        lines.seek(0)
        return lines

    def _written(self, run: DbRun) -> BinaryIO:
        lines = _spool()
        lines.writelines(self._stored(run, "artifacts"))
        lines.writelines(self._made(run, path) for path in KINDS if path not in _ASKED_FOR)
        lines.writelines(self._stored(run, "trajectories"))
        lines.seek(0)
        return lines

    def _stored(self, run: DbRun, kind: str) -> Iterator[bytes]:
        asked = (
            select(DbRunFile.path, DbRunFile.size, DbRunFile.sha256, DbRunFile.source_row_index)
            .where(DbRunFile.run_id == run.id, DbRunFile.kind == kind)
            .order_by(DbRunFile.path)
        )
        with self._db.session() as session:
            for path, size, sha256, row in session.execute(asked.execution_options(yield_per=_BATCH)):
                digest = {"sha256": sha256} if sha256 is not None else {}
                yield _line(kind, row, {"path": path, "size": size, **digest})

    def _made(self, run: DbRun, path: str) -> bytes:
        try:
            token, size = self._derived.make(run, path)
        except BlobNotFound:
            return b""
        # The token of such a file is its digest.
        entry = {"path": path, "size": size, "token": token, "sha256": token}
        return _line(KINDS[path], _EVERY_ROW.decode(), entry)


def _document(
    lines: BinaryIO, newest: Sequence[bytes], types: Sequence[str], ranges: Ranges | None
) -> Iterator[bytes]:
    """Yield the document; closes ``lines``."""
    sums: dict[bytes, list[int]] = {kind.encode(): [0, 0] for kind in types}
    block, comma = bytearray(b'{"files":['), b""
    with closing(lines):
        for line in chain(newest, lines):
            kind, row, size, entry = line.split(b"\t", 3)
            counts = sums.get(kind)
            if counts is None or (ranges is not None and not _is_in(ranges, row)):
                continue
            counts[0] += 1
            counts[1] += int(size)
            block += comma
            block += entry
            comma = b","
            if len(block) >= _BLOCK_BYTES:
                yield bytes(block)
                block.clear()
    yield bytes(block) + b'],"totals":' + orjson.dumps(_totals(sums)) + b"}"


def _totals(sums: Mapping[bytes, Sequence[int]]) -> dict[str, Any]:
    by_type = {
        kind.decode(): {"files": files, "bytes": size} for kind, (files, size) in sums.items() if files
    }
    whole = {name: sum(each[name] for each in by_type.values()) for name in ("files", "bytes")}
    return {**whole, "by_type": by_type}


def _line(kind: str, row: int | str | None, entry: dict[str, Any]) -> bytes:
    place = b"" if row is None else str(row).encode()
    return b"%s\t%s\t%d\t%s\n" % (kind.encode(), place, entry["size"], orjson.dumps(entry))


def _is_in(ranges: Ranges, row: bytes) -> bool:
    if not row.isdigit():
        return row == _EVERY_ROW
    place = bisect.bisect_right(ranges, (int(row), sys.maxsize)) - 1
    return place >= 0 and int(row) <= ranges[place][1]


def _spool() -> BinaryIO:
    # The caller closes it.
    return cast(BinaryIO, tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES))
