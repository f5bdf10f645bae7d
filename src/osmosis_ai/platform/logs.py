"""Log lines of runs and datasets: written in one batch, read in pages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from sqlalchemy import insert, select, text
from sqlalchemy.orm import Session

from osmosis_ai.api.models.base import LogEntry, LogPage, wire_time
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import OF_MARKS, DbLogLine
from osmosis_ai.platform.log_lines import LogLine, bounded, bounded_details, storable
from osmosis_ai.redaction import Redactor

_NOTHING_SECRET = Redactor(())

Direction = Literal["older", "newer"]


class LogStore:
    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def append(self, subject_id: str, lines: Iterable[LogLine]) -> None:
        """Add lines to the log of a dataset or run, all or none."""
        with self._db.transaction() as session:
            self.add(session, subject_id, lines)

    def add(self, session: Session, subject_id: str, lines: Iterable[LogLine]) -> None:
        """Like :meth:`append`, in the caller's transaction. Workers have removed secrets from their lines."""
        now = self._clock.now()
        rows = [
            {
                "subject_id": subject_id,
                "timestamp": line.timestamp or now,
                "level": line.level,
                "step": storable(line.step[:64]),
                "message": bounded(storable(line.message)),
                "details": None if line.details is None else bounded_details(line.details, _NOTHING_SECRET),
            }
            for line in lines
        ]
        if rows:
            session.execute(insert(DbLogLine), rows)

    def page(
        self, subject_id: str, *, limit: int = 50, direction: Direction = "older", cursor: str | None = None
    ) -> LogPage:
        """Return some lines, oldest first."""
        older = direction == "older"
        query = select(DbLogLine).where(DbLogLine.subject_id == subject_id)
        if cursor is not None:
            place = _place(cursor)
            query = query.where(DbLogLine.id < place if older else DbLogLine.id > place)
        query = query.order_by(DbLogLine.id.desc() if older else DbLogLine.id).limit(limit + 1)
        found = self._db.scalars(query)
        shown = found[:limit]
        more = len(found) > limit
        return LogPage(
            logs=[_entry(line) for line in (reversed(shown) if older else shown)],
            next_cursor=str(shown[-1].id) if more else None,
        )

    def marks(self, subject_id: str, step: Literal["plan", "warning"], *, limit: int = 100) -> list[LogEntry]:
        """Return the newest lines that are marks on a run's curves, of one kind, oldest first."""
        lines = select(DbLogLine).where(DbLogLine.subject_id == subject_id, DbLogLine.step == step)
        # A partial index is used only if the statement contains the step as a literal.
        lines = lines.where(text(OF_MARKS)).order_by(DbLogLine.id.desc())
        return [_entry(line) for line in reversed(self._db.scalars(lines.limit(limit)))]


def _entry(line: DbLogLine) -> LogEntry:
    return LogEntry.of(line, timestamp=wire_time(line.timestamp))


def _place(cursor: str) -> int:
    if cursor.isascii() and cursor.isdigit() and len(cursor) < 19:
        return int(cursor)
    raise OsmosisError("the cursor did not come from a page of this log.", details={"field": "cursor"})
