"""The files of runs: where their bytes are, packing small ones into a blob when the run has ended, and downloads.

A file is a blob, a compressed range of a blob, or, while its run is open, a compressed row of ``conversations``. Packing
writes a blob first and then moves the files to it, some in each transaction, so it may be interrupted at any moment.

A download is a manifest of the requested files, and signed URLs for them. ``metrics.json``, ``summary.jsonl``,
``logs.txt`` and the journal are derived from other data on request, and stored under their content's digest, which is
the token in the manifest. A download therefore has its announced size whatever changes later, and an ended run has each
file once.
"""

from __future__ import annotations

import bisect
import hashlib
import json
import re
import secrets
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cache, partial
from io import BytesIO
from typing import Any, BinaryIO, cast

import orjson
from sqlalchemy import delete, select, update

from osmosis_ai.api.models.base import wire_time
from osmosis_ai.api.models.eval_runs import DownloadItem
from osmosis_ai.datasets.selection import parse_ranges
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.evaluation.attempt_files import item_name
from osmosis_ai.evaluation.run_directory import TRAJECTORY_FILE, IndexEntry
from osmosis_ai.platform.blobs.signing import DownloadGrant, UrlSigner
from osmosis_ai.platform.blobs.store import BlobError, BlobNotFound, BlobStore
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbConversation, DbLogLine, DbRun, DbRunFile, DbSample
from osmosis_ai.platform.runs.journals import stored_lines

PACK_FOLDER = "packs"
"""The folder of packs among the blobs of a run."""
_MOST_OF_A_PACK = 64 << 20
_BATCH = 500
_IN_MEMORY_BYTES = 8 << 20

TYPES = ("metrics", "trajectories", "artifacts", "logs", "journal")
"""The contract's types, and the journal, which is downloaded only if it is named."""
LINK_TTL = timedelta(minutes=15)
Ranges = Sequence[tuple[int, int]]
"""First and last rows, ascending and disjoint."""

_METRICS, _SUMMARY, _LOGS, _JOURNAL = "metrics.json", "summary.jsonl", "logs.txt", "events.jsonl"
_DERIVED = {_METRICS: "metrics", _SUMMARY: "trajectories", _LOGS: "logs", _JOURNAL: "journal"}
"""Derived files and their types."""
_INDEXED = (*("row_index", "run_index", "rollout_id", "status", "reward", "tokens", "error_type", "resumed"),)
_TOKEN = re.compile(r"[0-9a-f]{64}")
_ROWS_AT_ONCE = 2000
_BLOCK_BYTES = 64 * 1024


class RunFiles:
    def __init__(self, db: Database, blobs: BlobStore, signer: UrlSigner) -> None:
        self._db = db
        self._blobs = blobs
        self._signer = signer

    def open(self, file: DbRunFile) -> BinaryIO:
        if file.blob_key is None:
            return self._open_row(file)
        if file.offset is None or file.length is None:
            return self._blobs.open(file.blob_key)
        return BytesIO(_unpacked(self._blobs.read(file.blob_key, file.offset, file.length), file))

    def open_granted(self, run_id: str, path: str) -> BinaryIO:
        """Open the file of a signed URL, which may have been packed since the URL was made."""
        file = self._db.get(DbRunFile, (run_id, path))
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
        # The file may have been packed in the meantime.
        if current is None or current.blob_key is None:
            raise BlobNotFound("this file was replaced or removed.")
        return self.open(current)

    # -- downloads -------------------------------------------------------------------------------------

    def manifest(self, run: DbRun, types: Sequence[str], rows: str | None) -> Iterator[bytes]:
        """Yield the manifest's JSON in pieces, with files of these types and, for sample files, these rows."""
        ranges = parse_rows(rows) if rows is not None else None
        if run.status == "pending":
            raise ConflictError(
                f"the evaluation run {run.name} has not begun; there is nothing to download yet."
            )
        document, comma = _spool(), b""
        totals = {kind: {"files": 0, "bytes": 0} for kind in types}
        document.write(b'{"files":[')
        for kind, entry in self._entries(run, types, ranges):
            document.write(comma + orjson.dumps(entry))
            comma = b","
            totals[kind]["files"] += 1
            totals[kind]["bytes"] += entry["size"]
        by_type = {kind: total for kind, total in totals.items() if total["files"]}
        whole = {name: sum(total[name] for total in by_type.values()) for name in ("files", "bytes")}
        document.write(b'],"totals":' + orjson.dumps({**whole, "by_type": by_type}) + b"}")
        document.seek(0)
        return _blocks(document)

    def _entries(
        self, run: DbRun, types: Sequence[str], ranges: Ranges | None
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        for name in (_LOGS, _JOURNAL, "artifacts", _METRICS, _SUMMARY, "trajectories"):
            kind = _DERIVED.get(name, name)
            if kind in types and name in _DERIVED:
                with suppress(BlobNotFound):
                    token, size = self._derive(run, name)
                    yield kind, {"path": name, "size": size, "token": token, "sha256": token}
            elif kind in types:
                files = (
                    select(DbRunFile.source_row_index, DbRunFile.path, DbRunFile.size, DbRunFile.sha256)
                    .where(DbRunFile.run_id == run.id, DbRunFile.kind == kind)
                    .order_by(DbRunFile.path)
                    .execution_options(yield_per=_ROWS_AT_ONCE)
                )
                with self._db.session() as session:
                    for row, path, size, sha256 in session.execute(files):
                        if ranges is None or _is_in(ranges, row):
                            digest = {"sha256": sha256} if sha256 is not None else {}
                            yield kind, {"path": path, "size": size, **digest}

    def urls(self, run: DbRun, wanted: Sequence[DownloadItem]) -> list[DownloadItem]:
        """Return the wanted files that exist, with their URLs."""
        paths = {file.path for file in wanted if file.path not in _DERIVED}
        named = (DbRunFile.run_id == run.id, DbRunFile.path.in_(paths))
        stored = {row.path: row for row in self._db.scalars(select(DbRunFile).where(*named))}

        @cache
        def derived_now(path: str) -> str | None:
            with suppress(BlobNotFound):
                return self._derive(run, path)[0]
            return None

        def derived_url(file: DownloadItem) -> str | None:
            token = file.token if file.token is not None else derived_now(file.path)
            if token is None or not _TOKEN.fullmatch(token):
                return None
            # A lost file is derived again, once however many tokens are asked for.
            if not self._has(run, file.path, token) and (
                file.path == _JOURNAL or derived_now(file.path) != token
            ):
                return None
            key = _key(run, file.path, token)
            return self._blobs.signed_get_url(key, filename=file.path, ttl=LINK_TTL)

        found = []
        for file in wanted:
            url = None
            if file.path in _DERIVED:
                url = derived_url(file)
            elif (row := stored.get(file.path)) is not None:
                url = self.url(row, filename=file.path.rpartition("/")[2], ttl=LINK_TTL)
            if url is not None:
                token = {"token": file.token} if file.token else {}
                found.append(DownloadItem(path=file.path, url=url, **token))
        return found

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
                .execution_options(yield_per=_ROWS_AT_ONCE)
            )
            for sample in rows:
                trajectory = f"trajectories/{item_name(sample.row_index, sample.run_index)}.json"
                known = {name: getattr(sample, name) for name in _INDEXED}
                entry = IndexEntry(
                    **known,
                    duration_ms=round(sample.duration_ms) or None,  # zero means unknown
                    trajectory_filename=TRAJECTORY_FILE if trajectory in with_trajectory else None,
                )
                yield entry.to_line()

    def _log(self, run: DbRun) -> Iterator[bytes]:
        with self._db.session() as session:
            lines = session.scalars(
                select(DbLogLine)
                .where(DbLogLine.subject_id == run.id)
                .order_by(DbLogLine.id)
                .execution_options(yield_per=_ROWS_AT_ONCE)
            )
            for line in lines:
                details = f" {json.dumps(line.details, sort_keys=True)}" if line.details else ""
                text = f"{wire_time(line.timestamp)} {line.level.upper()} [{line.step}] {line.message}{details}\n"
                yield text.encode("utf-8")


def pack_files(db: Database, blobs: BlobStore, run_id: str, keep_lease: Callable[[], None]) -> None:
    """Move the small files of a run from the database into blobs."""
    mine = DbConversation.run_id == run_id
    asked = select(DbConversation.path).where(mine).order_by(DbConversation.path).limit(100_000)
    while True:
        paths = db.scalars(asked)
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
            some_packed = packed[start : start + _BATCH]
            moved = mine, DbConversation.path.in_([path for path, _, _ in some_packed])
            with db.transaction() as session:
                session.execute(
                    update(DbRunFile),
                    [
                        {"run_id": run_id, "path": path, "blob_key": key, "offset": offset, "length": length}
                        for path, offset, length in some_packed
                    ],
                )
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


def parse_types(text: str | None) -> tuple[str, ...]:
    """Return the file types that a comma-separated list names; ``metrics`` and ``trajectories`` by default."""
    if text is None or not text.strip():
        return ("metrics", "trajectories")
    named = [part.strip().lower() for part in text.split(",")]
    if unknown := sorted({name for name in named if name not in TYPES}):
        raise OsmosisError(
            f"there are no files of the type '{unknown[0][:40]}'; the types are {', '.join(TYPES)}.",
            details={"field": "types"},
        )
    return tuple(dict.fromkeys(named))


def parse_rows(text: str) -> list[tuple[int, int]]:
    """Return the ranges named by ``3,7,10-20`` as first and last row, sorted and disjoint."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(parse_ranges(text)):
        if merged and low <= merged[-1][1]:
            low, high = merged[-1][0], max(high, merged.pop()[1])
        merged.append((low, high))
    return merged


def _blocks(document: BinaryIO) -> Iterator[bytes]:
    with document:
        yield from iter(partial(document.read, _BLOCK_BYTES), b"")


def _is_in(ranges: Ranges, row: int | None) -> bool:
    if row is None:
        return False
    position = bisect.bisect_right(ranges, (row, sys.maxsize)) - 1
    return position >= 0 and row <= ranges[position][1]


def _metrics(run: DbRun) -> bytes:
    metrics, threshold = run.metrics or {}, (run.results or {}).get("pass_threshold")
    empty = dict.fromkeys(("total_samples", "completed_samples", "graded", "passed", "failed", "skipped"), 0)
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
        "summary": metrics.get("summary")
        or {**empty, "pass_rate": 0.0, "pass_threshold": threshold, "tokens_used": 0},
    }
    if "estimates" in metrics:
        document["estimates"] = metrics["estimates"]
    return json.dumps(document, indent=2, ensure_ascii=False).encode("utf-8") + b"\n"


def _key(run: DbRun, path: str, token: str) -> str:
    return f"runs/{run.id}/derived/{token}/{path}"


def _spool() -> BinaryIO:
    return cast(BinaryIO, tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES))
