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

from osmosis_ai.platform.blobs.local import IncomingFile, make_directories, sweep

LIMIT_BYTES = 8 << 30
"""The size of the cache (8 GiB); a larger copy stays while it is read."""
_TRIES = 5
# Recording each use would change the file's times, which other programs identify it by.
_USE_RECORDED_EVERY_S = 300.0


class BlobCopies:
    """The copies in a directory."""

    def __init__(self, root: Path, *, limit_bytes: int = LIMIT_BYTES) -> None:
        self._copies = root / "copies"
        self._incoming = root / "incoming"
        self._limit = limit_bytes

    @contextmanager
    def open(self, name: str, fetch: Callable[[IncomingFile], None]) -> Iterator[tuple[Path, BinaryIO]]:
        """Provide the copy ``name`` and its open file; it is not removed within the block."""
        path = self._copies / name
        for _ in range(_TRIES):
            handle = _open_locked(path)
            if handle is not None:
                break
            make_directories(path.parent)
            with IncomingFile(self._incoming) as incoming:
                fetch(incoming)
                incoming.seal()
                # A copy that another process made has the same bytes, and may be in use.
                incoming.move_to_free(path)
        else:
            raise OSError(f"the copy {path} is removed as often as it is made")
        with handle:
            self.trim()
            yield path, handle
        self.trim()

    def trim(self) -> None:
        """Remove the least recently used copies until the rest is small enough."""
        found: list[tuple[int, int, Path]] = []
        with suppress(FileNotFoundError):
            for path in self._copies.iterdir():
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
        """Remove the leftovers of killed processes, and trim."""
        sweep(self._incoming, now=now)
        self.trim()


def _open_locked(path: Path) -> BinaryIO | None:
    """Open a copy so that it is not removed; None if there is none."""
    while True:
        try:
            handle = path.open("rb")
        except FileNotFoundError:
            return None
        fcntl.flock(handle, fcntl.LOCK_SH)
        if _is_at(handle, path):
            # A time in the future is from a clock that was set back since.
            if abs(time.time() - os.fstat(handle.fileno()).st_mtime) >= _USE_RECORDED_EVERY_S:
                os.utime(handle.fileno())
            return handle
        handle.close()


def _removed(path: Path) -> bool:
    """Remove a copy unless it is in use; return whether it is gone."""
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
    try:
        return os.path.samestat(os.fstat(handle.fileno()), path.stat())
    except FileNotFoundError:
        return False
