"""Atomic file writes: a file is written in a staging directory and renamed when complete.

An aborted write (an exception, a full disk, ``kill -9``) leaves nothing under the final name. :func:`sweep` removes
leftovers in the staging directory.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType

from osmosis_ai.files import sync_directory
from osmosis_ai.platform.blobs.store import BlobInfo, BodyTooLarge, BodyTooSmall

BLOCK_BYTES = 1 << 20
# Younger ones may be between being made and being locked.
_SWEEP_AGE = timedelta(hours=1)


class IncomingFile:
    """Bytes on their way to a name; as a context manager it discards what was not moved there."""

    def __init__(self, place: Path, *, size: int | None = None) -> None:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=place)
        self._path = Path(name)
        self._handle = os.fdopen(descriptor, "wb")
        # Tells `sweep` that somebody is still writing.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self._expected = size
        self._received = 0
        self._digest = hashlib.sha256()
        self._kept = False

    def __enter__(self) -> IncomingFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes."""
        self._received += len(data)
        if self._expected is not None and self._received > self._expected:
            raise BodyTooLarge(f"more bytes came than the {self._expected} announced; nothing was kept.")
        self._digest.update(data)
        self._handle.write(data)

    def seal(self) -> BlobInfo:
        """Bring everything to the disk; no more bytes will come."""
        if self._expected is not None and self._received < self._expected:
            raise BodyTooSmall(
                f"{self._received} of {self._expected} announced bytes came; nothing was kept."
            )
        self._handle.flush()
        os.fsync(self._handle.fileno())
        return BlobInfo(self._received, self._digest.hexdigest())

    def move_to(self, target: Path) -> None:
        """Give the sealed bytes their name, in a directory that exists; what had it is replaced."""
        self._path.replace(target)
        self._kept = True
        self.discard()
        sync_directory(target.parent)

    def move_to_free(self, target: Path) -> None:
        """Give the sealed bytes their name, unless a file has it already: that one stays."""
        try:
            os.link(self._path, target)  # which, unlike a rename, fails where there is a file
        except OSError:
            # Some file systems have no second names.
            if not target.exists():
                self._path.replace(target)
        self.discard()
        sync_directory(target.parent)

    def discard(self) -> None:
        """Let go of everything that has not been moved to its name."""
        # On a full disk even the closing fails, when it flushes.
        with suppress(OSError):
            self._handle.close()
        if not self._kept:
            self._path.unlink(missing_ok=True)


def make_directories(directory: Path) -> None:
    """Make a directory and those above it, so that they survive a power cut."""
    if directory.is_dir():
        return
    make_directories(directory.parent)
    directory.mkdir(mode=0o700, exist_ok=True)
    sync_directory(directory.parent)


def sweep(place: Path, *, now: datetime) -> None:
    """Remove what processes that are gone have left in ``place``."""
    with suppress(FileNotFoundError):
        for entry in list(place.iterdir()):
            with suppress(FileNotFoundError):
                if now.timestamp() - entry.stat().st_mtime < _SWEEP_AGE.total_seconds():
                    continue
                if entry.is_dir():
                    shutil.rmtree(entry, ignore_errors=True)
                elif _is_abandoned(entry):
                    entry.unlink()


def _is_abandoned(path: Path) -> bool:
    with path.open("rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
