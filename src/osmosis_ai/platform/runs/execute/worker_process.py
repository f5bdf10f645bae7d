"""Start a worker process and define its inherited environment and exit statuses.

Variables are listed by name, because the platform's environment may contain private keys. Only the rollout's server
gets the run's secrets. The platform's address and the claim ticket are passed through a pipe, since every
program of the user can read another's initial environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Protocol

from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.runs.working_directory import WorkingDirectory
from osmosis_ai.process_environment import (
    PACKAGE_PREFIXES,
    chosen,
    python_environment,
)
from osmosis_ai.processes import ChildProcess
from osmosis_ai.processes.privacy import DEBUGGABLE_ENV
from osmosis_ai.sandbox import CGROUP_ENV, ISOLATION_ENV, NETWORK_ENV, prepare_control

PLATFORM_URL = "_OSMOSIS_PLATFORM_URL"
CREDENTIAL = "_OSMOSIS_WORKER_CREDENTIAL"
CLAIM_ID = "_OSMOSIS_CLAIM_ID"
HANDS_OUT_KEYS = "_OSMOSIS_HANDS_OUT_KEYS"
"""Set where this machine gives the credentials of the platform's bucket to every program that asks for them."""
CPUS = "_OSMOSIS_WORKER_CPUS"
"""Set where a worker is granted a part of its machine's processors: how many. It decides how many rollout servers its run has
where nobody said, and holds nothing back."""

# How a worker's process may end; any other way is a death.
ENDED = 0
"""The run is terminal, or was let go on purpose."""
NOT_MINE = 75
"""Another worker has the run; try again later (``EX_TEMPFAIL``)."""
LEASE_LOST = 76
"""Another worker took the run over while this one was at it."""
SET_BACK = 78
"""Our own infrastructure failed, and the run is as it was: to be tried again. The working directory says why."""
STORE_AWAY = 80
"""The store was away for as long as a worker waits; the run is as it was, and this counts for nothing. The working directory
says why."""
REFUSED = 79
"""What the worker shows is not taken any more: the run is as it was, for another worker."""
LEARNER_LOST = 77
"""A peer process of a distributed training died; another worker continues the run."""


class WorkerProcess(Protocol):
    """A worker that was started (:class:`~osmosis_ai.processes.ChildProcess`)."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def kill(self) -> None: ...


class StartWorker(Protocol):
    """Starts the worker of a run, which is to claim it with ``credential``, as the claim ``claim_id``."""

    def __call__(self, run_id: str, credential: str, claim_id: str) -> WorkerProcess: ...


class WorkerStarter:
    """Starts worker processes of this very installation, in an environment of their own."""

    def __init__(
        self,
        config: PlatformConfig,
        address: str,
        *,
        hands_out_keys: bool = False,
        cpus: float | None = None,
    ) -> None:
        self._config = config
        self._address = address
        # Before the first worker is there: what it starts in is arranged for all of them.
        self._starter = prepare_control().starter
        self._more = {HANDS_OUT_KEYS: "1"} if hands_out_keys else {}
        if cpus is not None:
            self._more[CPUS] = str(cpus)

    def __call__(self, run_id: str, credential: str, claim_id: str) -> WorkerProcess:
        """Start the worker of a run."""
        directory = WorkingDirectory(self._config.runs_dir, run_id)
        directory.create()
        return ChildProcess(
            [*self._starter, sys.executable, "-m", "osmosis_ai.platform.runs.work.worker", run_id],
            env={**worker_environment(os.environ, self._config), **self._more},
            cwd=directory.path,
            stdout=directory.log,
            private_env={PLATFORM_URL: self._address, CREDENTIAL: credential, CLAIM_ID: claim_id},
        )


def worker_environment(environ: Mapping[str, str], config: PlatformConfig) -> dict[str, str]:
    """Return the whole environment of a worker."""
    return {
        **python_environment(environ),
        # It builds the rollouts' environments.
        **chosen(environ, (), PACKAGE_PREFIXES),
        # It drives agents that are served elsewhere, as the operator allows.
        **chosen(environ, ("OSMOSIS_AGENT_NETWORKS", DEBUGGABLE_ENV, CGROUP_ENV), ("OSMOSIS_BRIDGE_",)),
        "OSMOSIS_HOME": str(config.home),
        ISOLATION_ENV: config.isolation,
        NETWORK_ENV: config.network or "",
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",
    }
