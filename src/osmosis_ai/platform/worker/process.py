"""Starts worker processes, and defines their environment and exit statuses.

Variables are listed by name, because the platform's environment may contain private keys. The assignment, with the run's
secrets and the lease, is passed through a pipe, since every program of the user can read another's environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

from osmosis_ai.api.models.workers import Assignment
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.worker.directory import WorkingDirectory
from osmosis_ai.process_environment import PACKAGE_PREFIXES, chosen, python_environment
from osmosis_ai.processes import ChildProcess
from osmosis_ai.processes.privacy import DEBUGGABLE_ENV
from osmosis_ai.sandbox import CGROUP_ENV, ISOLATION_ENV, NETWORK_ENV, prepare_control

StartWorker = Callable[[Assignment], ChildProcess]
PLATFORM_URL, ASSIGNMENT = "platform_url", "assignment"
"""What a worker receives through a pipe."""
HAS_BUCKET_KEYS = "_OSMOSIS_HAS_BUCKET_KEYS"
"""Set if this machine gives the credentials of the platform's bucket to every program that asks its metadata address."""
CPUS = "_OSMOSIS_WORKER_CPUS"
"""The share of its machine's processors that a worker may use, if it is limited; it decides the number of rollout servers."""

# Exit statuses of a worker; any other is a crash.
ENDED = 0
"""The shard has ended or was released."""
BUSY = 75
"""An earlier worker of the shard on this machine has not ended yet."""
LEASE_LOST = 76
"""Another worker has the shard, or the platform refuses this one."""
LEARNER_LOST = 77
"""A process of a distributed training died."""
UNREACHABLE = 78
"""The platform was unreachable when the shard was to be closed."""


class WorkerStarter:
    """Starts worker processes of this installation."""

    def __init__(
        self,
        config: PlatformConfig,
        address: str,
        *,
        has_bucket_keys: bool = False,
        cpus: float | None = None,
    ) -> None:
        self._config = config
        self._address = address
        # Before the first worker: this prepares the control group of all of them.
        self._starter = prepare_control().starter
        self._more = {HAS_BUCKET_KEYS: "1"} if has_bucket_keys else {}
        if cpus is not None:
            self._more[CPUS] = str(cpus)

    def __call__(self, assignment: Assignment) -> ChildProcess:
        """Start the worker of a claimed shard."""
        directory = WorkingDirectory(self._config.runs_dir, assignment.shard.id)
        directory.create()
        return ChildProcess(
            [*self._starter, sys.executable, "-m", "osmosis_ai.platform.worker.worker"],
            env={**worker_environment(os.environ, self._config), **self._more},
            cwd=directory.path,
            stdout=directory.log,
            private_env={
                PLATFORM_URL: self._address,
                ASSIGNMENT: assignment.model_dump_json(exclude_unset=True),
            },
        )


def worker_environment(environ: Mapping[str, str], config: PlatformConfig) -> dict[str, str]:
    """Return the environment of a worker."""
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
