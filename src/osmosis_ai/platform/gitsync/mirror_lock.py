"""Exclusive lock for fetches into a mirror, inherited by Git.

The kernel lock belongs to an open file that a fetch inherits. If the platform is killed, its Git may continue for a
while, and other fetches wait for it as well. The lock's holder therefore knows that Git's own lock files in the mirror
are stale.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_S = 0.05


@contextmanager
def exclusive_fetch(path: Path, *, timeout_s: float) -> Iterator[int]:
    """Hold the lock of ``path`` while the block lasts; gives the descriptor that holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise TimeoutError from None
                time.sleep(_POLL_S)
        yield descriptor
    finally:
        os.close(descriptor)


def remove_stale_locks(mirror: Path) -> None:
    """Remove lock files of a killed Git. The caller must hold the mirror's lock."""
    for place in (mirror.glob("*.lock"), (mirror / "refs").rglob("*.lock")):
        for lock in place:
            lock.unlink(missing_ok=True)
