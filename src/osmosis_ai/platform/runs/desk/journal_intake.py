"""Accept a worker's journal in parts by offset, each once.

Accepted bytes never change. A part at the journal's end is accepted in the transaction that also creates the rows of
its samples. Any other part is first compared with the stored bytes, outside any transaction, and only its excess is
new. Each part is a row of its own; ``journal_folding.py`` combines small ones later.

A worker that archived a journal file of its own continues under the next generation, which starts with the stored
bytes. Rows only get the new number, and parts of the earlier generation are refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import bindparam, func, insert, select, update
from sqlalchemy.orm import Session

from osmosis_ai.api.wire.workers import MOST_JOURNAL_LINES, JournalPart
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.db.base import unstorable, upsert
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbJournalSegment, DbRun, DbSample
from osmosis_ai.platform.runs.heard_runs import HeardRun
from osmosis_ai.platform.runs.journal_segments import segment_bytes
from osmosis_ai.platform.runs.journalled import sample_row
from osmosis_ai.platform.runs.lifecycle import FRUITFUL, JournalOffsetError, LeaseLostError


class JournalDivergedError(ConflictError):
    """A part has other bytes than those that were accepted; ``details.offset`` says where."""

    def __init__(self, offset: int) -> None:
        super().__init__(
            f"the journal has other bytes at offset {offset} than the platform has accepted there.",
            details={"offset": offset},
        )


@dataclass(frozen=True, slots=True)
class NewLines:
    """What a part has beyond what is stored."""

    generation: int
    offset: int
    content: bytes
    samples: Sequence[dict[str, Any]]


def as_next(run_id: str, part: JournalPart) -> NewLines:
    """Return a part as what comes next in a run's journal; whether it does, :func:`take_lines` finds out."""
    content = _lines_of(part)
    samples = _samples(run_id, content, part.offset, part.resumed)
    return NewLines(part.generation, part.offset, content, samples)


def compare_part(db: Database, blobs: BlobStore, run_id: str, part: JournalPart) -> NewLines:
    """Return what ``part`` has beyond what is stored of a run's journal; blocking."""
    content = _lines_of(part)
    with db.session() as session:
        # Two numbers of the row; all of it is read where it is written.
        numbers = select(DbRun.journal_generation, DbRun.journal_bytes).where(DbRun.id == run_id)
        if (found := session.execute(numbers).one_or_none()) is None:
            raise LeaseLostError(f"the run {run_id} is gone.")
        generation, stored = found
        if not _is_of(generation, part.generation) or part.offset > stored:
            raise JournalOffsetError(stored)
        known = content[: stored - part.offset]
        overlapped = _overlapped(session, run_id, generation, part.offset, len(known)) if known else ()
    for segment in overlapped:
        _compare(blobs, segment, known, part.offset)
    new = content[len(known) :]
    offset = part.offset + len(known)
    return NewLines(part.generation, offset, new, _samples(run_id, new, offset, part.resumed))


def _is_of(generation: int, said: int) -> bool:
    """Tell whether what was said belongs to a journal of ``generation``, or begins the next one."""
    return said in (generation, generation + 1)


def _lines_of(part: JournalPart) -> bytes:
    content = part.lines.encode()
    if content and not content.endswith(b"\n"):
        raise OsmosisError("a part of a journal has whole lines, each with its newline.")
    if content.count(b"\n") > MOST_JOURNAL_LINES:
        raise OsmosisError(
            f"a part of a journal has {MOST_JOURNAL_LINES} lines at most; the rest waits for the next one."
        )
    return content


def take_lines(session: Session, run: DbRun | HeardRun, new: NewLines) -> bool:
    """Accept ``new`` as part of the transaction that holds ``run``; False where it is not what comes next."""
    if not _is_of(run.journal_generation, new.generation) or new.offset != run.journal_bytes:
        return False
    if new.content:
        if new.generation != run.journal_generation:
            _begin_generation(session, run, new.generation)
        _append(session, run, new)
        run.journal_bytes += len(new.content)
        run.fruitless = FRUITFUL
        upsert(session, DbSample, new.samples)
    return True


def _overlapped(
    session: Session, run_id: str, generation: int, offset: int, length: int
) -> Sequence[DbJournalSegment]:
    query = select(DbJournalSegment).where(
        DbJournalSegment.run_id == run_id,
        DbJournalSegment.generation == generation,
        DbJournalSegment.offset < offset + length,
        DbJournalSegment.offset + DbJournalSegment.length > offset,
    )
    return session.scalars(query.order_by(DbJournalSegment.seq)).all()


def _compare(blobs: BlobStore, segment: DbJournalSegment, known: bytes, offset: int) -> None:
    """Compare what was sent from ``offset`` on with a segment, where both have bytes."""
    start = max(segment.offset, offset)
    sent = known[start - offset : segment.offset + segment.length - offset]
    if len(sent) == segment.length and hashlib.sha256(sent).hexdigest() == segment.sha256:
        return
    stored = segment_bytes(blobs, segment)[start - segment.offset :][: len(sent)]
    if stored != sent:
        same = next(index for index, pair in enumerate(zip(stored, sent, strict=True)) if pair[0] != pair[1])
        raise JournalDivergedError(start + same)


def _samples(run_id: str, content: bytes, offset: int, resumed: int) -> list[dict[str, Any]]:
    samples = []
    for line in content.split(b"\n")[:-1]:
        try:
            record = TerminalRecord.from_line(line)
        except ValueError as error:
            raise OsmosisError(
                f"the journal is damaged at byte {offset}: {error}.", details={"offset": offset}
            ) from None
        end = offset + len(line) + 1
        row = {**sample_row(run_id, record), "resumed": offset < resumed, "position": end}
        if (wrong := unstorable(DbSample, row)) is not None:
            raise OsmosisError(
                f"the journal is damaged at byte {offset}: no `{wrong}` of a sample is like this.",
                details={"offset": offset},
            )
        samples.append(row)
        offset = end
    return samples


def _begin_generation(session: Session, run: DbRun | HeardRun, generation: int) -> None:
    """Assign the new generation's number to the stored journal rows."""
    mine = DbJournalSegment.run_id == run.id
    session.execute(update(DbJournalSegment).where(mine).values(generation=generation))
    run.journal_generation = generation


def _append(session: Session, run: DbRun | HeardRun, new: NewLines) -> None:
    row = {
        "its_run": run.id,
        "its_generation": new.generation,
        "its_attempt": run.attempt,
        "its_offset": new.offset,
        "its_length": len(new.content),
        "its_sha256": hashlib.sha256(new.content).hexdigest(),
        "its_content": new.content,
    }
    session.connection().execute(_next_segment(), row)


@cache
def _next_segment() -> Any:
    table: Any = DbJournalSegment.__table__
    columns = ("run_id", "generation", "attempt", "offset", "length", "sha256", "content")
    names = (
        "its_run",
        "its_generation",
        "its_attempt",
        "its_offset",
        "its_length",
        "its_sha256",
        "its_content",
    )
    values = [
        bindparam(name, type_=table.c[column].type) for name, column in zip(names, columns, strict=True)
    ]
    mine = (table.c.run_id == bindparam("its_run"), table.c.generation == bindparam("its_generation"))
    # What is stored cannot change meanwhile: the run's row is locked.
    row = select(*values, func.coalesce(func.max(table.c.seq) + 1, 0)).where(*mine)
    return insert(table).from_select([*columns, "seq"], row)
