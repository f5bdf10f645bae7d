"""Downloads of a run: a manifest of the requested files, and signed URLs for them.

``metrics.json``, ``summary.jsonl``, ``logs.txt`` and the journal are derived from other data on request, and stored under
their content's digest, which is the token in the manifest. A download therefore has its announced size whatever
changes later, and an ended run has each file once.

The manifest of an ended run is stored, too: as tab-separated lines with a file's type, row, size and JSON entry, so that
filtering it needs no parsing and little memory.
"""

from __future__ import annotations

import bisect
import gzip
import hashlib
import json
import re
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain
from typing import Any, BinaryIO, cast

import orjson
from sqlalchemy import select

from osmosis_ai.api.models.base import wire_time
from osmosis_ai.controller.outcomes import Status
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.evaluation.attempt_files import item_name
from osmosis_ai.evaluation.run_directory import TRAJECTORY_FILE, IndexEntry
from osmosis_ai.platform.blobs.store import BlobNotFound, BlobStore
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbLogLine, DbRun, DbRunFile, DbSample
from osmosis_ai.platform.runs.files import RunFiles
from osmosis_ai.platform.runs.journals import stored_lines
from osmosis_ai.platform.runs.lifecycle import OPEN

TYPES = ("metrics", "trajectories", "artifacts", "logs", "journal")
"""The contract's types, and the journal, which is downloaded only if it is named."""
LINK_TTL = timedelta(minutes=15)
Ranges = Sequence[tuple[int, int]]
"""First and last rows, ascending and disjoint."""

_METRICS, _SUMMARY, _LOGS, _JOURNAL = "metrics.json", "summary.jsonl", "logs.txt", "events.jsonl"
_DERIVED = {_METRICS: "metrics", _SUMMARY: "trajectories", _LOGS: "logs", _JOURNAL: "journal"}
"""Derived files and their types."""
_NOT_IN_MANIFEST = (_LOGS, _JOURNAL)
"""Added to a stored manifest on request: a log may grow after its run has ended, and journals are rarely wanted."""
_TOKEN = re.compile(r"[0-9a-f]{64}")
_ALL_ROWS = "*"
_BATCH = 2000
_IN_MEMORY_BYTES = 8 * 1024 * 1024
_BLOCK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class WantedFile:
    """A file to be downloaded."""

    path: str
    token: str | None = field(default=None, repr=False)


class Downloads:
    """The downloads of all runs."""

    def __init__(self, db: Database, blobs: BlobStore, files: RunFiles) -> None:
        self._db = db
        self._blobs = blobs
        self._files = files

    def manifest(self, run: DbRun, types: Sequence[str], rows: str | None) -> Iterator[bytes]:
        """Yield the manifest's JSON in pieces, with files of these types and, for sample files, these rows."""
        ranges = parse_rows(rows) if rows is not None else None
        if run.status == "pending":
            raise ConflictError(
                f"the evaluation run {run.name} has not begun; there is nothing to download yet."
            )
        further = [self._derived_line(run, path) for path in _NOT_IN_MANIFEST if _DERIVED[path] in types]
        lines = self._manifest_lines(run) if run.status in OPEN else self._stored_manifest(run)
        return _document(lines, list(filter(None, further)), types, ranges)

    def urls(self, run: DbRun, wanted: Sequence[WantedFile]) -> list[tuple[WantedFile, str]]:
        """Return a URL for each wanted file that exists."""
        paths = {file.path for file in wanted if file.path not in _DERIVED}
        named = (DbRunFile.run_id == run.id, DbRunFile.path.in_(paths))
        with self._db.session() as session:
            stored = {row.path: row for row in session.scalars(select(DbRunFile).where(*named))}
        found, derived_again = [], set[str]()
        for file in wanted:
            name = file.path.rpartition("/")[2]
            if file.path in _DERIVED:
                key = self._derived_key(run, file)
                if key is None and file.path not in derived_again and file.path != _JOURNAL:
                    # A lost file is derived again, once however many tokens are asked for.
                    derived_again.add(file.path)
                    self._derive(run, file.path)
                    key = self._derived_key(run, file)
                if key is not None:
                    found.append((file, self._blobs.signed_get_url(key, filename=name, ttl=LINK_TTL)))
            elif (row := stored.get(file.path)) is not None:
                found.append((file, self._files.url(row, filename=name, ttl=LINK_TTL)))
        return found

    # -- the manifest ----------------------------------------------------------------------------------

    def _stored_manifest(self, run: DbRun) -> BinaryIO:
        """Open the lines of an ended run's manifest, which is stored the first time."""
        version = f"{run.status} {run.completed_at}"
        key = f"runs/{run.id}/derived/{hashlib.sha256(version.encode()).hexdigest()}/manifest.gz"
        with suppress(BlobNotFound, gzip.BadGzipFile, EOFError, zlib.error):
            lines = _spool()
            with self._blobs.open(key) as packed, gzip.open(packed, "rb") as unpacked:
                shutil.copyfileobj(unpacked, lines, _BLOCK_BYTES)
            # A manifest always has some lines; an empty blob unpacks to none.
            if lines.tell():
                lines.seek(0)
                return lines
        lines = self._manifest_lines(run)
        with _spool() as packed:
            with gzip.GzipFile("", "wb", 1, packed, mtime=0) as out:
                shutil.copyfileobj(lines, out, _BLOCK_BYTES)
            packed.seek(0)
            self._blobs.put(key, packed)
        lines.seek(0)
        return lines

    def _manifest_lines(self, run: DbRun) -> BinaryIO:
        lines = _spool()
        lines.writelines(self._stored_lines(run, "artifacts"))
        lines.writelines(self._derived_line(run, path) for path in _DERIVED if path not in _NOT_IN_MANIFEST)
        lines.writelines(self._stored_lines(run, "trajectories"))
        lines.seek(0)
        return lines

    def _stored_lines(self, run: DbRun, kind: str) -> Iterator[bytes]:
        asked = (
            select(DbRunFile.path, DbRunFile.size, DbRunFile.sha256, DbRunFile.source_row_index)
            .where(DbRunFile.run_id == run.id, DbRunFile.kind == kind)
            .order_by(DbRunFile.path)
        )
        with self._db.session() as session:
            for path, size, sha256, row in session.execute(asked.execution_options(yield_per=_BATCH)):
                digest = {"sha256": sha256} if sha256 is not None else {}
                yield _line(kind, row, {"path": path, "size": size, **digest})

    def _derived_line(self, run: DbRun, path: str) -> bytes:
        try:
            token, size = self._derive(run, path)
        except BlobNotFound:
            return b""
        entry = {"path": path, "size": size, "token": token, "sha256": token}
        return _line(_DERIVED[path], _ALL_ROWS, entry)

    # -- derived files ---------------------------------------------------------------------------------

    def _derive(self, run: DbRun, path: str) -> tuple[str, int]:
        """Store one of the derived files as of now; return its token and its size in bytes."""
        with _spool() as content:
            digest, size = hashlib.sha256(), 0
            for piece in self._pieces(run, path):
                digest.update(piece)
                size += content.write(piece)
            token = digest.hexdigest()
            if not self._has(run, path, token):
                content.seek(0)
                self._blobs.put(_key(run, path, token), content)
        return token, size

    def _derived_key(self, run: DbRun, file: WantedFile) -> str | None:
        """Return the key of a derived file with this token, or of the current one; None if there is none."""
        token = file.token
        if token is None:
            try:
                token, _ = self._derive(run, file.path)
            except BlobNotFound:
                return None
        if not _TOKEN.fullmatch(token) or not self._has(run, file.path, token):
            return None
        return _key(run, file.path, token)

    def _has(self, run: DbRun, path: str, token: str) -> bool:
        try:
            self._blobs.size(_key(run, path, token))
        except BlobNotFound:
            return False
        return True

    def _pieces(self, run: DbRun, path: str) -> Iterator[bytes]:
        if path == _METRICS:
            return iter([_metrics(run)])
        if path == _JOURNAL:
            if run.journal_blob is None:
                raise BlobNotFound("the run has no stored journal.")
            return stored_lines(self._blobs, run.journal_blob)
        return self._summary(run) if path == _SUMMARY else self._log(run)

    def _summary(self, run: DbRun) -> Iterator[bytes]:
        """Yield one line per sample, by row and attempt, like the engine on a user's machine."""
        with self._db.session() as session:
            of_trajectories = (DbRunFile.run_id == run.id, DbRunFile.kind == "trajectories")
            with_trajectory = set(session.scalars(select(DbRunFile.path).where(*of_trajectories)))
            rows = session.scalars(
                select(DbSample)
                .where(DbSample.run_id == run.id)
                .order_by(DbSample.row_index, DbSample.run_index)
                .execution_options(yield_per=_BATCH)
            )
            for sample in rows:
                trajectory = f"trajectories/{item_name(sample.row_index, sample.run_index)}.json"
                entry = IndexEntry(
                    row_index=sample.row_index,
                    run_index=sample.run_index,
                    rollout_id=sample.rollout_id,
                    status=cast(Status, sample.status),
                    duration_ms=round(sample.duration_ms) or None,  # zero means unknown
                    trajectory_filename=TRAJECTORY_FILE if trajectory in with_trajectory else None,
                    reward=sample.reward,
                    tokens=sample.tokens,
                    error_type=sample.error_type,
                    resumed=sample.resumed,
                )
                yield entry.to_line()

    def _log(self, run: DbRun) -> Iterator[bytes]:
        with self._db.session() as session:
            lines = session.scalars(
                select(DbLogLine)
                .where(DbLogLine.subject_id == run.id)
                .order_by(DbLogLine.id)
                .execution_options(yield_per=_BATCH)
            )
            for line in lines:
                details = f" {json.dumps(line.details, sort_keys=True)}" if line.details else ""
                text = f"{wire_time(line.timestamp)} {line.level.upper()} [{line.step}] {line.message}{details}\n"
                yield text.encode("utf-8")


def parse_types(text: str | None) -> tuple[str, ...]:
    """Return the file types that a comma-separated list names; ``metrics`` and ``trajectories`` by default."""
    if text is None or not text.strip():
        return ("metrics", "trajectories")
    named = [part.strip().lower() for part in text.split(",")]
    if unknown := sorted({name for name in named if name not in TYPES}):
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
        is_number = all(number.isascii() and number.isdigit() and len(number) <= 18 for number in numbers)
        if not is_number or int(numbers[1]) < int(numbers[0]):
            raise OsmosisError(
                f"cannot read the rows '{text[:80]}'; expected rows from 0 and ranges, as in '3,7,10-20'.",
                details={"key": "rows"},
            )
        ranges.append((int(numbers[0]), int(numbers[1])))
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1]:
            low, high = merged[-1][0], max(high, merged.pop()[1])
        merged.append((low, high))
    return merged


def _document(
    lines: BinaryIO, further: Sequence[bytes], types: Sequence[str], ranges: Ranges | None
) -> Iterator[bytes]:
    """Yield the manifest in pieces; closes ``lines``."""
    sums: dict[bytes, list[int]] = {kind.encode(): [0, 0] for kind in types}
    block, comma = bytearray(b'{"files":['), b""
    with closing(lines):
        for line in chain(further, lines):
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
    place = "" if row is None else str(row)
    return b"%s\t%s\t%d\t%s\n" % (kind.encode(), place.encode(), entry["size"], orjson.dumps(entry))


def _is_in(ranges: Ranges, row: bytes) -> bool:
    if not row.isdigit():
        return row == _ALL_ROWS.encode()
    position = bisect.bisect_right(ranges, (int(row), sys.maxsize)) - 1
    return position >= 0 and int(row) <= ranges[position][1]


def _metrics(run: DbRun) -> bytes:
    metrics = run.metrics or {}
    document: dict[str, Any] = {
        "eval_run": {
            "id": run.id,
            "status": run.status,
            "name": run.name,
            "dataset_name": run.dataset_name,
            "model_name": run.model_path,
            "rollout_name": run.rollout_name,
            "duration_ms": metrics.get("duration_ms", 0),
            "started_at": wire_time(run.started_at) if run.started_at else None,
            "completed_at": wire_time(run.completed_at) if run.completed_at else None,
        },
        "summary": metrics.get("summary") or _empty_summary(run),
    }
    if "estimates" in metrics:
        document["estimates"] = metrics["estimates"]
    return json.dumps(document, indent=2, ensure_ascii=False).encode("utf-8") + b"\n"


def _empty_summary(run: DbRun) -> dict[str, Any]:
    counts = dict.fromkeys(("total_samples", "completed_samples", "graded", "passed", "failed", "skipped"), 0)
    threshold = (run.results or {}).get("pass_threshold")
    return {**counts, "pass_rate": 0.0, "pass_threshold": threshold, "tokens_used": 0}


def _key(run: DbRun, path: str, token: str) -> str:
    return f"runs/{run.id}/derived/{token}/{path}"


def _spool() -> BinaryIO:
    return cast(BinaryIO, tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES))
