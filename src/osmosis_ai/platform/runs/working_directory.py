"""Working directory of a run on this machine; only recorded data cannot be rebuilt.

    <home>/runs/<run id>/
        worker.lock     held by the worker's process while it lives
        worker.log      the worker's output; empty if all is well
        setback.txt     why the last worker gave up, if not the run's fault
        lease           digest of the last local worker's lease
        taken           claim id of a worker host; absent for the platform's own machine
        lost            marks a run that another owner has; only its journal is kept
        source.tar.gz   the commit's files, packed by the platform
        source/         the same, unpacked
        dataset.<ext>   the rows
        adapter/        the run's model, if it is an adapter
        evaluation/<run name>/   an evaluation's run directory, with the engine's journal
        training/       a training run's directory, with its curve and its checkpoints

The kernel lock is free exactly when no worker of this machine is alive.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.files import remove_tree, write_atomic
from osmosis_ai.training.learner.checkpoints import checkpoints_in
from osmosis_ai.training.runs.run_directory import TrainingDirectory


class WorkingDirectory:
    """The files of one run."""

    def __init__(self, runs_dir: Path, run_id: str) -> None:
        self.path = runs_dir / run_id
        self.log = self.path / "worker.log"
        self._setback = self.path / "setback.txt"
        self._lease = self.path / "lease"
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
        """Make it, private to the platform's user."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)

    def dataset(self, extension: str) -> Path:
        """Return where the rows lie."""
        return self.path / f"dataset.{extension}"

    def evaluation(self, run_name: str) -> RunDirectory:
        """Return the engine's run directory."""
        return RunDirectory(self.output_root / run_name)

    def recorded(self, run_name: str) -> int:
        """Return how much has been recorded so far: what a worker got done, even if it could not say so."""
        try:
            journalled = self.evaluation(run_name).events.stat().st_size
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            journalled = 0
        return journalled + (self.checkpoint_step() or 0)

    def checkpoint_step(self) -> int | None:
        """Return the step that a training run would go on behind; None without a checkpoint."""
        return max(
            (checkpoint.step for checkpoint in checkpoints_in(self.training.checkpoints)), default=None
        )

    def note_lease(self, token: str) -> None:
        """Say which lease this machine's worker has, so that it can be told from another machine's."""
        write_atomic(self._lease, hashlib.sha256(token.encode()).hexdigest())

    def had_lease(self, token: str) -> bool:
        """Tell whether a lease was that of this machine's last worker."""
        try:
            return self._lease.read_text("ascii") == hashlib.sha256(token.encode()).hexdigest()
        except (OSError, ValueError):
            return False

    def note_setback(self, reason: str) -> None:
        """Say why a worker gives up for now; on a full disk it stays unsaid."""
        with suppress(OSError):
            write_atomic(self._setback, reason)

    def take_setback(self) -> str:
        """Return why the last worker gave up, once; empty when it could not say."""
        try:
            reason = self._setback.read_text("utf-8")
            self._setback.unlink()
        except OSError:
            return ""
        return reason

    def lock(self, *, timeout_s: float = 0.0) -> bool:
        """Become the one worker of this run on this machine, until the process ends; False if there is one."""
        self.create()
        try:
            self._lock.acquire(timeout=timeout_s)
        except Timeout:
            return False
        return True

    def is_worked_on(self) -> bool:
        """Tell whether a worker of this machine is alive."""
        if not self.path.is_dir():
            return False
        try:
            with self._lock.acquire(timeout=0):
                return False
        except Timeout:
            return True

    def keep_what_resumes(self) -> None:
        """Delete everything except a training run's last checkpoint, curve and inputs."""
        checkpoints, training = checkpoints_in(self.training.checkpoints), self.training
        if not checkpoints:
            self.remove()
            return
        inputs = (self.source, self.source_archive, self.adapter, *self.path.glob("dataset.*"))
        for path in (*inputs, self.output_root):
            _delete(path)
        for path in (training.trials, training.served_adapters, training.learner):
            _delete(path)
        for checkpoint in checkpoints[:-1]:
            _delete(checkpoint.directory)

    def keep_set_aside(self, *names: str) -> bool:
        """Delete everything except archived journals and ``names``; return False if there are no archived journals."""
        kept = set(self.output_root.glob("*/*.diverged*"))
        if not kept:
            self.remove()
            return False
        kept.update((self.output_root, Path(self._lock.lock_file), *(self.path / name for name in names)))
        for path in (*self.path.iterdir(), *self.output_root.glob("*/*")):
            if path not in kept:
                _delete(path)
        return True

    def remove_checkpoints(self) -> None:
        """Delete what a training run would go on from; what its worker printed stays."""
        _delete(self.training.path)

    def remove(self) -> None:
        """Delete everything; what could not be deleted is left to the next start of the platform."""
        _delete(self.path)


def _delete(path: Path) -> None:
    if path.is_dir():
        remove_tree(path)
    else:
        with suppress(OSError):
            path.unlink()
