"""Fold journal segments into blobs: while a run is active, and completely when it ends.

A blob is stored before the row that names it, and the transaction that adds the row also deletes the folded ones. A
crash in between leaves an unreferenced blob under the run's prefix.
"""

from __future__ import annotations

import gzip
import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from itertools import takewhile
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbJournalSegment, DbRun
from osmosis_ai.platform.runs.journal_segments import SEGMENTS_FOLDER, journal_segments, segment_lines
from osmosis_ai.platform.runs.stored_journal import pack_journal
from osmosis_ai.redaction import Redactor

FOLD_BYTES = 8 << 20
_LEVEL = 4
_LOOKS = 32
"""How often rows are looked at on the way to a fold: what came since is made one of them."""


class JournalFolding:
    """Folds the journals of one platform's runs."""

    def __init__(self, db: Database, blobs: BlobStore) -> None:
        self._db = db
        self._blobs = blobs

    def fold_if_large(self, run_id: str) -> None:
        """Fold a run's journal rows of at least :data:`FOLD_BYTES` except the last one, and merge smaller recent rows into one."""
        lengths = select(DbJournalSegment.seq, DbJournalSegment.length).where(
            DbJournalSegment.run_id == run_id, DbJournalSegment.content.is_not(None)
        )
        with self._db.session() as session:
            found = session.execute(lengths.order_by(DbJournalSegment.generation, DbJournalSegment.seq)).all()
            is_large = sum(length for _, length in found) >= FOLD_BYTES
            last = list(takewhile(lambda each: each.length < FOLD_BYTES // _LOOKS // 2, reversed(found)))
            rows = _rows(session, run_id) if is_large or len(last) > 1 else []
        if is_large:
            self._fold(run_id, rows[:-1])
        elif rows:
            self._join(run_id, [row for row in rows if row.seq >= last[-1].seq])

    def fold_all(self, run_id: str) -> None:
        """Fold every row of a run's journal; blocking."""
        with self._db.session() as session:
            rows = _rows(session, run_id)
        self._fold(run_id, rows)

    def store(self, run: DbRun, redactor: Redactor, still_mine: Callable[[], None]) -> str | None:
        """Store an ended run's whole journal without secrets and return its key; None if there is no journal."""
        with self._db.session() as session:
            segments = journal_segments(session, run.id)
        lines = self._lines(segments, still_mine)
        return pack_journal(lines, run.id, self._blobs, redactor, revision=run.revision)

    def _lines(self, segments: Sequence[DbJournalSegment], still_mine: Callable[[], None]) -> Iterator[bytes]:
        for segment in segments:
            still_mine()
            yield from segment_lines(self._blobs, segment)

    def _fold(self, run_id: str, rows: Sequence[DbJournalSegment]) -> None:
        if not rows:
            return
        whole = b"".join(row.content or b"" for row in rows)
        first = rows[0]
        name = f"{first.generation}-{first.offset}-{secrets.token_hex(8)}.jsonl.gz"
        key = f"runs/{run_id}/{SEGMENTS_FOLDER}/{name}"
        self._blobs.put(key, BytesIO(gzip.compress(whole, _LEVEL, mtime=0)))
        with self._db.transaction() as session:
            is_folded = self._replace(session, run_id, rows, whole, blob_key=key)
        if not is_folded:
            self._blobs.delete(key)

    def _join(self, run_id: str, rows: Sequence[DbJournalSegment]) -> None:
        whole = b"".join(row.content or b"" for row in rows)
        with self._db.transaction() as session:
            self._replace(session, run_id, rows, whole, content=whole)

    def _replace(
        self, session: Session, run_id: str, rows: Sequence[DbJournalSegment], whole: bytes, **where: Any
    ) -> bool:
        """Put one row in the place of many that follow each other; False where one of them is not what it was."""
        first = rows[0]
        session.get(DbRun, run_id, with_for_update=True)
        these = (
            DbJournalSegment.run_id == run_id,
            DbJournalSegment.generation == first.generation,
            DbJournalSegment.seq.between(first.seq, rows[-1].seq),
        )
        now = session.execute(select(DbJournalSegment.seq, DbJournalSegment.sha256).where(*these))
        if {row.seq: row.sha256 for row in now} != {row.seq: row.sha256 for row in rows}:
            return False
        session.execute(delete(DbJournalSegment).where(*these))
        session.add(
            DbJournalSegment(
                run_id=run_id,
                generation=first.generation,
                seq=first.seq,
                attempt=rows[-1].attempt,
                offset=first.offset,
                length=len(whole),
                sha256=hashlib.sha256(whole).hexdigest(),
                **where,
            )
        )
        return True


def is_worth_a_look(before: int, after: int) -> bool:
    """Tell whether the rows of a journal that grew from ``before`` to ``after`` bytes are to be measured."""
    step = max(1, FOLD_BYTES // _LOOKS)
    return before // step != after // step


def _rows(session: Session, run_id: str) -> list[DbJournalSegment]:
    return [segment for segment in journal_segments(session, run_id) if segment.content is not None]
