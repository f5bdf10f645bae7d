"""Limit the size of a log that another process appends to, keeping its end.

The writer must have opened it for appending, so that new lines follow the new end. Lines written
while the file is shortened can be lost. The first line says that earlier output was removed.
"""

from __future__ import annotations

from pathlib import Path

MOST_BYTES = 64 * 1024 * 1024
"""How large a log may become, as far as it is looked at in time."""

KEPT_BYTES = 16 * 1024 * 1024
"""How much of its end is kept then."""


def shorten_log(path: Path, *, most_bytes: int = MOST_BYTES, kept_bytes: int = KEPT_BYTES) -> bool:
    """Keep the last lines of a log that is larger than ``most_bytes``; return whether it was."""
    try:
        log = path.open("r+b")
    except FileNotFoundError:
        return False
    with log:
        size = log.seek(0, 2)
        if size <= most_bytes:
            return False
        log.seek(size - kept_bytes)
        log.readline(kept_bytes)  # what is left of a line
        kept = log.read()
        log.seek(0)
        log.write(f"[{size - len(kept)} bytes were left out here: the log had grown too large]\n".encode())
        log.write(kept)
        log.truncate()
        return True
