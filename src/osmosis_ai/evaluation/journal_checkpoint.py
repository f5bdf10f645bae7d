"""What a journal's records come to, beside the journal, so that going on with a run does not parse them all again.

The checkpoint of ``events.jsonl`` is ``events.checkpoint``: a block for each 10,000 records, appended when so many are
on the disk. A block is a line of JSON and a table: of which bytes of the journal it is, their SHA-256, what was spent
up to their end, and of each record what ledger and metrics need. It is made from the journal's bytes and of nothing
else, so that it gives the numbers that reading these bytes would, to the digit.

The journal decides. What a resume finds in the checkpoint counts as far as it is whole (each block has a digest over
itself and the one before it, as the journal's lines do) and of this schema; what stands behind that in the journal is
read. If one byte of the journal before that point is another one, or missing, all of it is read, and the checkpoint is
made anew. Nothing is flushed: what a power cut takes is read from the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import orjson

from osmosis_ai.controller.attempt import BOUNDARIES, STATUSES
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.budget import Budget, Spending, Spendings
from osmosis_ai.evaluation.journal import parsed_lines
from osmosis_ai.evaluation.journal_chain import BEFORE_THE_FIRST, Chain, opened, sealed
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.evaluation.run_log import RunLog
from osmosis_ai.evaluation.sample_columns import RECORD, RecordColumns
from osmosis_ai.files import open_regular, write_atomic

EVERY = 10_000
"""Records of a block."""
_VERSION = 2
_MEANING = repr((_VERSION, RECORD, STATUSES, BOUNDARIES, sys.byteorder)).encode()
SCHEMA = hashlib.sha256(_MEANING).hexdigest()[:16]
"""Of what a block's numbers mean; one of another schema is as good as none."""
_LONGEST_HEADER = 1 << 24
_MOST_RECORDS = 1 << 20
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Block:
    """Some of a journal's records."""

    start: int
    end: int
    records: int
    journal_sha256: str
    reasons: list[str]
    spent: Spendings
    last_digest: str
    digest: bytes
    table_at: int


@dataclass(frozen=True)
class JournalCheckpoint:
    """As much of a checkpoint as its journal bears out."""

    path: Path
    blocks: tuple[Block, ...] = ()

    @classmethod
    def of(cls, path: Path, journal: Path) -> JournalCheckpoint:
        """Read a checkpoint and compare it with its journal, whose lock is held; whatever is wrong, it has less in it."""
        try:
            with open_regular(path) as file:
                blocks = tuple(_whole_blocks(file))
            with open_regular(journal) as lines:
                fits = all(_sha256(lines, each.end - each.start) == each.journal_sha256 for each in blocks)
        except OSError:
            return cls(path)
        return cls(path, blocks if fits else ())

    @property
    def end(self) -> int:
        """Where the records that are not in it start in the journal."""
        return self.blocks[-1].end if self.blocks else 0

    @property
    def records(self) -> int:
        """How many are in it."""
        return sum(block.records for block in self.blocks)

    @property
    def spent(self) -> Spendings:
        """What they have cost."""
        return self.blocks[-1].spent if self.blocks else Spendings()

    def chain(self) -> Chain:
        """Return the journal's chain of digests up to :attr:`end`."""
        if not self.blocks:
            return Chain()
        return Chain(self.blocks[-1].last_digest.encode(), lines=self.records)

    def columns(self) -> Iterator[RecordColumns]:
        """Yield the records, in the journal's order, block by block."""
        import numpy as np

        for block in self.blocks:
            # Opened for each: who takes the next one may take his time.
            with open_regular(self.path) as file:
                file.seek(block.table_at)
                table = file.read(_table_bytes(block.records))
                if len(table) != _table_bytes(block.records):
                    raise OsmosisError(f"`{self.path}` was changed while it was read; run it again.")
            yield RecordColumns(np.frombuffer(table, dtype=np.dtype(RECORD)), block.reasons)


class CheckpointWriter:
    """Adds what a journal has got to its checkpoint."""

    def __init__(self, checkpoint: JournalCheckpoint, journal: Path, *, every: int | None = None) -> None:
        self._path = checkpoint.path
        self._journal = journal
        self._every = every or EVERY
        self._records, self._end = checkpoint.records, checkpoint.end
        self._spending = Spending(Budget())
        self._spending.go_on_from(checkpoint.spent)
        self._chain = checkpoint.chain()
        self._last = checkpoint.blocks[-1].digest if checkpoint.blocks else BEFORE_THE_FIRST
        self._size = _end_of(checkpoint.blocks[-1]) if checkpoint.blocks else 0
        self.problem: str | None = None

    def is_due(self, records: int) -> bool:
        """Tell whether there is a block to be written, when the journal has so many records."""
        return self.problem is None and records - self._records >= self._every

    async def keep_up(self, records: int, log: RunLog) -> None:
        """Write what is due, in another thread, and say once that it can not be done."""
        if self.is_due(records):
            await asyncio.to_thread(self.extend, records)
            if self.problem is not None:
                told = f"no checkpoint of the journal is written any more: {self.problem}"
                log.write("run", told, level="WARNING")

    def extend(self, records: int) -> None:
        """Write the blocks that are due; blocking, some tenths of a second for each."""
        try:
            while self.is_due(records):
                if not self._add_block():
                    return
        except (OSError, OsmosisError, ValueError, OverflowError) as error:
            self.problem = str(error)

    def _add_block(self) -> bool:
        """Write the next block; False when the journal has too few records for it."""
        digest = hashlib.sha256()
        end = self._end
        records: list[tuple[int, TerminalRecord]] = []
        lines = parsed_lines(self._journal, TerminalRecord.from_line, self._end, chain=self._chain)
        with contextlib.closing(lines):
            for offset, line, record in islice(lines, self._every):
                digest.update(line)
                self._spending.add_record(record)
                records.append((offset, record))
                end = offset + len(line)
        if len(records) < self._every:
            self.problem = "the journal has fewer records than were written to it"
            return False
        columns = RecordColumns.of(records, len(records))
        header = {
            "schema": SCHEMA,
            "start": self._end,
            "end": end,
            "records": len(columns),
            "journal_sha256": digest.hexdigest(),
            "reasons": columns.reasons,
            "spent": tuple(self._spending.counted),
            "last_digest": self._chain.last.decode(),
        }
        table = columns.table.tobytes()
        line, self._last = sealed(
            orjson.dumps(header, option=orjson.OPT_APPEND_NEWLINE), _behind(self._last, table)
        )
        self._append(line + table)
        self._end, self._records = end, self._records + len(columns)
        return True

    def _append(self, block: bytes) -> None:
        """Write a block behind those that count, in place of whatever stands there."""
        if self._size == 0:
            write_atomic(self._path, block, durable=False)
        else:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(descriptor, "wb") as file:
                file.truncate(self._size)
                file.seek(self._size)
                file.write(block)
        self._size += len(block)


def _whole_blocks(file: IO[bytes]) -> Iterator[Block]:
    """Yield blocks until one is not whole, altered, of another schema, or not the next one of its journal."""
    last, end = BEFORE_THE_FIRST, 0
    while line := file.readline(_LONGEST_HEADER):
        try:
            body, stated = opened(line)
            header = orjson.loads(body)
            if stated is None or header["schema"] != SCHEMA or header["start"] != end:
                return
            table_at, table = file.tell(), file.read(_table_bytes(header["records"]))
            if sealed(body, _behind(last, table))[1] != stated:
                return
            block = _block(header, stated, table_at)
        except (ValueError, TypeError, KeyError):
            return
        if len(table) != _table_bytes(block.records) or block.end <= end:
            return
        yield block
        last, end = stated, block.end


def _block(header: dict[str, Any], digest: bytes, table_at: int) -> Block:
    names = ("start", "end", "records", "journal_sha256", "reasons", "last_digest")
    return Block(
        **{name: header[name] for name in names},
        spent=Spendings(*header["spent"]),
        digest=digest,
        table_at=table_at,
    )


def _table_bytes(records: int) -> int:
    import numpy as np

    if not 0 < records <= _MOST_RECORDS:
        raise ValueError(f"no block has {records} records")
    return records * np.dtype(RECORD).itemsize


def _end_of(block: Block) -> int:
    return block.table_at + _table_bytes(block.records)


def _behind(last: bytes, table: bytes) -> bytes:
    """Return what a block's line is chained to: the block before it, and its own table."""
    return last + hashlib.sha256(table).hexdigest().encode()


def _sha256(file: IO[bytes], length: int) -> str:
    """Return the digest of the next ``length`` bytes of a file, or of fewer where there are no more."""
    digest = hashlib.sha256()
    while length > 0 and (chunk := file.read(min(length, _CHUNK_BYTES))):
        digest.update(chunk)
        length -= len(chunk)
    return digest.hexdigest()
