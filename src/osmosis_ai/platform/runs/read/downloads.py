"""What can be downloaded of a run: a manifest of exactly what was asked for, and signed URLs for its files."""

from __future__ import annotations

import bisect
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import select

from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun, DbRunFile
from osmosis_ai.platform.runs.read.derived_files import KINDS, DerivedFiles

TYPES = ("metrics", "trajectories", "artifacts", "logs")
LINK_TTL = timedelta(minutes=15)

_BATCH = 5000


@dataclass(frozen=True, slots=True)
class DownloadableFile:
    """A file of the download layout; ``token`` pins the content of one that changes."""

    path: str
    size: int
    kind: str
    token: str | None = None


@dataclass(frozen=True, slots=True)
class WantedFile:
    """A file that somebody wants to fetch."""

    path: str
    token: str | None = field(default=None, repr=False)


class Downloads:
    """The downloads of all runs.

    Args:
        db, blobs: where the files are known and kept.
    """

    def __init__(self, db: Database, blobs: BlobStore) -> None:
        self._db = db
        self._blobs = blobs
        self._derived = DerivedFiles(db, blobs)

    def manifest(self, run: DbRun, types: Sequence[str], rows: str | None) -> list[DownloadableFile]:
        """Return the files of the asked types, by path; samples' own only of the asked rows of the dataset.

        Raises:
            ConflictError: the run has not begun.
            OsmosisError: a type or a row that makes no sense.
        """
        if run.status == "pending":
            raise ConflictError(
                f"the evaluation run {run.name} has not begun; there is nothing to download yet."
            )
        ranges = parse_rows(rows) if rows is not None else None
        derived = [path for path, kind in KINDS.items() if kind in types]
        files = [self._made(run, path) for path in derived]
        stored = [kind for kind in ("trajectories", "artifacts") if kind in types]
        if stored:
            files += self._stored(run, stored, ranges)
        return sorted(files, key=lambda file: file.path)

    def urls(self, run: DbRun, wanted: Sequence[WantedFile]) -> list[tuple[WantedFile, str]]:
        """Return a URL for each wanted file that there is; the others are left out."""
        paths = {file.path for file in wanted if file.path not in KINDS}
        named = (DbRunFile.run_id == run.id, DbRunFile.path.in_(paths))
        with self._db.session() as session:
            rows = session.execute(select(DbRunFile.path, DbRunFile.blob_key).where(*named))
            keys = {row.path: row.blob_key for row in rows}
        found = []
        for file in wanted:
            made = self._derived.key(run, file.path, file.token) if file.path in KINDS else None
            key = made or keys.get(file.path)
            if key is not None:
                name = file.path.rpartition("/")[2]
                found.append((file, self._blobs.signed_get_url(key, filename=name, ttl=LINK_TTL)))
        return found

    def _made(self, run: DbRun, path: str) -> DownloadableFile:
        token, size = self._derived.make(run, path)
        return DownloadableFile(path, size, KINDS[path], token)

    def _stored(
        self, run: DbRun, kinds: Sequence[str], ranges: Sequence[tuple[int, int]] | None
    ) -> Iterable[DownloadableFile]:
        query = select(DbRunFile.path, DbRunFile.size, DbRunFile.kind, DbRunFile.source_row_index).where(
            DbRunFile.run_id == run.id, DbRunFile.kind.in_(kinds)
        )
        with self._db.session() as session:
            rows = session.execute(query.execution_options(yield_per=_BATCH))
            return [
                DownloadableFile(path, size, kind)
                for path, size, kind, source_row in rows
                if ranges is None or _is_in(ranges, source_row)
            ]


def parse_types(text: str | None) -> tuple[str, ...]:
    """Return the file types that a comma-separated list names; ``metrics`` and ``trajectories`` by default.

    Raises:
        OsmosisError: one of them is none.
    """
    if text is None or not text.strip():
        return ("metrics", "trajectories")
    named = [part.strip().lower() for part in text.split(",")]
    unknown = sorted({name for name in named if name not in TYPES})
    if unknown:
        raise OsmosisError(
            f"there are no files of the type '{unknown[0][:40]}'; the types are {', '.join(TYPES)}.",
            details={"key": "types"},
        )
    return tuple(dict.fromkeys(named))


def parse_rows(text: str) -> list[tuple[int, int]]:
    """Return the ranges that ``3,7,10-20`` names, as first and last row, ascending and apart from one another.

    Raises:
        OsmosisError: it cannot be read.
    """
    ranges = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        numbers = [first, last] if dash else [first, first]
        if not all(number.isascii() and number.isdigit() and len(number) <= 18 for number in numbers):
            raise _unreadable(text)
        low, high = int(numbers[0]), int(numbers[1])
        if high < low:
            raise _unreadable(text)
        ranges.append((low, high))
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1]:
            low, high = merged[-1][0], max(high, merged.pop()[1])
        merged.append((low, high))
    return merged


def totals(files: Sequence[DownloadableFile]) -> dict[str, Any]:
    """Return how much a manifest is, altogether and by type."""
    by_type: dict[str, dict[str, int]] = {}
    for file in files:
        sums = by_type.setdefault(file.kind, {"files": 0, "bytes": 0})
        sums["files"] += 1
        sums["bytes"] += file.size
    return {"files": len(files), "bytes": sum(file.size for file in files), "by_type": by_type}


def _is_in(ranges: Sequence[tuple[int, int]], row: int | None) -> bool:
    if row is None:
        return False
    place = bisect.bisect_right(ranges, (row, sys.maxsize)) - 1
    return place >= 0 and row <= ranges[place][1]


def _unreadable(text: str) -> OsmosisError:
    return OsmosisError(
        f"cannot read the rows '{text[:80]}'; expected rows from 0 and ranges, as in '3,7,10-20'.",
        details={"key": "rows"},
    )
