"""A cache of record positions in large dataset files, for the life of the process, to start reading at a later row.

Invariant: a place is used only for the bytes it was found in. A file is identified by device, inode, size and both of
its times, taken from the reader's open descriptor; a replaced, grown or rewritten file is a different one.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass

_BYTES_APART = 64 << 10
_MOST_PLACES = 4096
_MOST_FILES = 16
# Some file systems have timestamps of two seconds, so a newer file may change again without a new timestamp.
_SETTLED_NS = 3_000_000_000


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """The position of a record and the reader's state there."""

    rows: int
    offset: int
    line: int
    column: int = 1
    columns: tuple[str, ...] = ()
    first_number: int = 0


class RecordPlaces:
    """The places of one file, in ascending order and evenly spaced; the larger the file, the larger the spacing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: list[RecordPlace] = []
        self._apart = _BYTES_APART
        self.due_at = self._apart

    def before(self, rows: int) -> RecordPlace | None:
        """Return the last known place with at most ``rows`` rows before it."""
        with self._lock:
            found = bisect_right(self._places, rows, key=lambda place: place.rows)
            return self._places[found - 1] if found else None

    def keep(self, place: RecordPlace) -> None:
        """Remember a place unless a later one is known."""
        with self._lock:
            if place.offset < self.due_at:
                return
            self._places.append(place)
            if len(self._places) > _MOST_PLACES:
                self._places = self._places[1::2]
                self._apart *= 2
            self.due_at = self._places[-1].offset + self._apart


_lock = threading.Lock()
_known: OrderedDict[tuple[object, ...], RecordPlaces] = OrderedDict()


def places_in(descriptor: int, kind: type) -> RecordPlaces:
    """Return the cached places of an open file, to which a reader adds."""
    is_now = os.fstat(descriptor)
    if is_now.st_size < _BYTES_APART or time.time_ns() - is_now.st_ctime_ns < _SETTLED_NS:
        return RecordPlaces()
    # The change time detects a change in place even if the modification time was reset.
    times = is_now.st_mtime_ns, is_now.st_ctime_ns
    key = (kind, is_now.st_dev, is_now.st_ino, is_now.st_size, *times)
    with _lock:
        places = _known.setdefault(key, RecordPlaces())
        _known.move_to_end(key)
        while len(_known) > _MOST_FILES:
            _known.popitem(last=False)
    return places
