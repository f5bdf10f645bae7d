"""Local execution: workers on this machine use the same protocol, over a socket that only this user can reach.

A local worker therefore needs no address, port or certificate of the platform.
"""

from __future__ import annotations

import threading

import uvicorn

from osmosis_ai.platform.app import create_worker_app
from osmosis_ai.platform.blobs.s3 import S3BlobStore
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.http.worker_waits import WaitingServer
from osmosis_ai.platform.runs.execute.executor_loop import STOP_GRACE_S, ExecutorLoop
from osmosis_ai.platform.runs.execute.local_processes import LocalProcesses
from osmosis_ai.platform.runs.execute.worker_process import StartWorker, WorkerProcess, WorkerStarter
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.processes import PrivateSocket

_DRAIN_S = 2
_KEEP_ALIVE_S = 60


class LocalWorkers:
    """Starts workers on this machine, and listens for them from the first one on."""

    def __init__(self, services: PlatformServices, config: PlatformConfig) -> None:
        self._services = services
        self._config = config
        self._listener: WorkerListener | None = None
        self._hands_out_keys = False

    def __call__(self, run_id: str, credential: str, claim_id: str) -> WorkerProcess:
        """Start the worker of a run."""
        if self._listener is None:
            blobs = self._services.blobs
            self._hands_out_keys = isinstance(blobs, S3BlobStore) and blobs.has_credentials_of_machine()
            self._listener = WorkerListener(self._services)
        start = WorkerStarter(self._config, self._listener.address, hands_out_keys=self._hands_out_keys)
        return start(run_id, credential, claim_id)

    def close(self) -> None:
        """Listen no longer."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None


class WorkerListener:
    """Answers workers at a socket, in a thread of its own, from now on."""

    def __init__(self, services: PlatformServices) -> None:
        self._socket = PrivateSocket()
        self.address = self._socket.address
        config = uvicorn.Config(
            create_worker_app(services),
            fd=self._socket.fileno(),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_DRAIN_S,
        )
        self._server = WaitingServer(config)
        self._thread = threading.Thread(target=self._server.run, name="worker-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer nobody any more."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.remove()


def open_local_executor(
    services: PlatformServices,
    *,
    config: PlatformConfig | None = None,
    start_worker: StartWorker | None = None,
    stop_grace_s: float = STOP_GRACE_S,
) -> ExecutorLoop:
    """Return what executes runs on this machine."""
    parts = services.executor_parts(config)
    workers = LocalWorkers(services, parts.config)
    processes = LocalProcesses(
        parts.config.runs_dir,
        start_worker or workers,
        on_closed=workers.close,
        monotonic=parts.clock.monotonic,
    )
    return ExecutorLoop(parts, processes, stop_grace_s=stop_grace_s)
