"""Synchronize a local journal with the platform: a worker starts where the platform's bytes end.

This machine's file is continued only if the platform's bytes are its beginning, by their digests. Any other file is
archived and replaced by the platform's.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from osmosis_ai.api.wire.workers import InputDownload, JournalSegment, StoredJournal
from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import open_regular, sync_directory

Fetch = Callable[[InputDownload, Path], None]
_BLOCK_BYTES = 1 << 20


class StoredJournalError(OsmosisError):
    """What the platform serves of a journal is not what it says it has."""

    is_infrastructure = True


@dataclass(frozen=True)
class Followed:
    """Result of a journal synchronization."""

    results: int
    generation: int
    is_rebuilt: bool = False
    set_aside: Path | None = None
    done_again: int = 0

    @property
    def sentence(self) -> str:
        """Line for the run's log; empty if this machine simply continues."""
        if not self.is_rebuilt:
            return ""
        said = f"continues from the {self.results} records of the journal on the platform; other attempts run with the same seeds"
        if self.set_aside is None:
            return said
        return (
            f"{said}: {self.done_again} of this machine's own journal, which is kept as {self.set_aside.name}"
        )


def follow_journal(events: Path, stored: StoredJournal, fetch: Fetch) -> Followed:
    """Make ``events`` a journal that begins with what the platform has; blocking."""
    if not stored.bytes or _begins_with(events, stored):
        return Followed(_lines(events), stored.generation)
    rebuilt = events.with_name(f".{events.name}.partial")
    events.parent.mkdir(parents=True, exist_ok=True)
    with rebuilt.open("wb") as target:
        for segment in sorted(stored.segments, key=lambda each: each.offset):
            if segment.offset != target.tell():
                raise StoredJournalError(f"the platform's journal has a gap at byte {target.tell()}.")
            _append(segment, target, fetch, rebuilt.with_name(f".{events.name}.segment"))
        if target.tell() != stored.bytes:
            raise StoredJournalError(
                f"the platform's journal ends at byte {target.tell()} of {stored.bytes}."
            )
        target.flush()
        os.fsync(target.fileno())
    results, aside, again = _lines(rebuilt), None, 0
    if events.is_file() and not events.is_symlink():
        again = _lines(events) - _common_lines(events, rebuilt)
        if again:
            aside = set_aside(events)
    rebuilt.replace(events)
    sync_directory(events.parent)
    generation = stored.generation + (aside is not None)
    return Followed(results, generation, True, aside, again)


def set_aside(events: Path) -> Path:
    """Keep a journal that is gone on with no more, under a name that says so; return that."""
    aside = _free_name(events)
    events.rename(aside)
    return aside


def _begins_with(events: Path, stored: StoredJournal) -> bool:
    """Tell whether a file's beginning is, by its digests, what the platform has."""
    try:
        with open_regular(events) as own:
            if os.fstat(own.fileno()).st_size < stored.bytes:
                return False
            return all(_digest(own, each.offset, each.size) == each.sha256 for each in stored.segments)
    except OSError:
        return False


def _digest(file: BinaryIO, offset: int, size: int) -> str:
    file.seek(offset)
    digest = hashlib.sha256()
    while size and (block := file.read(min(size, _BLOCK_BYTES))):
        digest.update(block)
        size -= len(block)
    return digest.hexdigest()


def _append(segment: JournalSegment, target: BinaryIO, fetch: Fetch, fetched: Path) -> None:
    """Add a segment, unpacked and checked."""
    fetch(segment, fetched)
    digest, left = hashlib.sha256(), segment.size
    opened = gzip.open(fetched, "rb") if segment.packed else fetched.open("rb")  # noqa: SIM115 - closed below
    try:
        with opened as content:
            # One byte more than announced shows what does not end: a bomb is never unpacked.
            while block := content.read(min(_BLOCK_BYTES, left + 1)):
                left -= len(block)
                if left < 0:
                    break
                digest.update(block)
                target.write(block)
    except (EOFError, gzip.BadGzipFile) as error:
        raise StoredJournalError(f"a part of the platform's journal cannot be unpacked: {error}.") from None
    finally:
        fetched.unlink(missing_ok=True)
    if left or digest.hexdigest() != segment.sha256:
        raise StoredJournalError(f"the platform's journal has other bytes at {segment.offset} than it says.")


def _lines(path: Path) -> int:
    try:
        with open_regular(path) as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(_BLOCK_BYTES), b""))
    except OSError:
        return 0


def _common_lines(one: Path, other: Path) -> int:
    known: set[bytes] = set()
    with open_regular(other) as file:
        known.update(hashlib.sha256(line).digest() for line in file)
    with open_regular(one) as file:
        return sum(hashlib.sha256(line).digest() in known for line in file)


def _free_name(events: Path) -> Path:
    number, name = 1, events.with_name(f"{events.name}.diverged")
    while name.exists():
        number += 1
        name = events.with_name(f"{events.name}.diverged-{number}")
    return name
