"""The working directory of a shard on a worker's machine. Everything in it can be rebuilt, except unsent records.

<home>/runs/<shard id>/
    worker.lock     locked by the worker's process while it lives, and touched while it responds
    worker.log      the worker's output; empty if all is well
    failure.txt     why the last worker gave up
    source.tar.gz   the commit's files, packed by the platform
    source/         the same, unpacked
    dataset.<ext>   the rows
    adapter/        the run's model, if it is an adapter
    evaluation/<run name>/   an evaluation's run directory, with the engine's journal
    training/       a training run's directory, with its curve and checkpoints
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.files import remove_tree, write_atomic
from osmosis_ai.training.runs.run_directory import TrainingDirectory

KEPT_S = 24 * 3600.0
"""How long the directory of a shard without a worker is kept after its last change."""
# What changes while a worker executes a shard; a rollout writes to none of these.
_CHANGING = ("*", "evaluation/*/*", "training/*")


class WorkingDirectory:
    """The files of one shard."""

    def __init__(self, runs_dir: Path, shard_id: str) -> None:
        self.path = runs_dir / shard_id
        self.log = self.path / "worker.log"
        self._failure = self.path / "failure.txt"
        self.source = self.path / "source"
        self.source_archive = self.path / "source.tar.gz"
        self.adapter = self.path / "adapter"
        self.output_root = self.path / "evaluation"
        self.training = TrainingDirectory(self.path / "training")
        self._lock = FileLock(
            self.path / "worker.lock",
            mode=0o600,
            thread_local=False,
            preserve_lock_file=True,
            fallback_to_soft=False,
        )

    def create(self) -> None:
        """Create it, private to the worker's user."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)

    def dataset(self, extension: str) -> Path:
        """Return the path of the rows."""
        return self.path / f"dataset.{extension}"

    def evaluation(self, run_name: str) -> RunDirectory:
        """Return the engine's run directory."""
        return RunDirectory(self.output_root / run_name)

    def note_failure(self, reason: str) -> None:
        """Write down why the worker gives up; impossible on a full disk."""
        with suppress(OSError):
            write_atomic(self._failure, reason)

    def take_failure(self) -> str:
        """Return why the last worker gave up, once; empty if it did not say."""
        try:
            reason = self._failure.read_text("utf-8")
            self._failure.unlink()
        except OSError:
            return ""
        return reason

    def lock(self, *, timeout_s: float = 0.0) -> bool:
        """Become the only worker of the shard on this machine, until the process ends; False if there is one."""
        self.create()
        try:
            self._lock.acquire(timeout=timeout_s)
        except Timeout:
            return False
        return True

    def touch(self) -> None:
        """Show that the worker responds."""
        with suppress(OSError):
            os.utime(self._lock.lock_file)

    def touched_at(self) -> float:
        """Return when the worker last showed that it responds; 0 if it never did."""
        try:
            return Path(self._lock.lock_file).stat().st_mtime
        except OSError:
            return 0.0

    def remove(self) -> None:
        """Delete it; :func:`remove_old` deletes later what could not be deleted now."""
        remove_tree(self.path)


def remove_old(runs_dir: Path) -> None:
    """Delete the directories of shards that no worker of this machine has touched for :data:`KEPT_S`."""
    for path in runs_dir.iterdir() if runs_dir.is_dir() else ():
        with suppress(OSError):
            if path.is_dir() and not path.is_symlink() and time.time() - _changed_at(path) > KEPT_S:
                directory = WorkingDirectory(runs_dir, path.name)
                if directory.lock():
                    directory.remove()


def _changed_at(path: Path) -> float:
    changed = path.stat().st_mtime
    for pattern in _CHANGING:
        for file in path.glob(pattern):
            if file.is_file() and not file.is_symlink():
                changed = max(changed, file.stat().st_mtime)
    return changed
