"""The journal: the one place where a result becomes true.

Invariant: a record counts if and only if its whole line, newline included, is on the disk, and
:meth:`Journal.append` returns only then. Everything else in a run directory can be made again
from the journal. Appends that arrive while the disk is busy share the next write and its one
fsync (group commit), so durability costs one flush per moment, not one per record.

Each record is chained to the one before it by a digest (``journal_chain.py``), so that damage is seen when
the journal is read from its beginning.

On opening, an unterminated last line is cut off even if it would parse: nobody was told that it
counts. A terminated line that is not a record is never repaired, it is refused with its number.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeVar

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.journal_chain import BEFORE_THE_FIRST, Chain, opened, sealed
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.files import open_regular, regular_descriptor, sync_directory

# Appending changes the file's size, which fdatasync flushes too; it spares the inode's times.
_flush_to_disk = getattr(os, "fdatasync", os.fsync)
_BLOCK_BYTES = 1 << 16
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_RUN_AGAIN = "free some space, then start the run again: what is finished is kept"


Parsed = TypeVar("Parsed")


class JournalCorruptionError(OsmosisError):
    """A committed line is not a record."""

    default_code = "CONFLICT"


class JournalWriteError(OsmosisError):
    """The disk did not take a record; it was not acknowledged."""

    default_code = "INTERNAL"


class Journal:
    """Append-only file of terminal records, one canonical JSON line each."""

    def __init__(self, path: Path, descriptor: int, size: int, *, full_hint: str = _RUN_AGAIN) -> None:
        self.path = path
        self._descriptor = descriptor
        self._size = size
        self._full_hint = full_hint
        self._last_digest = _last_digest(path)
        self._waiting: list[_Append] = []
        self._flusher: asyncio.Task[None] | None = None
        self._failure: JournalWriteError | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")

    @classmethod
    def open(cls, path: Path, *, full_hint: str = _RUN_AGAIN) -> Journal:
        """Open ``path`` for appending, creating it when missing and cutting off an unfinished last line."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            size = _committed_size(descriptor)
            if size != os.fstat(descriptor).st_size:
                os.ftruncate(descriptor, size)
                os.fsync(descriptor)
            sync_directory(path.parent)
        except OSError as error:
            _refuse(path, error, full_hint)
        return cls(path, descriptor, size, full_hint=full_hint)

    @property
    def size(self) -> int:
        """Committed bytes."""
        return self._size

    def replay(self, chain: Chain | None = None, start: int = 0) -> Iterator[Entry]:
        """Yield every committed record, oldest first, in constant memory; the arguments are those of
        :func:`replay`."""
        return replay(self.path, start, chain=chain)

    async def append(self, record: TerminalRecord) -> int:
        """Make ``record`` durable and return its offset."""
        return await self._append(record.to_line(), chained=True)

    async def append_line(self, line: bytes) -> int:
        """Make a line, its newline included, durable as it is; return its offset."""
        return await self._append(line, chained=False)

    async def _append(self, line: bytes, *, chained: bool) -> int:
        if self._failure is not None:
            raise self._failure
        durable: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Append(line, chained, durable))
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
            offset = self._size
            lines = [self._in_chain(append) for append in batch]
            try:
                await loop.run_in_executor(self._thread, self._write, b"".join(lines))
            except OSError as error:
                self._fail(error, batch)
                return
            for line, append in zip(lines, batch, strict=True):
                if not append.durable.done():
                    append.durable.set_result(offset)
                offset += len(line)

    def _in_chain(self, append: _Append) -> bytes:
        """Return the line to be written. Should that fail, nothing is ever written behind it."""
        if not append.chained:
            return append.line
        line, self._last_digest = sealed(append.line, self._last_digest)
        return line

    def _write(self, block: bytes) -> None:
        """Write and flush ``block``; on an error the file is as before, as far as the disk lets it."""
        view = memoryview(block)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
            _flush_to_disk(self._descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(block)

    def _fail(self, error: OSError, batch: list[_Append]) -> None:
        # After a failed fsync the kernel may have dropped the pages: nothing more can be promised.
        self._failure = _write_error(self.path, error, self._full_hint)
        refused, self._waiting = batch + self._waiting, []
        for append in refused:
            if not append.durable.done():
                append.durable.set_exception(self._failure)


class _Append(NamedTuple):
    """A line that waits for the disk; ``chained`` ones get their digest when their predecessor is known."""

    line: bytes
    chained: bool
    durable: asyncio.Future[int]


class Entry(NamedTuple):
    """A record and the bytes of the journal it takes."""

    offset: int
    end: int
    record: TerminalRecord


def replay(path: Path, start: int = 0, *, chain: Chain | None = None) -> Iterator[Entry]:
    """Yield every terminated line of ``path`` from byte ``start`` on."""
    for offset, line, record in parsed_lines(path, TerminalRecord.from_line, start, chain=chain):
        yield Entry(offset, offset + len(line), record)


def parsed_lines(
    path: Path, parse: Callable[[bytes], Parsed], start: int = 0, *, chain: Chain | None = None
) -> Generator[tuple[int, bytes, Parsed], None, None]:
    """Yield (offset, line, what ``parse`` makes of it); what it refuses with a ValueError is damage."""
    followed = chain or (Chain() if start == 0 else None)
    before = chain.lines if chain is not None else 0
    counted = start == 0 or before > 0
    for number, (offset, line) in enumerate(committed_lines(path, start), start=before + 1):
        try:
            parsed = parse(line)
            if followed is not None:
                followed.follow(line)
        except ValueError as error:
            where = f"line {number}" if counted else f"byte {offset}"
            raise JournalCorruptionError(
                f"the journal `{path}` is damaged at {where}: {error}. "
                "A run is not continued from a damaged journal.",
                details={"path": str(path), "line": number if counted else None, "offset": offset},
                hint=salvage_hint(path),
            ) from None
        yield offset, line, parsed


def salvage_hint(path: Path) -> str:
    """Return what to do about the damaged journal of a run on this machine."""
    return (
        f"run it again with `--name {path.parent.name} --salvage`: what is intact is kept, the rest is done anew; "
        "or with `--fresh`: the damaged run is kept beside the new one"
    )


def committed_lines(path: Path, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, line with its newline) of every terminated line from byte ``start`` on."""
    offset = start
    with open_regular(path) as handle:
        handle.seek(start)
        for line in handle:
            if not line.endswith(b"\n"):
                return
            yield offset, line
            offset += len(line)


class JournalReader:
    """Reads single lines of a journal by their offsets, in whatever order; a context manager."""

    def __init__(self, path: Path) -> None:
        self._descriptor = regular_descriptor(path)
        self._size = os.fstat(self._descriptor).st_size
        self._start, self._block = 0, b""

    def __enter__(self) -> JournalReader:
        return self

    def __exit__(self, *_exc: object) -> None:
        os.close(self._descriptor)

    def record(self, offset: int) -> TerminalRecord | None:
        """Return the record at ``offset``, or None when it was committed after this reader was made."""
        line = self.line(offset)
        return TerminalRecord.from_line(line) if line is not None else None

    def line(self, offset: int) -> bytes | None:
        """Return the line at ``offset``, or None when it was committed after this reader was made."""
        if offset >= self._size:
            return None
        length = _BLOCK_BYTES
        while (end := self._block.find(b"\n", max(0, offset - self._start))) < 0 or offset < self._start:
            self._start, self._block = offset, os.pread(self._descriptor, length, offset)
            length *= 2
        return self._block[offset - self._start : end + 1]


def _committed_size(descriptor: int, *, before: int | None = None) -> int:
    """Return the offset after the last newline (``before`` an offset), looking from the end."""
    end = os.fstat(descriptor).st_size if before is None else before
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _last_digest(path: Path) -> bytes:
    """Return the digest that the next record is chained to: that of the last line."""
    for _, line in _from_last_line(path):
        _, stated = opened(line)
        if stated is not None:
            return stated
    return BEFORE_THE_FIRST


def _from_last_line(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, line) of the last terminated line, if there is one."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        end = _committed_size(descriptor)
        start = _committed_size(descriptor, before=end - 1) if end else 0
    finally:
        os.close(descriptor)
    yield from islice(committed_lines(path, start), 1)


def _write_error(path: Path, error: OSError, hint: str) -> JournalWriteError:
    what = "the disk is full" if error.errno in _FULL else "the disk refused a write"
    reason = os.strerror(error.errno) if error.errno else str(error)
    return JournalWriteError(
        f"{what}: a result could not be written to `{path}` ({reason}). "
        "Everything finished before is safe; what was not written stays pending.",
        details={"path": str(path), "errno": error.errno},
        hint=hint,
    )


def _refuse(path: Path, error: OSError, hint: str) -> NoReturn:
    raise _write_error(path, error, hint) from error
