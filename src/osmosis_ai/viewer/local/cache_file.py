"""SQLite files in the user's cache: made again from what they were made from whenever anything is odd about them."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import sqlite3
import stat
import time
from pathlib import Path
from threading import Lock

from osmosis_ai.errors import reason_of
from osmosis_ai.sqlite_text import teach_holds

_PATIENCE_S = 10.0
_PAUSE_S = 0.01
_KEPT_S = 30 * 24 * 3600
_FOLDER = "viewer"
_APPLICATION = int.from_bytes(b"OsmC", "big")
_making = Lock()
_BESIDE = ("-wal", "-shm", "-journal")


class CacheFile:
    """A SQLite database that can be made again."""

    def __init__(self, cache_dir: Path, kind: str, source: Path, schema: str) -> None:
        self._schema = schema
        version = hashlib.sha256(schema.encode()).hexdigest()[:8]
        self.path = cache_dir / _FOLDER / f"{_stem(kind, source)}-{version}.sqlite"
        self.problem: str | None = None
        try:
            self.connection = self._on_disk()
        except (OSError, sqlite3.Error) as error:
            self.connection = self._instead(error)

    def give_up(self, error: Exception) -> None:
        """Go on empty: in a new file after this one turned out to be damaged, in memory after it refused a write."""
        self.close()
        self.connection = self._instead(error)

    def close(self) -> None:
        """Release the file."""
        with contextlib.suppress(sqlite3.Error):
            self.connection.close()

    def _on_disk(self) -> sqlite3.Connection:
        if not self.path.exists():
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _remove_unused(self.path.parent)
        _make(self.path)
        os.utime(self.path, follow_symlinks=False)
        return self._prepared(str(self.path))

    def _instead(self, error: Exception) -> sqlite3.Connection:
        if not isinstance(error, (OSError, sqlite3.OperationalError)):  # it was damaged
            _forget(self.path)
            try:
                return self._on_disk()
            except (OSError, sqlite3.Error) as another:
                error = another
        self.problem = f"the index cannot be kept in {self.path.parent} ({reason_of(error)}): it is rebuilt in memory each time"
        return self._prepared(":memory:")

    def _prepared(self, path: str) -> sqlite3.Connection:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return self._opened(path)
            except sqlite3.OperationalError as error:
                # Changing the journal mode fails at once if another process is doing so, whatever the busy timeout.
                if "locked" not in str(error) or time.monotonic() >= deadline:
                    raise
            time.sleep(_PAUSE_S)

    def _opened(self, path: str) -> sqlite3.Connection:
        connection = sqlite3.connect(path, timeout=_PATIENCE_S, isolation_level=None, check_same_thread=False)
        try:
            teach_holds(connection)
            _is_made(connection)
            # Of a new file: half as many reads and writes as with SQLite's usual pages.
            connection.execute("PRAGMA page_size = 8192")
            # Readers never wait for the one that writes; what a power cut takes is made again.
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA cache_size = -8192")  # KiB
            # In pages; each checkpoint waits for the disk twice.
            connection.execute("PRAGMA wal_autocheckpoint = 4000")
            # Who waited for another's lock finds the tables.
            connection.execute("BEGIN IMMEDIATE")
            if not _is_made(connection):
                for statement in self._schema.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        return connection


def forget_all(cache_dir: Path, kind: str, source: Path) -> None:
    """Remove what was made from a directory, by whichever release."""
    with contextlib.suppress(OSError):
        for path in (cache_dir / _FOLDER).glob(f"{_stem(kind, source)}-*.sqlite"):
            _forget(path)


def _stem(kind: str, source: Path) -> str:
    return f"{kind}-{hashlib.sha256(os.fsencode(source.absolute())).hexdigest()[:32]}"


def _is_made(connection: sqlite3.Connection) -> bool:
    """Tell whether a database is one of this module, and not an empty one."""
    # In this order: somebody else may make it between the two, its tables and its mark at once.
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application == _APPLICATION:
        return True
    if application or tables:
        raise sqlite3.OperationalError("there is a database of something else in its place")
    return False


def _make(path: Path) -> None:
    """Make a file that is not there: what SQLite makes itself may be read by others."""
    # One at a time, so that nobody's connection to it is there before it is closed here.
    with _making, contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    about = path.lstat()
    beside = (path.with_name(path.name + suffix) for suffix in _BESIDE)
    if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1 or any(each.is_symlink() for each in beside):
        raise OSError(errno.EINVAL, f"{path.name} is a link, or no file")
    if about.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, f"{path.name} belongs to another user")


def _forget(path: Path) -> None:
    """Remove a cache file and what SQLite keeps beside it."""
    for suffix in ("", *_BESIDE):
        with contextlib.suppress(OSError):
            path.with_name(path.name + suffix).unlink()


def _remove_unused(folder: Path) -> None:
    """Remove the files that nobody has opened for a month: their runs are gone, or nobody looks at them."""
    oldest = time.time() - _KEPT_S
    with contextlib.suppress(OSError):
        for path in folder.glob("*.sqlite"):
            if path.lstat().st_mtime < oldest:
                _forget(path)
