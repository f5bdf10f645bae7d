"""What can be downloaded of a run: a manifest of exactly what was asked for, and signed URLs for its files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from sqlalchemy import select

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun, DbRunFile
from osmosis_ai.platform.runs.files import FILE_COLUMNS, RunFiles
from osmosis_ai.platform.runs.read.derived_files import JOURNAL, KINDS, DerivedFiles
from osmosis_ai.platform.runs.read.manifests import RunManifests

TYPES = ("metrics", "trajectories", "artifacts", "logs", "journal")
"""The contract's, and our own platform's: a stored journal, for who asks for it by name."""
LINK_TTL = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class WantedFile:
    """A file that somebody wants to fetch."""

    path: str
    token: str | None = field(default=None, repr=False)


class Downloads:
    """The downloads of all runs."""

    def __init__(self, db: Database, blobs: BlobStore, files: RunFiles) -> None:
        self._db = db
        self._blobs = blobs
        self._files = files
        self._derived = DerivedFiles(db, blobs)
        self._manifests = RunManifests(db, blobs, self._derived)

    def manifest(self, run: DbRun, types: Sequence[str], rows: str | None) -> Iterator[bytes]:
        """Yield the manifest's JSON in pieces, with files of the requested types and, for sample files, rows."""
        return self._manifests.read(run, types, parse_rows(rows) if rows is not None else None)

    def urls(self, run: DbRun, wanted: Sequence[WantedFile]) -> list[tuple[WantedFile, str]]:
        """Return a URL for each wanted file that there is; the others are left out."""
        paths = {file.path for file in wanted if file.path not in KINDS}
        named = (DbRunFile.run_id == run.id, DbRunFile.path.in_(paths))
        with self._db.session() as session:
            places = {row.path: row for row in session.execute(select(*FILE_COLUMNS).where(*named))}
        found, made_again = [], set[str]()
        for file in wanted:
            name = file.path.rpartition("/")[2]
            if file.path in KINDS:
                key = self._derived.key(run, file.path, file.token)
                if key is None and file.path not in made_again and file.path != JOURNAL:
                    # Lost behind us; what it is made of is there. Once, whatever tokens are asked for.
                    made_again.add(file.path)
                    self._derived.make(run, file.path)
                    key = self._derived.key(run, file.path, file.token)
                if key is not None:
                    found.append((file, self._blobs.signed_get_url(key, filename=name, ttl=LINK_TTL)))
            elif (place := places.get(file.path)) is not None:
                url = self._files.url(place, filename=name, ttl=LINK_TTL)
                found.append((file, url))
        return found


def parse_types(text: str | None) -> tuple[str, ...]:
    """Return the file types that a comma-separated list names; ``metrics`` and ``trajectories`` by default."""
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
    """Return the ranges named by ``3,7,10-20`` as first and last row, sorted and disjoint."""
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


def _unreadable(text: str) -> OsmosisError:
    return OsmosisError(
        f"cannot read the rows '{text[:80]}'; expected rows from 0 and ranges, as in '3,7,10-20'.",
        details={"key": "rows"},
    )
