"""The journal of an evaluation, kept with the run when its working directory goes: compressed, and without secrets.

It holds what the rows of ``samples`` have no column for: scores by name, what judges said, how often an attempt was
lost. Its lines are chained as the engine's are (``evaluation/journal_chain.py``), and the same bytes where no secret was
found in them. Its key follows from the run's id, so that storing it again replaces it, and deleting the run deletes it.
"""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import orjson

from osmosis_ai.evaluation.journal_chain import BEFORE_THE_FIRST, opened, sealed
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.redaction import Redactor

_IN_MEMORY_BYTES = 8 << 20
# Half the time of the default level, for a tenth more bytes.
_LEVEL = 4


def store_journal(events: Path, run_id: str, blobs: BlobStore, redactor: Redactor) -> str | None:
    """Store a run's journal, as far as it can be read; return its key, None where there is none. Blocking.

    Raises:
        OSError, OsmosisError: the file could not be read, or the blobs did not take it.
    """
    if not events.exists() or not events.stat().st_size:
        return None
    key = f"runs/{run_id}/events.jsonl.gz"
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES) as packed:
        with events.open("rb") as lines, gzip.GzipFile("", "wb", _LEVEL, packed, mtime=0) as journal:
            previous = BEFORE_THE_FIRST
            for line in lines:
                body = _clean(line, redactor)
                if body is None:
                    break
                line, previous = sealed(body, previous)
                journal.write(line)
        packed.seek(0)
        blobs.put(key, cast(BinaryIO, packed))
    return key


def stored_records(blobs: BlobStore, key: str) -> Iterator[TerminalRecord]:
    """Yield the records of a stored journal, oldest first; of a work item the last one counts.

    Raises:
        BlobNotFound: it is gone.
        OSError, EOFError, ValueError: it is damaged.
    """
    with blobs.open(key) as packed, gzip.open(packed, "rb") as journal:
        for line in journal:
            yield TerminalRecord.from_line(opened(line)[0])


def _clean(line: bytes, redactor: Redactor) -> bytes | None:
    """Return a line's body without secrets; None where it is no whole record, as what stands behind is in doubt."""
    body, _ = opened(line)
    try:
        TerminalRecord.from_line(body)
        if not line.endswith(b"\n"):
            return None
        text = body.decode()
        if redactor.text(text) == text:
            return body
        # Not as text: the digits of a secret may be those of a number.
        clean = {name: redactor.tree(value) for name, value in orjson.loads(body).items()}
        return orjson.dumps(clean, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)
    except ValueError:
        return None
