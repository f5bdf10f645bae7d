"""Journal of an active run: accepted segments, in rows or folded into blobs.

They become the stored journal at the end of the run (``stored_journal.py``); :func:`run_records` reads either.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterator, Sequence
from io import BytesIO

from sqlalchemy import select
from sqlalchemy.orm import Session

from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.platform.blobs.store import BlobError, BlobStore
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbJournalSegment, DbRun
from osmosis_ai.platform.runs.lifecycle import OPEN
from osmosis_ai.platform.runs.stored_journal import stored_records

SEGMENTS_FOLDER = "journal"
"""Of a run's blobs: where the segments of its journal are."""


def run_records(db: Database, blobs: BlobStore, run_id: str) -> Iterator[TerminalRecord]:
    """Yield the records of an active or ended run's journal, like :func:`stored_records`."""
    with db.session() as session:
        run = session.get_one(DbRun, run_id)
        # A run that is retried has both: that of its former end, and the segments since then.
        is_stored = run.journal_blob is not None and run.status not in OPEN
        segments = () if is_stored else journal_segments(session, run_id)
    if is_stored and run.journal_blob is not None:
        yield from stored_records(blobs, run.journal_blob)
    for segment in segments:
        for line in segment_lines(blobs, segment):
            yield TerminalRecord.from_line(line)


def journal_segments(session: Session, run_id: str) -> Sequence[DbJournalSegment]:
    """Return the segments of a run's journal, in their order."""
    mine = select(DbJournalSegment).where(DbJournalSegment.run_id == run_id)
    return session.scalars(mine.order_by(DbJournalSegment.generation, DbJournalSegment.seq)).all()


def segment_lines(blobs: BlobStore, segment: DbJournalSegment) -> Iterator[bytes]:
    """Yield a segment's lines; a BlobError at their end if they are not those that were accepted."""
    if segment.content is not None:
        yield from BytesIO(segment.content)
        return
    assert segment.blob_key is not None
    digest = hashlib.sha256()
    try:
        with blobs.open(segment.blob_key) as packed, gzip.open(packed, "rb") as unpacked:
            for line in unpacked:
                digest.update(line)
                yield line
    except (gzip.BadGzipFile, EOFError, zlib.error):
        digest = hashlib.sha256()
    if digest.hexdigest() != segment.sha256:
        raise BlobError(f"the stored bytes of {segment.blob_key} are damaged.")


def segment_bytes(blobs: BlobStore, segment: DbJournalSegment) -> bytes:
    """Return a segment's lines."""
    return segment.content if segment.content is not None else b"".join(segment_lines(blobs, segment))
