"""Local cache of remote blobs, with least-recently-used eviction.

Several processes share it. Files are named by their blob's identity, so they never change and need no
validation. A file in use has a shared lock and is not removed.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from osmosis_ai.platform.blobs.incoming import IncomingFile, make_directories, sweep

LIMIT_BYTES = 8 << 30
"""How much of the disk copies take (8 GiB); one that is larger than all of it stays while it is read."""
_TRIES = 5
_NOTED_EVERY_S = 300.0
"""How often it is noted that a copy is used: each time its file is changed, for those who know a file by its times."""


class BlobCopies:
    """The copies in a directory."""

    def __init__(
        self, root: Path, *, limit_bytes: int = LIMIT_BYTES, now: Callable[[], float] = time.time
    ) -> None:
        self._kept = root / "copies"
        self._incoming = root / "incoming"
        self._limit = limit_bytes
        self._now = now

    @contextmanager
    def open(self, name: str, fetch: Callable[[IncomingFile], None]) -> Iterator[tuple[Path, BinaryIO]]:
        """Give the copy ``name``, which stays while the block lasts, and its open file."""
        path = self._kept / name
        handle = self._hold(path)
        for _ in range(_TRIES):
            if handle is not None:
                break
            self._make(path, fetch)
            handle = self._hold(path)
        if handle is None:
            raise OSError(f"the copy {path} is removed as often as it is made")
        with handle:
            self.trim()
            yield path, handle
        self.trim()

    def trim(self) -> None:
        """Remove the copies that were not used for longest until the rest is small enough."""
        found: list[tuple[int, int, Path]] = []
        with suppress(FileNotFoundError):
            for path in self._kept.iterdir():
                with suppress(FileNotFoundError):
                    status = path.stat()
                    found.append((status.st_mtime_ns, status.st_size, path))
        excess = sum(size for _, size, _ in found) - self._limit
        for _, size, path in sorted(found):
            if excess <= 0:
                return
            if _removed(path):
                excess -= size

    def sweep(self, now: datetime) -> None:
        """Remove what killed processes left, and what is too much."""
        sweep(self._incoming, now=now)
        self.trim()

    def _hold(self, path: Path) -> BinaryIO | None:
        """Open a copy so that nobody removes it; None when there is none."""
        while True:
            try:
                handle = path.open("rb")
            except FileNotFoundError:
                return None
            fcntl.flock(handle, fcntl.LOCK_SH)
            if _is_at(handle, path):
                self._note_use(handle)
                return handle
            handle.close()

    def _note_use(self, handle: BinaryIO) -> None:
        # A time that lies ahead is of a clock that was set back since: it is no use either.
        if abs(self._now() - os.fstat(handle.fileno()).st_mtime) >= _NOTED_EVERY_S:
            os.utime(handle.fileno())

    def _make(self, path: Path, fetch: Callable[[IncomingFile], None]) -> None:
        make_directories(path.parent)
        with IncomingFile(self._incoming) as incoming:
            fetch(incoming)
            incoming.seal()
            # Another's copy has the same bytes, and may be in use.
            incoming.move_to_free(path)


def _removed(path: Path) -> bool:
    """Remove a copy that nobody uses; whether it is gone."""
    try:
        with path.open("rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # If it was replaced after being opened, the new file may be in use.
            if not _is_at(handle, path):
                return False
            path.unlink()
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    return True


def _is_at(handle: BinaryIO, path: Path) -> bool:
    """Whether an open file is the one that ``path`` names."""
    try:
        return os.path.samestat(os.fstat(handle.fileno()), path.stat())
    except FileNotFoundError:
        return False
