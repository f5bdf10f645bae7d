"""Collecting a data directory that is being worked in, as hard links: they keep what they name, whatever becomes of it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from osmosis_ai.errors import ConflictError
from osmosis_ai.platform.process_state import LOCK_NAME, STATE_NAME

STAGE_PREFIX = ".backup-"
_CANNOT_LINK = frozenset({errno.EPERM, errno.EACCES, errno.EXDEV, errno.EMLINK, errno.ENOTSUP})


@contextlib.contextmanager
def stage_in(directory: Path, prefix: str) -> Iterator[Path]:
    """Make a directory inside ``directory`` to work in, and remove what killed processes left of theirs."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConflictError(f"another backup or restore is running in {directory}.") from None
        for abandoned in directory.glob(f"{glob.escape(prefix)}*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        stage = Path(tempfile.mkdtemp(prefix=prefix, dir=directory))
        try:
            yield stage
        finally:
            shutil.rmtree(stage, ignore_errors=True)
    finally:
        os.close(descriptor)


class Collection:
    """Everything in a data directory but the database, linked into another one."""

    def __init__(self, home: Path, stage: Path, database: Path, *, holds_blobs: bool = True) -> None:
        self._home = home.resolve()
        self._stage = stage
        self._database = database
        self._holds_blobs = holds_blobs
        self._beside_database = {f"{database.name}{end}" for end in ("", "-wal", "-shm", "-journal", ".lock")}

    def gather(self, below: str = "") -> None:
        """Link existing files, and link replaced ones again."""
        (self._stage / below).mkdir(mode=0o700, exist_ok=True)
        # Last names first: uploads before the objects they become, refs before the commits they name.
        for entry in sorted(os.scandir(self._home / below), key=lambda entry: entry.name, reverse=True):
            path = f"{below}{entry.name}"
            if self._is_transient(path):
                continue
            # What has gone by now has another name by the time of the next look, or is referred to no more.
            with contextlib.suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    self.gather(f"{path}/")
                elif entry.is_symlink() or entry.is_file():
                    _link(Path(entry.path), self._stage / path)

    def _is_transient(self, path: str) -> bool:
        """Tell whether a file is of this moment or this machine alone."""
        place, _, name = path.rpartition("/")
        return (
            path in (LOCK_NAME, STATE_NAME, "platform.db", "blobs/incoming", "blob-copies")
            or path.startswith(STAGE_PREFIX)
            or (path == "blobs" and not self._holds_blobs)
            or (name in self._beside_database and self._home / place == self._database.parent)
            or (path.startswith("git/") and name.endswith(".lock"))
            or (path.startswith("runs/") and name == "worker.lock")
        )


def _link(source: Path, target: Path) -> None:
    if source.is_symlink():
        target.unlink(missing_ok=True)
        target.symlink_to(source.readlink())
        return
    if target.is_symlink() or target.exists():
        if source.samefile(target):
            return
        target.unlink()
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise
        shutil.copy2(source, target)
