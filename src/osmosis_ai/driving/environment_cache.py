"""Built environments, one directory per content: whole or absent.

An environment is built beside its place and renamed into it, so neither a crash nor a second
builder leaves a broken one behind. The least recently used are removed, but none that was used
within a day: a run may still be importing from it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import remove_tree

KEPT = 10
SURELY_UNUSED_AFTER_S = 24 * 3600.0
_UNFINISHED = ".building-"


class EnvironmentCache:
    """A directory of virtual environments."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, key: str, build: Callable[[Path, Path], None], *, on_wait: Callable[[], None]) -> Path:
        """Return the environment of a key, built first if need be."""
        lock = self._lock_of(key)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            on_wait()
            lock.acquire()
        try:
            environment = self._directory / key
            if not os.access(python_of(environment), os.X_OK):
                self._build(environment, build)
                self._prune(spare=environment)
            os.utime(environment)
            return environment
        finally:
            lock.release()

    def _build(self, environment: Path, build: Callable[[Path, Path], None]) -> None:
        scratch = self._unfinished()
        scratch.mkdir()
        try:
            build(scratch, scratch / "environment")
            if (scratch / "environment").is_symlink():
                # What a build leaves is let into sandboxes, so it leads nowhere else.
                raise OsmosisError("the build put a link in the place of its environment.")
            if environment.exists():
                # Its interpreter is gone from the machine.
                environment.rename(scratch / "broken")
            (scratch / "environment").rename(environment)
        finally:
            remove_tree(scratch)

    def _prune(self, *, spare: Path) -> None:
        # Others build and remove beside us: what is gone meanwhile is gone.
        entries = [(used_at, entry) for entry in self._directory.iterdir() if (used_at := _last_use(entry))]
        finished = sorted((item for item in entries if not item[1].name.startswith(".")), reverse=True)
        abandoned = [entry for _, entry in entries if entry.name.startswith(_UNFINISHED)]
        for _, entry in finished[KEPT:]:
            if entry != spare:
                self._remove_unused_environment(entry)
        for entry in abandoned:
            self._remove_unused(entry)

    def _remove_unused_environment(self, environment: Path) -> None:
        lock = self._lock_of(environment.name)
        try:
            # Whoever has it is about to use the environment.
            lock.acquire(timeout=0)
        except Timeout:
            return
        try:
            self._remove_unused(environment)
        finally:
            lock.release()

    def _remove_unused(self, entry: Path) -> None:
        used_at = _last_use(entry)
        if used_at is None or used_at >= time.time() - SURELY_UNUSED_AFTER_S:
            return
        doomed = self._unfinished()
        with contextlib.suppress(FileNotFoundError):
            entry.rename(doomed)
        remove_tree(doomed)

    def _lock_of(self, key: str) -> FileLock:
        locks = self._directory / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        return FileLock(locks / f"{key}.lock")

    def _unfinished(self) -> Path:
        return self._directory / f"{_UNFINISHED}{secrets.token_hex(4)}"


def _last_use(entry: Path) -> float | None:
    """Return when an entry was used last; None where it is gone."""
    try:
        return entry.stat().st_mtime
    except FileNotFoundError:
        return None


def python_of(environment: Path) -> Path:
    """Return the path of a virtual environment's interpreter."""
    return environment / "bin" / "python"
