"""Stored journal of an ended evaluation: compressed, without secrets, independent of the working directory.

It holds data that have no column in ``samples``: scores by name, judge calls, lost attempts. Its lines are chained like
the engine's (``evaluation/journal_chain.py``) and identical unless a secret was removed. Its key derives from the run's
id, so storing it again replaces it and deleting the run deletes it.
"""

from __future__ import annotations

import gzip
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, cast

import msgspec
import orjson

from osmosis_ai.controller.record import TerminalRecord, check_crc
from osmosis_ai.errors import ConflictError
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.redaction import Redactor

JOURNAL_NAME = "events.jsonl.gz"
"""Of a run's blobs: its journal, once it has ended."""
RETRIED_FOLDER = "retried"
"""Of a run's blobs: its journals after its retries, each of which holds all of it."""
_IN_MEMORY_BYTES = 8 << 20
# Half the time of the default level, for a tenth more bytes.
_LEVEL = 4
_BESIDE = (
    *("scores", "unscored", "finish_reason"),
    *("judge_calls", "judge_tokens", "judge_cost_usd", "judge_outside_scale", "judgements"),
)
_BESIDE_MARKS = tuple(f'"{name}":'.encode() for name in _BESIDE)

WorkItem = tuple[int, int]
"""Row and attempt."""


def pack_journal(
    lines: Iterable[bytes], run_id: str, blobs: BlobStore, redactor: Redactor, *, revision: int = 0
) -> str | None:
    """Store a run's journal, as far as it can be read; return its key, None where there is none."""
    # The journal before a retry is a segment of the one after it, so it must not change.
    name = f"{RETRIED_FOLDER}/{revision}-{JOURNAL_NAME}" if revision else JOURNAL_NAME
    key, is_empty = f"runs/{run_id}/{name}", True
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES) as packed:
        with gzip.GzipFile("", "wb", _LEVEL, packed, mtime=0) as journal:
            for line in lines:
                is_empty = False
                clean = _clean(line, redactor)
                if clean is None:
                    break
                journal.write(clean)
        if is_empty:
            return None
        packed.seek(0)
        blobs.put(key, cast(BinaryIO, packed))
    return key


def stored_lines(blobs: BlobStore, key: str) -> Iterator[bytes]:
    """Yield the lines of a stored journal, the oldest first, each found to be what was chained there."""
    try:
        with blobs.open(key) as packed, gzip.open(packed, "rb") as journal:
            for line in journal:
                check_crc(line)
                yield line
    except (gzip.BadGzipFile, EOFError, ValueError, zlib.error) as error:
        raise _damaged(key, error) from error


def stored_records(blobs: BlobStore, key: str) -> Iterator[TerminalRecord]:
    """Return the records of a stored journal, oldest first; of a work item the last one counts."""
    return (_record(line, key) for line in stored_lines(blobs, key))


def records_beside(
    blobs: BlobStore, key: str, *, most_bytes: int | None = None, only: WorkItem | None = None
) -> dict[WorkItem, dict[str, Any]] | None:
    """Return, by row and attempt, what a stored journal knows and the rows of ``samples`` have no column for."""
    found: dict[WorkItem, dict[str, Any]] = {}
    held = 0
    for line in stored_lines(blobs, key):
        # Most lines are of another sample, or have none of it: they are not parsed.
        if only is not None and b'"row_index":%d,' % only[0] not in line:
            continue
        if found or any(name in line for name in _BESIDE_MARKS):
            record = _record(line, key)
            item = (record.row_index, record.run_index)
            known = {name: value for name in _BESIDE if (value := getattr(record, name)) is not None}
            found.pop(item, None)
            if known and only in (None, item):
                found[item], held = known, held + len(line)
        if most_bytes is not None and held > most_bytes:
            return None
    return found


def _record(line: bytes, key: str) -> TerminalRecord:
    try:
        return TerminalRecord.from_line(line)
    except ValueError as error:
        raise _damaged(key, error) from error


def _damaged(key: str, error: Exception) -> ConflictError:
    return ConflictError(f"the journal that is stored as {key} is damaged: {error}.")


def _clean(line: bytes, redactor: Redactor) -> bytes | None:
    """Return a line's body without secrets; None where it is no whole record, as what stands behind is in doubt."""
    try:
        TerminalRecord.from_line(line)
        if not line.endswith(b"\n"):
            return None
        text = line.decode()
        if redactor.text(text) == text:
            return line
        # Not as text: the digits of a secret may be those of a number.
        return msgspec.convert(redactor.tree(orjson.loads(line)), TerminalRecord).to_line()
    except ValueError:
        return None
