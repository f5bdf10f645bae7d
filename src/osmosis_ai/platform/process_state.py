"""Process lock of a data directory: at most one platform at a time.

    <home>/platform.lock   locked while the platform's process lives
    <home>/platform.json   describes the lock's holder; stale after a crash

Only the lock is authoritative: a process id in the file counts only while the lock is held.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.files import write_json

LOCK_NAME = "platform.lock"
STATE_NAME = "platform.json"
# A status query also holds the lock for a moment.
_LOCK_WAIT_S = 1.0
_POLL_S = 0.05


@dataclass(frozen=True)
class PlatformProcess:
    pid: int
    started_at: str
    version: str
    url: str | None = None
    local_url: str | None = None
    isolation: str | None = None
    debuggable: bool = False
    blobs: str | None = None
    database: str | None = None
    executor: str | None = None
    ray: Mapping[str, Any] | None = None
    warnings: Sequence[str] = ()


@contextmanager
def only_platform_of(home: Path) -> Iterator[Callable[[PlatformProcess], None]]:
    """Hold the lock of ``home`` as its only platform while the block lasts; yields the function that records its process."""
    descriptor = _open_lock(home)
    try:
        deadline = time.monotonic() + _LOCK_WAIT_S
        while not _try_lock(descriptor, fcntl.LOCK_EX):
            if time.monotonic() >= deadline:
                process = running_platform(home)
                where = f" as process {process.pid}" if process else ""
                at = f", at {process.url}" if process and process.url else ""
                raise ConflictError(
                    f"a platform runs in {home} already{where}{at}.",
                    details={
                        "home": str(home),
                        **({"pid": process.pid, "url": process.url} if process else {}),
                    },
                    hint="use it, stop it with `osmosis platform stop`, or set OSMOSIS_HOME to another directory",
                )
            time.sleep(_POLL_S)
        # The file of a killed platform must not be taken for ours.
        (home / STATE_NAME).unlink(missing_ok=True)
        try:
            yield lambda process: write_json(home / STATE_NAME, asdict(process))
        finally:
            (home / STATE_NAME).unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def running_platform(home: Path) -> PlatformProcess | None:
    if not (home / LOCK_NAME).exists():
        return None
    deadline = time.monotonic() + _LOCK_WAIT_S
    while _is_held(home):
        with suppress(FileNotFoundError):
            written = json.loads((home / STATE_NAME).read_bytes())
            # Ignore unknown fields, so that the process of a newer release can be shown and stopped.
            names = {each.name for each in fields(PlatformProcess)}
            return PlatformProcess(**{name: value for name, value in written.items() if name in names})
        # A process holds the lock and is about to record itself or to end.
        if time.monotonic() >= deadline:
            raise OsmosisError(
                f"a process holds {home / LOCK_NAME}, and does not say which.",
                code="INTERNAL",
                hint=f"find it with `lsof {home / LOCK_NAME}`",
            )
        time.sleep(_POLL_S)
    return None


def require_same_database(home: Path, shown: str) -> None:
    """Refuse to read a file if the running platform uses a database server, and the reverse."""
    process = running_platform(home)
    if process is None or process.database is None:
        return
    if process.database.startswith("sqlite:") != shown.startswith("sqlite:"):
        raise ConflictError(
            f"the platform that runs in {home} has its rows in {process.database}, and this would open {shown}.",
            hint="set OSMOSIS_DATABASE_URL to the value with which the platform was started",
        )


def stop_platform(home: Path, *, timeout_s: float) -> PlatformProcess | None:
    """Stop the platform of ``home`` and wait until it has ended; return it, or None if none was running."""
    process = running_platform(home)
    if process is None:
        return None
    try:
        os.kill(process.pid, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it has ended just now
    except PermissionError as error:
        raise OsmosisError(f"the platform in {home} runs as another user (process {process.pid}).") from error
    deadline = time.monotonic() + timeout_s
    while _is_held(home):
        if time.monotonic() >= deadline:
            raise OsmosisError(
                f"the platform in {home} (process {process.pid}) has not stopped within {timeout_s:g} s.",
                code="INTERNAL",
                hint=f"wait, or end it with `kill -9 {process.pid}`: no result is lost, its runs go on at the next start",
            )
        time.sleep(_POLL_S)
    return process


def _open_lock(home: Path) -> int:
    # Never removed: a lock on an unlinked file excludes no other process.
    return os.open(home / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try_lock(descriptor: int, operation: int) -> bool:
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_held(home: Path) -> bool:
    """Return whether a platform holds the lock; status queries share it, so they do not see each other."""
    descriptor = _open_lock(home)
    try:
        return not _try_lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)
