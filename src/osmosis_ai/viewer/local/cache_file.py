"""SQLite files in the user's cache: made again from what they were made from whenever anything is odd about them.

Invariant: deleting one costs time and nothing else. One that is damaged or of another release is replaced, and where
none can be written (no room, no right) it is kept in memory, which the reader is told.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import time
from pathlib import Path

_PATIENCE_S = 10.0
_KEPT_S = 30 * 24 * 3600
_FOLDER = "viewer"


class CacheFile:
    """A SQLite database that can be made again.

    Args:
        cache_dir: the user's cache directory.
        kind: what it is of, as in ``run``.
        source: the directory it is made from.
        schema: statements that make its tables; another text makes another database.

    Attributes:
        connection: in autocommit mode, usable from any thread, by one at a time.
        problem: why it is in memory, in a sentence; None where it is a file.
    """

    def __init__(self, cache_dir: Path, kind: str, source: Path, schema: str) -> None:
        self._schema = schema
        self._version = int(hashlib.sha256(schema.encode()).hexdigest()[:7], 16)
        self.path = cache_path(cache_dir, kind, source)
        self.problem: str | None = None
        try:
            self.connection = self._on_disk()
        except (OSError, sqlite3.Error) as error:
            self.connection = self._in_memory(error)

    def give_up(self, error: Exception) -> None:
        """Go on in memory, empty, after the file refused a write."""
        self.close()
        self.connection = self._in_memory(error)

    def close(self) -> None:
        """Release the file."""
        with contextlib.suppress(sqlite3.Error):
            self.connection.close()

    def _on_disk(self) -> sqlite3.Connection:
        if not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _remove_unused(self.path.parent)
            # What SQLite makes itself may be read by others.
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        os.utime(self.path)
        try:
            return self._prepared(str(self.path))
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            forget(self.path)
            return self._prepared(str(self.path))

    def _in_memory(self, error: Exception) -> sqlite3.Connection:
        reason = (error.strerror or error) if isinstance(error, OSError) else error
        self.problem = f"the index can not be kept in {self.path.parent} ({reason}): it is made anew, in memory, each time"
        return self._prepared(":memory:")

    def _prepared(self, path: str) -> sqlite3.Connection:
        connection = sqlite3.connect(path, timeout=_PATIENCE_S, isolation_level=None, check_same_thread=False)
        try:
            # Readers never wait for the one that writes; what a power cut takes is made again.
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA cache_size = -8192")  # KiB
            if connection.execute("PRAGMA user_version").fetchone()[0] != self._version:
                self._make(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _make(self, connection: sqlite3.Connection) -> None:
        names = [
            name
            for (name,) in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
            )
        ]
        drops = "".join(f'DROP TABLE "{name}";' for name in names)
        connection.executescript(
            f"BEGIN; {drops} {self._schema}; PRAGMA user_version = {self._version}; COMMIT"
        )


def cache_path(cache_dir: Path, kind: str, source: Path) -> Path:
    """Return where what is made from a directory is kept."""
    digest = hashlib.sha256(os.fsencode(source.absolute())).hexdigest()[:32]
    return cache_dir / _FOLDER / f"{kind}-{digest}.sqlite"


def forget(path: Path) -> None:
    """Remove a cache file and what SQLite keeps beside it."""
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(OSError):
            path.with_name(path.name + suffix).unlink()


def _remove_unused(folder: Path) -> None:
    """Remove the files that nobody has opened for a month: their runs are gone, or nobody looks at them."""
    oldest = time.time() - _KEPT_S
    with contextlib.suppress(OSError):
        for path in folder.glob("*.sqlite"):
            if path.stat().st_mtime < oldest:
                forget(path)
