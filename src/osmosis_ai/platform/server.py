"""Run one platform, from taking its lock to ending its last worker.

Components start in dependency order and end in reverse: the host of workers before the API, which still answers while
workers release their shards, and the data directory's lock last. The next start can recover from a kill.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType

import uvicorn
from fastapi import FastAPI

from osmosis_ai._version import __version__
from osmosis_ai.api.platform_url import ALLOW_INSECURE_ENV, ensure_secure, is_loopback
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.accounts import FirstLogin, bootstrap
from osmosis_ai.platform.app import create_app, create_worker_app
from osmosis_ai.platform.blobs.s3 import S3BlobStore
from osmosis_ai.platform.blobs.store import BlobStoreBusy
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import PlatformConfig, require_usable_cluster
from osmosis_ai.platform.http.connection_limits import ConnectionLimits, limited_protocol
from osmosis_ai.platform.isolation import look_at_isolation, why_not_shared
from osmosis_ai.platform.operations import missing_files
from osmosis_ai.platform.process_state import PlatformProcess, only_platform_of
from osmosis_ai.platform.ray_jobs import RayJobs, RayLauncher, worker_entrypoint
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.worker.client import WorkerClient
from osmosis_ai.platform.worker.host import Host, HostOptions
from osmosis_ai.platform.worker.process import StartWorker, worker_starter
from osmosis_ai.processes.addresses import PrivateSocket, listen
from osmosis_ai.processes.privacy import disable_inspection, is_debuggable

logger = logging.getLogger(__name__)

# Proxies keep idle connections for 60 s and must close them first, or their next request fails.
_KEEP_ALIVE_S = 75
# How long requests may take when the platform stops; clients resume interrupted uploads.
_DRAIN_S = 10
_WORKERS_DRAIN_S = 2
_HOST_ENDS_WITHIN_S = 10.0
HEADERS_WITHIN_S = 20.0
"""How long a request's headers may take."""
READ_WITHIN_S = 120.0
"""How long a client may read nothing of its reply, or pause within an upload."""
# File descriptors for files, databases, workers and model servers.
_OTHER_DESCRIPTORS = 200
_API_ENDED = "the API has ended"
# A signal just before a wait does not interrupt it, so waits are short.
_SIGNAL_POLL_S = 0.5
_START_POLL_S = 0.005


@dataclass(frozen=True)
class RunningPlatform:
    config: PlatformConfig
    process: PlatformProcess
    services: PlatformServices
    first_login: FirstLogin | None
    _ends: queue.SimpleQueue[str] = field(repr=False)

    def wait(self) -> None:
        """Block until this process receives SIGTERM or SIGINT."""
        reason = None
        while reason is None:
            with contextlib.suppress(queue.Empty):
                reason = self._ends.get(timeout=_SIGNAL_POLL_S)
        if reason == _API_ENDED:
            raise OsmosisError("the platform's API ended unexpectedly; the log says why.", code="INTERNAL")
        logger.info("stopping (%s)", reason)


class StartEndedError(KeyboardInterrupt):
    """A signal ended the platform while it started."""


@contextmanager
def run_platform(config: PlatformConfig) -> Iterator[RunningPlatform]:
    """Run a platform in this process while the block lasts; for the main thread, which receives the signals."""
    disable_inspection(os.environ)
    require_safe_address(config)
    ends: queue.SimpleQueue[str] = queue.SimpleQueue()
    with ExitStack() as stack:
        end_startup = stack.enter_context(_signals_to(ends))
        if config.ray is not None:
            require_usable_cluster(config.ray, config.base_url)
        config.prepare_home()
        record = stack.enter_context(only_platform_of(config.home))
        process = PlatformProcess(os.getpid(), SystemClock().now().isoformat(timespec="seconds"), __version__)
        # The rest takes time, so record the process first for status queries.
        record(process)
        listener = stack.enter_context(_listen(config.host, config.port))
        host, port = listener.getsockname()[:2]
        bound = replace(config, port=port)
        # On a cluster, each node reports its own isolation.
        isolation, executes = look_at_isolation(bound) if bound.ray is None else (None, True)
        if not executes:
            bound = replace(bound, executes_nothing=isolation)
        services = PlatformServices(bound)
        stack.callback(services.db.dispose)
        if isolation is not None and executes:
            shared_problem = why_not_shared(bound, len(services.workspaces.all()))
            if shared_problem is not None:
                isolation, executes = shared_problem, False
                bound = replace(bound, executes_nothing=shared_problem)
                services.config = bound
        try:
            services.blobs.check()
        except BlobStoreBusy as error:
            logger.warning("%s", error.message)
        missing = missing_files(services.db, services.blobs, bound.blobs_shown)
        process = replace(
            process,
            isolation=isolation,
            debuggable=is_debuggable(os.environ),
            blobs=bound.blobs_shown,
            database=services.db.shown,
            executor=bound.executor_shown,
            ray=bound.ray.to_json() if bound.ray is not None else None,
            warnings=[*bound.warnings, *([missing] if missing is not None else [])],
        )
        for warning in process.warnings:
            logger.warning("%s", warning)
        record(process)
        # The start must be reported from here on, since the first password is shown only once.
        end_startup()
        first_login = bootstrap(services.db, services.clock)
        stack.enter_context(_serving_api(create_app(services), bound, listener, ends))
        if executes:
            stack.enter_context(_executing(services, bound))
        reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        local_url = f"http://{f'[{reachable}]' if ':' in reachable else reachable}:{port}"
        process = replace(process, url=bound.base_url, local_url=local_url)
        record(process)
        yield RunningPlatform(bound, process, services, first_login, ends)


@contextmanager
def _signals_to(ends: queue.SimpleQueue[str]) -> Iterator[Callable[[], None]]:
    """Stop the platform gracefully on the first SIGTERM or Ctrl-C and immediately on the second, which is safe as well."""
    is_starting = True

    def restore() -> None:
        for number, handler in former.items():
            signal.signal(number, handler)

    def end(number: int, _frame: FrameType | None) -> None:
        restore()
        # The one queue whose `put` may interrupt its own `get`; an Event could deadlock here.
        ends.put(signal.Signals(number).name)
        if is_starting:
            raise StartEndedError

    def end_startup() -> None:
        nonlocal is_starting
        is_starting = False
        # An exception raised in a finalizer or C callback is swallowed, so check the queue.
        if not ends.empty():
            raise StartEndedError

    former = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield end_startup
    finally:
        restore()


def require_safe_address(config: PlatformConfig) -> None:
    """Refuse an address at which tokens and secrets would not be encrypted."""
    if config.public_url:
        ensure_secure(config.public_url)
    elif not is_loopback(config.host):
        raise OsmosisError(
            f"listening on {config.host} needs to know the https address that clients use: the platform itself "
            "speaks plain http, which clients refuse beyond this machine.",
            hint="put a TLS proxy in front of it and start with --public-url https://NAME (see "
            f"docs/platform/operate.md); on a network you trust: {ALLOW_INSECURE_ENV}=1 and --public-url http://NAME:PORT",
        )


def _listen(host: str, port: int) -> socket.socket:
    try:
        return listen(host, port)
    except OSError as error:
        raise OsmosisError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}.",
            hint="choose another with --port (0 picks a free one) or --host",
        ) from error


@contextmanager
def _serving_api(
    app: FastAPI, config: PlatformConfig, listener: socket.socket, ends: queue.SimpleQueue[str]
) -> Iterator[None]:
    """Serve HTTP; if that ends, ``ends`` receives :data:`_API_ENDED`."""
    limits = ConnectionLimits(HEADERS_WITHIN_S, READ_WITHIN_S, _most_connections(config))
    settings = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
        server_header=False,
        http=limited_protocol(limits),
        # Any client can send these headers, so only configured proxies are trusted.
        proxy_headers=bool(config.trusted_proxies),
        forwarded_allow_ips=list(config.trusted_proxies),
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_DRAIN_S,
    )
    with _serving(settings, [listener], lambda: ends.put(_API_ENDED)):
        yield


@contextmanager
def _serving(
    settings: uvicorn.Config,
    sockets: list[socket.socket] | None = None,
    ended: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Run a server in a thread, so that the main one is free for signals."""
    server = uvicorn.Server(settings)

    def serve() -> None:
        try:
            server.run(sockets)
        finally:
            ended()

    thread = threading.Thread(target=serve, name="server", daemon=True)
    thread.start()
    while thread.is_alive() and not server.started:
        time.sleep(_START_POLL_S)
    if not server.started:
        raise OsmosisError("the platform's API could not start; the log says why.", code="INTERNAL")
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def _executing(services: PlatformServices, config: PlatformConfig) -> Iterator[None]:
    """Execute the runs without a pool: on this machine, or on a Ray cluster."""
    if config.ray is None:
        with local_host(services, config):
            yield
        return
    jobs = RayJobs(config.ray, partial(worker_entrypoint, platform_url=config.base_url))
    launcher = RayLauncher(services.queue, services.worker_access, jobs, slots=config.executor_slots)
    launcher.start()
    try:
        yield
    finally:
        launcher.close()


@contextmanager
def local_host(
    services: PlatformServices, config: PlatformConfig, start_worker: StartWorker | None = None
) -> Iterator[Host]:
    """Run a host in this process. Its workers reach the platform over a socket that only this user can open."""
    services.queue.give_back_local()
    with _worker_socket(services) as address:
        blobs = services.blobs
        has_keys = isinstance(blobs, S3BlobStore) and blobs.has_credentials_of_machine()
        start = start_worker or worker_starter(config, address, has_bucket_keys=has_keys)
        client = WorkerClient(address, services.worker_access.local_token)
        host = Host(
            client,
            start,
            HostOptions(slots=config.executor_slots),
            config.runs_dir,
            say=logger.info,
            claimable=services.queue.claimable,
        )

        def execute() -> None:
            try:
                host.run()
            except KeyboardInterrupt:
                logger.warning("the workers did not release their runs in time and were killed")
            except OsmosisError as error:
                logger.error("this machine executes no more runs: %s", error.message)

        thread = threading.Thread(target=execute, name="host", daemon=True)
        thread.start()
        try:
            yield host
        finally:
            host.ask_to_end()
            thread.join(_HOST_ENDS_WITHIN_S)
            host.ask_to_end()
            thread.join()
            client.close()


@contextmanager
def _worker_socket(services: PlatformServices) -> Iterator[str]:
    """Serve the worker protocol on a private socket; yields its address."""
    listener = PrivateSocket()
    settings = uvicorn.Config(
        create_worker_app(services),
        fd=listener.fileno(),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_WORKERS_DRAIN_S,
    )
    try:
        with _serving(settings):
            yield listener.address
    finally:
        listener.remove()


def _most_connections(config: PlatformConfig) -> int:
    """Return the maximum number of connections: the configured one, limited by the process's open files."""
    import resource

    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = max(8, allowed - _OTHER_DESCRIPTORS)
    if allowed == resource.RLIM_INFINITY or possible >= config.max_connections:
        return config.max_connections
    logger.info(
        "at most %d connections at a time: the process may open %d files (LimitNOFILE, ulimit -n)",
        possible,
        allowed,
    )
    return possible
