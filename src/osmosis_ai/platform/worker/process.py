"""The process of a worker: its working directory, how it is started, and its exit statuses.

Everything in a working directory can be rebuilt, except unsent records.

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

Variables are listed by name, because the platform's environment may contain private keys. The assignment, with the run's
secrets and the lease, is passed through a pipe, since every program of the user can read another's environment.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import IntEnum
from pathlib import Path

from filelock import FileLock, Timeout

from osmosis_ai.api.models.workers import Assignment
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.files import remove_tree, write_atomic
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.process_environment import PACKAGE_PREFIXES, chosen, python_environment
from osmosis_ai.processes.child_process import ChildProcess
from osmosis_ai.processes.privacy import DEBUGGABLE_ENV
from osmosis_ai.sandbox.bubblewrap import NETWORK_ENV
from osmosis_ai.sandbox.control_groups import CGROUP_ENV, prepare_control
from osmosis_ai.sandbox.isolation import ISOLATION_ENV
from osmosis_ai.training.runs.run_directory import TrainingDirectory

KEPT_S = 24 * 3600.0
"""How long the directory of a shard without a worker is kept after its last change."""


class WorkingDirectory:
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
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)

    def dataset(self, extension: str, name: str = "dataset") -> Path:
        return self.path / f"{name}.{extension}"

    def evaluation(self, run_name: str) -> RunDirectory:
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
        directory = WorkingDirectory(runs_dir, path.name)
        with suppress(OSError):
            used_at = max(path.stat().st_mtime, directory.touched_at())
            if (
                path.is_dir()
                and not path.is_symlink()
                and time.time() - used_at > KEPT_S
                and directory.lock()
            ):
                directory.remove()


StartWorker = Callable[[Assignment], ChildProcess]
PLATFORM_URL, ASSIGNMENT = "platform_url", "assignment"
"""The message that a worker receives through a pipe."""
HAS_BUCKET_KEYS = "_OSMOSIS_HAS_BUCKET_KEYS"
"""Set if this machine gives the credentials of the platform's bucket to every program that asks its metadata address."""
CPUS = "_OSMOSIS_WORKER_CPUS"
"""The share of its machine's processors that a worker may use, if it is limited; it decides the number of rollout servers."""


class WorkerExit(IntEnum):
    """Exit status of a worker; any other is a crash."""

    ENDED = 0  # the shard has ended or was released
    BUSY = 75  # an earlier worker of the shard on this machine has not ended yet
    LEASE_LOST = 76  # another worker has the shard, or the platform refuses this one
    LEARNER_LOST = 77  # a process of a distributed training died
    UNREACHABLE = 78  # the platform was unreachable when the shard was to be closed


def worker_starter(
    config: PlatformConfig, address: str, *, has_bucket_keys: bool = False, cpus: float | None = None
) -> StartWorker:
    """Return what starts the worker of a claimed shard."""
    # Before the first worker: this prepares the control group of all of them.
    starter = prepare_control().starter
    more = {HAS_BUCKET_KEYS: "1"} if has_bucket_keys else {}
    if cpus is not None:
        more[CPUS] = str(cpus)

    def start(assignment: Assignment) -> ChildProcess:
        directory = WorkingDirectory(config.runs_dir, assignment.shard.id)
        directory.create()
        return ChildProcess(
            [*starter, sys.executable, "-m", "osmosis_ai.platform.worker.worker"],
            env={**worker_environment(os.environ, config), **more},
            cwd=directory.path,
            stdout=directory.log,
            private_env={PLATFORM_URL: address, ASSIGNMENT: assignment.model_dump_json(exclude_unset=True)},
        )

    return start


def worker_environment(environ: Mapping[str, str], config: PlatformConfig) -> dict[str, str]:
    return {
        **python_environment(environ),
        # It builds the rollouts' environments.
        **chosen(environ, (), PACKAGE_PREFIXES),
        # It calls remote agents, as the operator permits.
        **chosen(environ, ("OSMOSIS_AGENT_NETWORKS", DEBUGGABLE_ENV, CGROUP_ENV), ("OSMOSIS_BRIDGE_",)),
        "OSMOSIS_HOME": str(config.home),
        ISOLATION_ENV: config.isolation,
        NETWORK_ENV: config.network or "",
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",
    }
