"""Who fetches into a mirror: one at a time, and a Git that outlives its platform is still the one.

The lock is the kernel's and belongs to an open file, which a fetch inherits: when the platform is killed, its Git may
work on for a while, and nobody else begins before that has ended, too. Whoever has the lock therefore knows that lock
files which Git itself has left in the mirror are nobody's.
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
    """Remove what a Git that was killed has left locked; only for whoever has the mirror's lock."""
    for place in (mirror.glob("*.lock"), (mirror / "refs").rglob("*.lock")):
        for lock in place:
            lock.unlink(missing_ok=True)
