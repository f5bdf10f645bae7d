"""Journals on the platform: accepted line by line while a run is open, and packed into one blob when it ends.

Accepted bytes never change. The rows of the samples are created in the transaction that accepts their lines, so a counted
attempt can always be read. The packed journal has what the rows have no columns for: scores by name, judgements and
replaced records. It is compressed and without secrets; after a retry it begins with the former one.
"""

from __future__ import annotations

import gzip
import hashlib
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, BinaryIO, cast

import msgspec
from sqlalchemy import func, insert, select
from sqlalchemy.orm import Session

from osmosis_ai.api.models.workers import MOST_JOURNAL_LINES, JournalPart
from osmosis_ai.config.decisions import LARGEST_REWARD
from osmosis_ai.controller.record import TerminalRecord, check_crc
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.db.base import unstorable, upsert
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbJournalChunk, DbRunShard, DbSample
from osmosis_ai.platform.log_lines import storable
from osmosis_ai.platform.runs.lifecycle import JournalOffsetError
from osmosis_ai.redaction import Redactor

_IN_MEMORY_BYTES = 8 << 20
_CHUNKS_AT_ONCE = 8
_LARGEST_AMOUNT = 1e15
"""For dollars and milliseconds: sums of many stay finite."""
# Half the time of the default level, for a tenth more bytes.
_LEVEL = 4
_COLUMNS = (
    *("row_index", "run_index", "rollout_id", "status", "reward", "tokens", "duration_ms", "boundary"),
    *("prompt_tokens", "completion_tokens", "cost_usd", "model_calls", "model_latency_ms", "lost_attempts"),
    *("row_digest", "finish_reasons", "judge_calls", "judge_tokens", "judge_cost_usd", "judge_outside_scale"),
)
_TEXTS = (
    *("error_type", "error", "category", "scores", "unscored", "finish_reason", "judgements"),
    *("input", "output", "notes", "parts", "finish_reasons"),
)
"""Fields whose content the SDK did not write."""
_DETAILS = ("scores", "unscored", "finish_reason", "judgements")
_DETAIL_MARKS = tuple(f'"{name}":'.encode() for name in _DETAILS)

AttemptKey = tuple[int, int]
"""Row and number of the attempt."""


class JournalDivergedError(ConflictError):
    """Journal lines differ from those that were accepted; ``details.offset`` is the first byte that does."""

    def __init__(self, offset: int) -> None:
        super().__init__(
            f"the journal has other bytes at offset {offset} than the platform has accepted there.",
            details={"offset": offset},
        )


@dataclass(frozen=True, slots=True)
class NewLines:
    """Parsed lines of a journal; each sample has the offset of its line's end in ``position``."""

    offset: int
    content: bytes
    samples: list[dict[str, Any]]


def read_lines(part: JournalPart) -> NewLines:
    content, samples = part.lines.encode(), []
    if content and not content.endswith(b"\n"):
        raise OsmosisError("a part of a journal has whole lines, each with its newline.")
    if content.count(b"\n") > MOST_JOURNAL_LINES:
        raise OsmosisError(f"a part of a journal has at most {MOST_JOURNAL_LINES} lines.")
    offset = part.offset
    for line in content.split(b"\n")[:-1]:
        try:
            row = sample_row(TerminalRecord.from_line(line))
        except ValueError as error:
            raise _damaged_line(offset, str(error)) from None
        if (column := unstorable(DbSample, row)) is not None:
            raise _damaged_line(offset, f"its '{column}' cannot be stored")
        if (column := _out_of_range(row)) is not None:
            raise _damaged_line(offset, f"its '{column}' is out of range")
        offset += len(line) + 1
        samples.append({**row, "position": offset})
    return NewLines(part.offset, content, samples)


def append_lines(
    session: Session, run_id: str, shard_id: str, lines: NewLines, stored: int, accepted: int
) -> tuple[int, int]:
    """Accept the lines that are new, in the transaction that has locked the shard; repeated bytes are compared.

    Takes and returns the number of stored bytes of the shard's journal, and of accepted records of the run.
    """
    if lines.offset > stored:
        raise JournalOffsetError(stored)
    repeated = lines.content[: stored - lines.offset]
    if repeated:
        _compare(session, shard_id, lines.offset, repeated)
    new = lines.content[len(repeated) :]
    if not new:
        return stored, accepted
    chunk = {"shard_id": shard_id, "offset": stored, "content": new}
    session.connection().execute(insert(DbJournalChunk), chunk)
    samples = [sample for sample in lines.samples if sample["position"] > stored]
    scored: set[AttemptKey] = set()
    for sample in samples:
        attempt = sample["row_index"], sample["run_index"]
        if attempt in scored:
            raise _scored_again()
        if sample["reward"] is not None:
            scored.add(attempt)
    rows = [
        {**sample, "run_id": run_id, "position": position}
        for position, sample in enumerate(samples, accepted + 1)
    ]
    if not upsert(session, DbSample, rows, unless="reward"):
        raise _scored_again()
    return stored + len(new), accepted + len(rows)


def _scored_again() -> ConflictError:
    return ConflictError("there is another record of an attempt that already has a score.")


def read_journal(db: Database, shard_id: str) -> Iterator[bytes]:
    """Yield the accepted chunks of a shard's journal, in order; without a connection while the caller is busy."""
    mine = select(DbJournalChunk.offset, DbJournalChunk.content).where(DbJournalChunk.shard_id == shard_id)
    last = -1
    while True:
        some = mine.where(DbJournalChunk.offset > last).order_by(DbJournalChunk.offset).limit(_CHUNKS_AT_ONCE)
        found = db.rows(some)
        if not found:
            return
        yield from (content for _, content in found)
        last = found[-1][0]


def journal_digest(db: Database, shard_id: str) -> str:
    digest = hashlib.sha256()
    for chunk in read_journal(db, shard_id):
        digest.update(chunk)
    return digest.hexdigest()


def run_lines(db: Database, blobs: BlobStore, run_id: str, former: str | None) -> Iterator[bytes]:
    """Yield the lines of an open run: of its journal before a retry (a blob's key), then of its shards."""
    if former is not None:
        yield from stored_lines(blobs, former)
    shards = select(DbRunShard.id).where(DbRunShard.run_id == run_id).order_by(DbRunShard.number)
    for shard_id in db.scalars(shards):
        for chunk in read_journal(db, shard_id):
            yield from BytesIO(chunk)  # not `splitlines`, which also splits at a carriage return


def pack_journal(lines: Iterable[bytes], key: str, blobs: BlobStore, redactor: Redactor) -> bool:
    """Store a run's whole journal without secrets under ``key``; return whether it has any lines."""
    is_empty = True
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES) as packed:
        with gzip.GzipFile("", "wb", _LEVEL, packed, mtime=0) as journal:
            for line in lines:
                is_empty = False
                journal.write(_without_secrets(line, redactor))
        if is_empty:
            return False
        packed.seek(0)
        blobs.put(key, cast(BinaryIO, packed))
    return True


def stored_lines(blobs: BlobStore, key: str) -> Iterator[bytes]:
    """Yield the lines of a packed journal, oldest first; a ConflictError if it is damaged."""
    try:
        with blobs.open(key) as packed, gzip.open(packed, "rb") as journal:
            for line in journal:
                check_crc(line)
                yield line
    except (gzip.BadGzipFile, EOFError, ValueError, zlib.error) as error:
        raise _damaged(key, error) from error


def journal_details(
    blobs: BlobStore, key: str, *, most_bytes: int | None = None, only: AttemptKey | None = None
) -> dict[AttemptKey, dict[str, Any]] | None:
    """Return by attempt what a packed journal has and ``samples`` has no column for; None if it exceeds ``most_bytes``."""
    found: dict[AttemptKey, dict[str, Any]] = {}
    size = 0
    for line in stored_lines(blobs, key):
        # Most lines are of another attempt, or have no details, and are not parsed.
        if only is not None and b'"row_index":%d,' % only[0] not in line:
            continue
        if not found and not any(mark in line for mark in _DETAIL_MARKS):
            continue
        try:
            record = TerminalRecord.from_line(line)
        except ValueError as error:
            raise _damaged(key, error) from error
        attempt = (record.row_index, record.run_index)
        details = {name: value for name in _DETAILS if (value := getattr(record, name)) is not None}
        found.pop(attempt, None)
        if details and only in (None, attempt):
            found[attempt], size = details, size + len(line)
        if most_bytes is not None and size > most_bytes:
            return None
    return found


def sample_row(record: TerminalRecord) -> dict[str, Any]:
    """Return the columns of a sample, without its run."""
    texts = {name: getattr(record, name) for name in ("error", "input", "output", "notes")}
    parts = record.parts
    return {
        **{name: getattr(record, name) for name in _COLUMNS},
        "source_row_index": record.source_row_index if record.source_row_index is not None else 0,
        "error_type": storable(record.error_type)[:64] if record.error_type is not None else None,
        "resumed": False,
        "category": storable(record.category)[:64] if record.category is not None else None,
        **{name: storable(text) if text is not None else None for name, text in texts.items()},
        "finish_reasons": {storable(name): number for name, number in (record.finish_reasons or {}).items()}
        or None,
        "parts": {storable(name): number for name, number in parts.items()} if parts else None,
    }


def _out_of_range(row: Mapping[str, Any]) -> str | None:
    """Return the column of a sample whose number would spoil the numbers of its run."""
    amounts = ("cost_usd", "judge_cost_usd", "model_latency_ms", "duration_ms")
    for name in amounts:
        if row[name] is not None and not 0 <= row[name] <= _LARGEST_AMOUNT:
            return name
    if any(not 0 <= number < 1 << 31 for number in (row["finish_reasons"] or {}).values()):
        return "finish_reasons"
    if row["reward"] is not None and row["status"] != "success":
        return "reward"
    for name, numbers in (("reward", [row["reward"]]), ("parts", (row["parts"] or {}).values())):
        if any(number is not None and abs(number) > LARGEST_REWARD for number in numbers):
            return name
    return None


def _compare(session: Session, shard_id: str, offset: int, repeated: bytes) -> None:
    end = offset + len(repeated)
    overlapping = (DbJournalChunk.shard_id == shard_id, DbJournalChunk.offset < end)
    longer = DbJournalChunk.offset + func.length(DbJournalChunk.content) > offset
    asked = select(DbJournalChunk).where(*overlapping, longer).order_by(DbJournalChunk.offset)
    chunks = session.scalars(asked).all()
    known = b"".join(chunk.content for chunk in chunks)[offset - chunks[0].offset :]
    if not known.startswith(repeated):
        pairs = enumerate(zip(known, repeated, strict=False))
        raise JournalDivergedError(offset + next(place for place, (ours, theirs) in pairs if ours != theirs))


def _without_secrets(line: bytes, redactor: Redactor) -> bytes:
    text = line.decode()
    if redactor.text(text) == text:
        return line
    # Not the whole text: a secret may be a number, or the name of a field.
    record = TerminalRecord.from_line(line)
    texts = {name: redactor.tree(getattr(record, name)) for name in _TEXTS}
    return msgspec.structs.replace(record, **texts).to_line()


def _damaged_line(offset: int, problem: str) -> OsmosisError:
    return OsmosisError(f"the journal is damaged at byte {offset}: {problem}.", details={"offset": offset})


def _damaged(key: str, error: Exception) -> ConflictError:
    return ConflictError(f"the journal that is stored as {key} is damaged: {error}.")
