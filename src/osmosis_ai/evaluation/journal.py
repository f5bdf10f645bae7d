"""The journal: append-only, one record per line, each durable before it is acknowledged.

A record counts if and only if its whole line, newline included, is on the disk, and :meth:`Journal.append` returns
only then. Everything else in a run directory can be rebuilt from the journal. Appends that arrive while the disk is
busy share the next write and its one fsync (group commit).

Each line carries a checksum. Opening cuts off an incomplete last line: it was never acknowledged. Any other damaged
line stops the reader, which names it; :func:`salvage` drops such lines and keeps a copy of the damaged journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.results import AttemptTable
from osmosis_ai.files import open_regular, replacing, sync_directory

# Appending changes the file's size, which fdatasync flushes too; it does not write the inode's times.
_flush_to_disk = getattr(os, "fdatasync", os.fsync)
_BLOCK_BYTES = 1 << 16
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_SHOWN_LINES = 10


class JournalCorruptionError(OsmosisError):
    """A committed line is not a record."""

    default_code = "CONFLICT"


class JournalWriteError(OsmosisError):
    """A record could not be written; it was not acknowledged."""

    default_code = "INTERNAL"


class Journal:
    """A file of lines to append to; ``size`` is its committed bytes."""

    def __init__(
        self,
        path: Path,
        *,
        full_hint: str = "free some space, then run the same command again; finished results are kept",
    ) -> None:
        """Open ``path``, creating it if necessary and cutting off an incomplete last line."""
        self.path = path
        self._full_hint = full_hint
        self._waiting: list[tuple[bytes, asyncio.Future[int]]] = []
        self._flusher: asyncio.Task[None] | None = None
        self._failure: JournalWriteError | None = None
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            self.size = _committed_size(self._descriptor)
            if self.size != os.fstat(self._descriptor).st_size:
                os.ftruncate(self._descriptor, self.size)
                os.fsync(self._descriptor)
            sync_directory(path.parent)
        except OSError as error:
            raise self._write_error(error) from error
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")

    async def append(self, record: TerminalRecord) -> int:
        """Make ``record`` durable and return the offset of its line."""
        return await self.append_line(record.to_line())

    async def append_line(self, line: bytes) -> int:
        """Make a line, its newline included, durable and return its offset."""
        if self._failure is not None:
            raise self._failure
        durable: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((line, durable))
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush())
        return await durable

    async def close(self) -> None:
        """Finish what was appended and release the file."""
        if self._flusher is not None:
            await self._flusher
        self._thread.shutdown()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    async def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch, self._waiting = self._waiting, []
            offset = self.size
            try:
                await loop.run_in_executor(self._thread, self._write, b"".join(line for line, _ in batch))
            except OSError as error:
                # After a failed fsync the kernel may have dropped the pages, so no later append can succeed.
                self._failure = self._write_error(error)
                for _, durable in batch + self._waiting:
                    if not durable.done():
                        durable.set_exception(self._failure)
                self._waiting = []
                return
            for line, durable in batch:
                if not durable.done():
                    durable.set_result(offset)
                offset += len(line)

    def _write(self, block: bytes) -> None:
        """Write and flush ``block``; on an error, restore the file if the disk permits."""
        view = memoryview(block)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
            _flush_to_disk(self._descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.size)
            raise
        self.size += len(block)

    def _write_error(self, error: OSError) -> JournalWriteError:
        problem = "the disk is full" if error.errno in _FULL else "the disk refused a write"
        reason = os.strerror(error.errno) if error.errno else str(error)
        return JournalWriteError(
            f"{problem}: a result could not be written to `{self.path}` ({reason}). "
            "Earlier results are safe; this attempt stays pending.",
            details={"path": str(self.path)},
            hint=self._full_hint,
        )


def _committed_size(descriptor: int) -> int:
    """Return the offset after the last newline."""
    end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


class Entry(NamedTuple):
    """A record, and its line of the journal."""

    offset: int
    line: bytes
    record: TerminalRecord

    @property
    def end(self) -> int:
        return self.offset + len(self.line)


def replay(path: Path, start: int = 0, *, without_crc: bool = False) -> Iterator[Entry]:
    """Yield the record of every complete line from byte ``start`` on; a damaged line is a JournalCorruptionError."""
    for offset, line in committed_lines(path, start):
        try:
            record = TerminalRecord.from_line(line, without_crc=without_crc)
        except ValueError as error:
            raise damaged_line(path, offset, error) from None
        yield Entry(offset, line, record)


def damaged_line(path: Path, offset: int, error: ValueError) -> JournalCorruptionError:
    with open_regular(path) as journal:
        number = journal.read(offset).count(b"\n") + 1
    return JournalCorruptionError(
        f"The journal '{path}' is damaged at line {number}: {error}.",
        details={"path": str(path), "line": number},
        hint=salvage_hint(path),
    )


def committed_lines(path: Path, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, line with its newline) of every terminated line from byte ``start`` on."""
    offset = start
    with open_regular(path) as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield offset, line
            offset += len(line)


def load_results(
    path: Path,
    table: AttemptTable,
    *,
    start: int = 0,
    without_crc: bool = False,
    each: Callable[[TerminalRecord], None] = lambda _: None,
) -> int:
    """Read a journal, if it exists, from byte ``start`` on into ``table``; return where its last complete line ends.

    ``each`` is called with every record. A record of an attempt that the run does not have is a JournalCorruptionError.
    """
    end = start
    for entry in replay(path, start, without_crc=without_crc) if path.exists() else ():
        record = entry.record
        try:
            table.set_result(record, entry.offset)
        except ValueError:
            raise not_part_of_run(record.row_index, record.run_index, path) from None
        each(record)
        end = entry.end
    return end


def not_part_of_run(row: int, attempt: int, path: Path) -> JournalCorruptionError:
    """Return the error for a record of an attempt that the run does not have."""
    return JournalCorruptionError(
        f"The journal '{path}' is damaged: it has a result of row {row}, attempt {attempt}, which is not part of the run.",
        hint=salvage_hint(path),
    )


def salvage_hint(path: Path) -> str:
    """Return how to repair the damaged journal of a local run."""
    return (
        f"run it again with '--name {path.parent.name} --salvage' to keep the intact results, "
        "or with '--fresh' to archive the damaged run and start again"
    )


class JournalReader:
    """Reads single lines of a journal by their offsets, in any order; a context manager."""

    def __init__(self, path: Path, *, without_crc: bool = False) -> None:
        self._file = open_regular(path)
        self._without_crc = without_crc

    def __enter__(self) -> JournalReader:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._file.close()

    def record(self, offset: int) -> TerminalRecord | None:
        """Return the record at ``offset``, or None if the journal ends before it."""
        line = self.line(offset)
        return TerminalRecord.from_line(line, without_crc=self._without_crc) if line is not None else None

    def line(self, offset: int) -> bytes | None:
        """Return the line at ``offset``, or None if the journal ends before it."""
        self._file.seek(offset)
        return self._file.readline() or None


class Salvage(NamedTuple):
    """The outcome of :func:`salvage`: number of results left, line numbers dropped, and the damaged copy."""

    intact: int
    dropped: tuple[int, ...] = ()
    damaged_copy: Path | None = None

    def describe(self) -> str:
        """Describe the outcome."""
        if self.damaged_copy is None:
            return f"The journal is not damaged; all {self.intact} results are intact."
        lines = ", ".join(map(str, self.dropped[:_SHOWN_LINES]))
        if len(self.dropped) > _SHOWN_LINES:
            lines += ", …"
        return (
            f"{self.intact} results are intact. Dropped line{'s' if len(self.dropped) > 1 else ''} {lines} of the "
            f"journal; attempts without a result run again. The damaged journal is saved as {self.damaged_copy.name}."
        )


def salvage(path: Path, belongs: Callable[[TerminalRecord], bool]) -> Salvage:
    """Reduce a damaged journal to its intact lines that belong to the run; no other process may write it."""
    intact, dropped = 0, []
    for number, (_, line) in enumerate(committed_lines(path), start=1):
        try:
            is_intact = belongs(TerminalRecord.from_line(line))
        except ValueError:
            is_intact = False
        if is_intact:
            intact += 1
        else:
            dropped.append(number)
    if not dropped:
        return Salvage(intact)
    copy, number = path.with_name(f"{path.name}.damaged"), 2
    while copy.exists():
        copy, number = path.with_name(f"{path.name}.damaged-{number}"), number + 1
    damaged = set(dropped)
    with replacing(path) as new:
        numbered = enumerate(committed_lines(path), start=1)
        new.writelines(line for number, (_, line) in numbered if number not in damaged)
        # The old journal gets its second name before the new one takes the first.
        try:
            os.link(path, copy)
        except OSError:  # a file system without links
            shutil.copy2(path, copy)
    return Salvage(intact, tuple(dropped), copy)
