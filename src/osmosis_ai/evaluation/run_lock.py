"""At most one process writes a run directory at a time.

The lock is a file beside the runs, not inside one, so that a run can be put aside while it is
held. The kernel releases it however its holder ends. Who only asks whether it is held shares it:
those who ask do not see each other, and nobody takes one for a run.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout

from osmosis_ai.errors import ConflictError
from osmosis_ai.evaluation.run_name import LOCKS_DIRECTORY

# Between two looks at who has it: too short for a person to notice.
_PATIENCE_S = 0.5


class RunLockedError(ConflictError):
    """Another process is running that run."""


class RunLock:
    """The exclusive right to write ``<output_root>/<name>/``; a context manager."""

    def __init__(self, output_root: Path, name: str) -> None:
        self._name = name
        path = output_root / LOCKS_DIRECTORY / f"{name}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        # The holder may release it from another thread than the one that took it.
        self._lock = FileLock(
            path, mode=0o600, thread_local=False, preserve_lock_file=True, fallback_to_soft=False
        )

    def __enter__(self) -> RunLock:
        """Take the lock."""
        if not acquired(self._lock):
            raise RunLockedError(
                f"another process already holds the run `{self._name}`.",
                details={"run_name": self._name},
                hint=f"wait for its end (`osmosis eval watch {self._name}` shows it in a workspace directory), "
                "or choose another `--name`",
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


def is_running(output_root: Path, name: str) -> bool:
    """Tell whether some process holds the run's lock right now."""
    return is_held(output_root / LOCKS_DIRECTORY / f"{name}.lock")


def acquired(lock: FileLock) -> bool:
    """Take a lock and tell whether that went; who only looks at it (:func:`is_held`) is waited for."""
    while True:
        try:
            lock.acquire(timeout=_PATIENCE_S)
        except Timeout:
            if is_held(Path(lock.lock_file)):
                return False
        else:
            return True


def is_held(path: Path) -> bool:
    """Tell whether some process has the lock of a file; False where there is no file, and can be none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        # A directory may have a name that leaves no room for `.lock`.
        if error.errno not in (errno.ENOENT, errno.ENAMETOOLONG):
            raise
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
