"""Local data of runs taken from a remote platform, and their cleanup.

Any machine can continue from the data that a platform has accepted. For a run with another owner, only this machine's
archived journals are kept, which may hold unsent results. Other leftovers (a released run, a failed attempt, a killed
worker) are kept for a day, because this machine may continue the run.

Taken runs are marked, and directories of a platform in the same home are not touched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock

from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.files import write_atomic
from osmosis_ai.platform.runs.work.journal_following import set_aside
from osmosis_ai.platform.runs.working_directory import WorkingDirectory

KEPT_S = 24 * 3600.0
"""How long a run that nobody works on stays after the last thing that was written of it."""
MOST_LOST = 20
"""Lost runs of which a journal is kept at most, the newest."""
_LOCK_WAIT_S = 60.0
_TAKEN = "taken"
_LOST = "lost"
# What changes while a run is worked on; a rollout writes to none of these.
_WRITTEN = ("*", "evaluation/*/*", "training/*")


class TakenRuns:
    """The working directories of runs that worker hosts of one home have taken; several may do so at once."""

    def __init__(self, runs_dir: Path, *, now: Callable[[], float] = time.time) -> None:
        self._runs_dir = runs_dir
        self._now = now

    def take(self, run_id: str, claim_id: str) -> None:
        """Create the directory of a run whose worker is about to start, taken under ``claim_id``."""
        with self._alone():
            directory = WorkingDirectory(self._runs_dir, run_id)
            directory.create()
            (directory.path / _LOST).unlink(missing_ok=True)
            write_atomic(directory.path / _TAKEN, claim_id, durable=False)

    def why_set_back(self, run_id: str) -> str:
        """Return why the worker of a run gave up for now, which it has left on this machine's disk; once."""
        said = WorkingDirectory(self._runs_dir, run_id).take_setback().rstrip(".")
        return said or "its worker gave up for now, and could not say why: this machine's disk may be full"

    def lose(self, run_id: str, claim_id: str) -> None:
        """Keep nothing but the journals of a run that another owner has; harmless where this home has taken it again."""
        directory = WorkingDirectory(self._runs_dir, run_id)
        with suppress(OSError), self._alone():
            if _claim_of(directory.path) == claim_id and not directory.is_worked_on():
                _keep_journal(directory)
                self._forget_oldest_lost()

    def sweep(self) -> None:
        """Delete what nobody works on and nobody has come back to for :data:`KEPT_S`."""
        for path in self._taken():
            with suppress(OSError), self._alone():
                # The mark of a long run is old, and that of a retaken one new.
                is_old = self._now() - max(_written_at(path), default=self._now()) > KEPT_S
                directory = WorkingDirectory(self._runs_dir, path.name)
                if is_old and not directory.is_worked_on():
                    directory.remove()

    def _forget_oldest_lost(self) -> None:
        lost = [path for path in self._taken() if (path / _LOST).exists()]
        for path in sorted(lost, key=lambda path: (path / _LOST).stat().st_mtime, reverse=True)[MOST_LOST:]:
            WorkingDirectory(self._runs_dir, path.name).remove()

    def _taken(self) -> list[Path]:
        return sorted(mark.parent for mark in self._runs_dir.glob(f"*/{_TAKEN}"))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep others of this home from taking runs meanwhile: between its being taken and its worker's lock."""
        self._runs_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with FileLock(self._runs_dir / ".taken.lock", timeout=_LOCK_WAIT_S, mode=0o600):
            yield


def _claim_of(path: Path) -> str | None:
    try:
        return (path / _TAKEN).read_text("ascii")
    except (OSError, ValueError):
        return None


def _written_at(path: Path) -> Iterator[float]:
    for pattern in _WRITTEN:
        for file in path.glob(pattern):
            with suppress(OSError):
                if file.is_file() and not file.is_symlink():
                    yield file.stat().st_mtime


def _keep_journal(directory: WorkingDirectory) -> None:
    for path in directory.output_root.glob("*"):
        events = RunDirectory(path).events
        if events.is_file() and events.stat().st_size:
            set_aside(events)
    if directory.keep_set_aside(_TAKEN):
        (directory.path / _LOST).touch()
