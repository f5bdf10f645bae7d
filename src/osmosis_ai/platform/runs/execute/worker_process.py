"""A worker's process: how it is started, what it inherits of the platform's own environment, and how it may end.

The variables are named one by one, because whoever starts a platform has keys of their own in their shell. A run's
secrets are added to its rollout's server alone; the worker itself gets where the platform is, and the rollout does not.
The right to its run and the database's address, which may hold a password, reach it by a pipe: every program of the user
can read the environment that another was started with.
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
from osmosis_ai.sandbox import ISOLATION_ENV, NETWORK_ENV
from osmosis_ai.supervision import ChildProcess
from osmosis_ai.supervision.kept_to_itself import DEBUGGABLE_ENV

TOKEN_VARIABLE = "_OSMOSIS_RUN_TOKEN"

# How a worker's process may end; any other way is a death.
ENDED = 0
"""The run is terminal, or was let go on purpose."""
NOT_MINE = 75
"""Another worker has the run; try again later (``EX_TEMPFAIL``)."""
LEASE_LOST = 76
"""Another worker took the run over while this one was at it."""
SET_BACK = 78
"""Our own infrastructure failed, and the run is as it was: to be tried again. The working directory says why."""
LEARNER_LOST = 77
"""A process that learned together with this one is gone: a death, after which another worker goes on."""


class WorkerProcess(Protocol):
    """A worker that was started (:class:`~osmosis_ai.supervision.ChildProcess`)."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def kill(self) -> None: ...


class StartWorker(Protocol):
    """Starts the worker of a run, which is to claim it with ``token``."""

    def __call__(self, run_id: str, token: str) -> WorkerProcess: ...


class WorkerStarter:
    """Starts worker processes of this very installation, in an environment of their own.

    Args:
        config: the platform that they work for.
    """

    def __init__(self, config: PlatformConfig) -> None:
        self._config = config

    def __call__(self, run_id: str, token: str) -> WorkerProcess:
        """Start the worker of a run."""
        directory = WorkingDirectory(self._config.runs_dir, run_id)
        directory.create()
        return ChildProcess(
            [sys.executable, "-m", "osmosis_ai.platform.runs.work.worker", run_id],
            env=worker_environment(os.environ, self._config),
            cwd=directory.path,
            stdout=directory.log,
            handed={
                TOKEN_VARIABLE: token,
                "OSMOSIS_DATABASE_URL": self._config.database_url,
                **bucket_access(os.environ, self._config),
            },
        )


def worker_environment(environ: Mapping[str, str], config: PlatformConfig) -> dict[str, str]:
    """Return the whole environment of a worker.

    Args:
        environ: the platform's own.
        config: where its data is.
    """
    return {
        **python_environment(environ),
        # It builds the rollouts' environments.
        **chosen(environ, (), PACKAGE_PREFIXES),
        # It drives agents that are served elsewhere, as the operator allows.
        **chosen(environ, ("OSMOSIS_AGENT_NETWORKS", DEBUGGABLE_ENV), ("OSMOSIS_BRIDGE_",)),
        "OSMOSIS_HOME": str(config.home),
        ISOLATION_ENV: config.isolation,
        NETWORK_ENV: config.network or "",
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",
    }


def bucket_access(environ: Mapping[str, str], config: PlatformConfig) -> dict[str, str]:
    """Return what a worker needs for a platform's bucket: its address, and all that boto3 finds credentials by.

    Args:
        environ: the platform's own.
        config: where its data is.
    """
    if not config.blobs_url:
        return {}
    return {"OSMOSIS_BLOBS_URL": config.blobs_url, **chosen(environ, (), ("AWS_",))}
