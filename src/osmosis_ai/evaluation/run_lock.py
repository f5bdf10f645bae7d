"""At most one process writes a run directory at a time.

The lock is a file beside the runs, not inside one, so that a run can be put aside while it is
held. The kernel releases it however its holder ends.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout

from osmosis_ai.errors import ConflictError
from osmosis_ai.evaluation.run_name import LOCKS_DIRECTORY

# Long enough for a look at the lock by `eval watch` to pass, too short for a person to notice.
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
        """Take the lock.

        Raises:
            RunLockedError: when another process already holds it.
        """
        try:
            self._lock.acquire(timeout=_PATIENCE_S)
        except Timeout:
            raise RunLockedError(
                f"another process already holds the run `{self._name}`.",
                details={"run_name": self._name},
                hint=f"wait for its end (`osmosis eval watch {self._name}` shows it in a workspace directory), "
                "or choose another `--name`",
            ) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


def is_running(output_root: Path, name: str) -> bool:
    """Tell whether some process holds the run's lock right now."""
    path = output_root / LOCKS_DIRECTORY / f"{name}.lock"
    if not path.exists():
        return False
    probe = FileLock(path, mode=0o600, thread_local=False, preserve_lock_file=True, fallback_to_soft=False)
    try:
        with probe.acquire(timeout=0):
            return False
    except Timeout:
        return True
