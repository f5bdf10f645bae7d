"""Starts, watches and restarts the rollout servers of a run, which its attempts share."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from osmosis_ai.config.execution import MOST_SERVERS
from osmosis_ai.controller import _server_bootstrap
from osmosis_ai.controller._server_bootstrap import INSTANCE_ENV, INSTANCE_HEADER, LISTENER_ENV
from osmosis_ai.controller.environments import RolloutEnvironment, prepare_environment, running_environment
from osmosis_ai.errors import OsmosisError, reason_of
from osmosis_ai.llm.providers import ONLY_ADDRESS_ENV
from osmosis_ai.processes.addresses import PrivateSocket, open_server_session, server_url
from osmosis_ai.processes.service import (
    Deaths,
    Service,
    ServiceDiedError,
    ServiceError,
    ServiceSpec,
    free_port,
    is_free,
)
from osmosis_ai.rollout.cli_utils import names_an_attribute
from osmosis_ai.sandbox.bubblewrap import InnerListener, Sandbox, SandboxedProgram

if TYPE_CHECKING:
    from typing_extensions import Self

    from osmosis_ai.controller.callbacks import CallbackListener, CallbackRolloutDriver
    from osmosis_ai.controller.remote_agents import RemoteAgent
    from osmosis_ai.rollout.driver import RolloutOutcome, RolloutRunRequest


HEALTH_TIMEOUT_S = 90.0
HEALTH_TIMEOUT_ENV = "OSMOSIS_ROLLOUT_START_TIMEOUT_S"
MAX_RESTARTS = 3
MAX_FAILED_STARTS = 4
"""How often in a row starting one server may fail."""
SETTLE_LIMIT_S = 120.0
BUSY_TIMEOUT_S = 1.0

_LOOPBACK = ("127.0.0.1", "localhost")
# The first two name the Python of the parent, not the rollout's. The token is the user's own.
_NOT_INHERITED = ("VIRTUAL_ENV", "PYTHONHOME", "OSMOSIS_TOKEN")
_POLL_S = 0.5
# A dying server refuses connections shortly before its end is detected.
_DEATH_NOTICE_S = 1.0


@dataclass(frozen=True)
class ServerSpec:
    """A rollout server to start."""

    rollout_dir: Path
    entrypoint: str
    python: Path
    env: Mapping[str, str] = field(repr=False)
    artifact_root: Path
    port: int | None
    log_path: Path
    secret_values: frozenset[str] = field(default=frozenset(), repr=False)
    sandbox: Sandbox | None = None
    health_timeout_s: float = HEALTH_TIMEOUT_S
    note: Callable[[str], None] = lambda _: None
    number: int = 1
    of: int = 1


class RolloutServer(Service):
    """The process that runs a rollout's entrypoint in the rollout's environment; an async context manager.

    It has started when its ``/health`` returns the identity that this process gave it. It does not authenticate
    callers, so uvicorn gets a private Unix socket in place of the port. It listens on a port if the user chose one, or
    if the entrypoint does not serve with uvicorn.
    """

    def __init__(self, spec: ServerSpec) -> None:
        name, log_path = f"the rollout server `{spec.entrypoint}`", spec.log_path
        if spec.number > 1:
            name += f" ({spec.number} of {spec.of})"
            log_path = log_path.with_name(f"{log_path.stem}-{spec.number}{log_path.suffix}")
        with_uvicorn = "with uvicorn " if spec.sandbox is not None and not spec.port else ""
        super().__init__(
            ServiceSpec(
                name=name,
                command=[],
                env={},
                cwd=spec.rollout_dir,
                log_path=log_path,
                start_timeout_s=spec.health_timeout_s,
                late_hint=f"the entrypoint must serve {with_uvicorn}on the port in `_OSMOSIS_ROLLOUT_PORT` and keep "
                f"running; if it only needs longer, set {HEALTH_TIMEOUT_ENV} (seconds)",
                # Servers that die together, for example of a memory shortage, count as one death.
                restarts=MAX_RESTARTS + spec.of - 1,
                secret_values=spec.secret_values,
            )
        )
        self.rollout = spec
        self.callbacks: CallbackListener | None = None
        """Listener that a server in a sandbox without a network must reach."""
        self.capacity: int | None = None
        """Maximum number of concurrent rollouts; None if unknown."""
        self._resources = AsyncExitStack()
        self._listener: PrivateSocket | None = None
        self._inner: InnerListener | None = None
        self._part = f"server-{spec.number}"
        self._has_warned = False

    @property
    def base_url(self) -> str:
        """Its address while it runs, for :func:`osmosis_ai.processes.open_server_session`."""
        if self.address is None:
            raise RuntimeError(f"{self.spec.name} is not running")
        return self.address

    async def start(self) -> None:
        """Start the server, unless it was launched, and wait until it is healthy."""
        attempts = {"address in use": 1 if self.rollout.port else 2, "killed": 3}
        for attempt in itertools.count(1):
            try:
                await self._start_once()
                return
            except ServiceError as error:
                # The entrypoint is not the cause: the machine is out of memory or overloaded.
                error.is_infrastructure = error.cause in ("killed", "late")
                if attempt >= attempts.get(error.cause, 1):
                    raise

    async def stop(self) -> None:
        """End the server and everything it started; cancellation kills them."""
        try:
            await super().stop()
        finally:
            await self._resources.aclose()

    def _ended(self, status: int, what: str) -> ServiceError:
        sandbox = self.rollout.sandbox
        limit = sandbox.control.end_of(self._part) if sandbox is not None else None
        if limit is None:
            return super()._ended(status, what)
        return self._failed("ended", f"{what} ({limit.words})", status=status, hint=limit.remedy)

    async def _start_once(self) -> None:
        try:
            if self._process is None:
                self.launch()
            await super().start()
            if self._listener is not None:
                self._listener.let_go()
            if self._inner is not None and self.callbacks is not None:
                self._resources.push_async_callback(await self.callbacks.listen_on(self._inner.take()))
        except OSError as error:
            await self.stop()
            raise ServiceError(
                f"{self.spec.name} cannot be reached: {error.strerror or error}.",
                "not started",
                hint="make sure that the directory for temporary files (`TMPDIR`) is writable",
            ) from error
        self.capacity = _capacity(self.answer or {})
        if self._listener is not None and self.base_url != self._listener.address and not self._has_warned:
            self._has_warned = True
            self.rollout.note(
                "The rollout server listens on a port, so every user of this machine can send it rollouts. An entrypoint "
                "that serves with uvicorn on the port in _OSMOSIS_ROLLOUT_PORT gets a private socket instead."
            )

    def launch(self) -> None:
        """Start the process; :meth:`start` waits for it, and launches it again if this raised an error."""
        self.rollout.artifact_root.mkdir(parents=True, exist_ok=True)
        rollout, sandbox, callbacks = self.rollout, self.rollout.sandbox, self.callbacks
        port = rollout.port or free_port()
        # Another server there could pass for this one: some entrypoints do not report their identity.
        if not is_free(port):
            message = f"port {port} is already in use, so the rollout server cannot listen on it."
            hint = "choose another port, or omit it, because the server does not need one"
            raise ServiceError(message, "address in use", hint=hint)
        identity, artifact_root = secrets.token_hex(16), rollout.artifact_root.resolve()
        env = {name: value for name, value in rollout.env.items() if name not in _NOT_INHERITED}
        # Callbacks and model calls stay on this machine; a proxy must not see them.
        for name in ("NO_PROXY", "no_proxy"):
            env[name] = ",".join(filter(None, [env.get(name, ""), *_LOOPBACK]))
        env |= {
            "PYTHONUNBUFFERED": "1",
            INSTANCE_ENV: identity,
            "_OSMOSIS_ROLLOUT_HOST": _LOOPBACK[0],
            "_OSMOSIS_ROLLOUT_PORT": str(port),
            "ROLLOUT_PORT": str(port),
            "_OSMOSIS_ROLLOUT_ARTIFACT_ROOT": str(artifact_root),
        }
        program = [str(rollout.python), _server_bootstrap.__file__, rollout.entrypoint]
        addresses = [f"http://{_LOOPBACK[0]}:{port}"]
        if not rollout.port:
            listener = self._listener = PrivateSocket()
            self._resources.callback(listener.remove)
            env[LISTENER_ENV] = str(listener.fileno())
            # The port of a server in a sandbox is out of reach.
            addresses = [listener.address, *(addresses if sandbox is None else [])]
        if sandbox is not None and sandbox.network == "none" and callbacks is not None:
            inner = self._inner = InnerListener(callbacks.port)
            self._resources.callback(inner.close)
            env[ONLY_ADDRESS_ENV] = inner.authority
            program = inner.command(rollout.python, program)
        command: list[str] | SandboxedProgram = program
        if sandbox is not None:
            cwd = rollout.rollout_dir.resolve()
            command = sandbox.command(program, cwd=cwd, writable=[artifact_root], part=self._part)
        self.spec = replace(
            self.spec,
            command=command,
            env=env,
            addresses=addresses,
            pass_fds=[each.fileno() for each in (self._listener, self._inner) if each is not None],
            is_ours=lambda headers, body: (
                (headers.get(INSTANCE_HEADER) or body.get("instance_id")) in (None, identity)
            ),
        )
        self._spawn()


def _capacity(health: Mapping[str, Any]) -> int | None:
    limits, concurrency = [health.get("max_queue_depth")], health.get("concurrency")
    if isinstance(concurrency, Mapping):
        limits.append(concurrency.get("max_concurrent"))
    return next((limit for limit in limits if type(limit) is int and limit > 0), None)


def health_timeout(environ: Mapping[str, str]) -> float:
    """Return how long a server may take to become healthy, in seconds."""
    text = environ.get(HEALTH_TIMEOUT_ENV, "").strip() or str(HEALTH_TIMEOUT_S)
    with contextlib.suppress(ValueError):
        if 0.0 < (seconds := float(text)) < math.inf:
            return seconds
    raise OsmosisError(f"{HEALTH_TIMEOUT_ENV} must be a number of seconds above 0, not '{text}'.")


async def prepare_server(
    rollout_dir: Path,
    entrypoint: str,
    *,
    environ: Mapping[str, str],
    variables: Mapping[str, str],
    secret_values: Mapping[str, str],
    artifact_root: Path,
    log_path: Path,
    cache_dir: Path,
    note: Callable[[str], None],
    port: int | None = None,
    sandbox: Sandbox | None = None,
) -> tuple[RolloutEnvironment, RolloutServer]:
    """Build a rollout's environment; return it and the rollout's server in it, not yet started."""
    if names_an_attribute(entrypoint):
        environment = running_environment(", which is the agent's too")
    else:
        abandoned = threading.Event()
        prepare = partial(prepare_environment, cache_dir=cache_dir, note=note, sandbox=sandbox)
        try:
            environment = await asyncio.to_thread(prepare, rollout_dir, abandoned=abandoned)
        finally:
            abandoned.set()  # a cancelled thread would run on
    spec = ServerSpec(
        rollout_dir=rollout_dir,
        entrypoint=entrypoint,
        python=environment.python,
        env={**environ, **variables, **secret_values},
        artifact_root=artifact_root,
        port=port,
        log_path=log_path,
        secret_values=frozenset(secret_values.values()),
        sandbox=sandbox and replace(sandbox, readable=(*sandbox.readable, *environment.readable)),
        health_timeout_s=health_timeout(environ),
        note=note,
    )
    return environment, RolloutServer(spec)


def several(server: RolloutServer, count: int) -> list[RolloutServer]:
    """Return ``server``, or ``count`` servers like it, not started, which share one budget of restarts."""
    if count == 1:
        return [server]
    deaths = Deaths(whose="the rollout's servers")
    servers = [RolloutServer(replace(server.rollout, number=n, of=count)) for n in range(1, count + 1)]
    for each in servers:
        each.callbacks, each.deaths = server.callbacks, deaths
    return servers


class AttemptLostError(Exception):
    """The attempt will never report back; its outcome is unknown."""

    def __init__(self, reason: str, *, death: OsmosisError | None) -> None:
        super().__init__(reason)
        self.death = death


@dataclass(eq=False)
class PooledServer:
    """One server of a pool, and the rollouts on it."""

    server: RolloutServer | RemoteAgent
    base_url: str = ""
    """Address of the running server; empty while it does not run."""
    error: Exception | None = None
    """The reason why it is not restarted."""
    rollouts: set[asyncio.Task[RolloutOutcome]] = field(default_factory=set)
    driver: CallbackRolloutDriver = field(init=False)
    death: asyncio.Future[OsmosisError] = field(init=False)

    async def run(self, request: RolloutRunRequest) -> RolloutOutcome:
        """Run one rollout on the running server; raises :class:`AttemptLostError`."""
        import aiohttp

        death = self.death
        rollout = asyncio.create_task(self.driver.run(request))
        self.rollouts.add(rollout)
        try:
            return await rollout
        except asyncio.CancelledError:
            if not (death.done() and rollout.cancelled()):
                raise
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            await asyncio.wait([death], timeout=_DEATH_NOTICE_S)
            if not death.done():
                reason = reason_of(error) or type(error).__name__
                lost = f"the rollout's server could not be reached: {reason}"
                raise AttemptLostError(lost, death=None) from None
        finally:
            self.rollouts.discard(rollout)
        raise AttemptLostError("the rollout's server died", death=death.result())


class ServerPool:
    """Runs rollouts on the servers of a run; an async context manager, created on its event loop.

    A rollout goes to the server with the fewest. A server that dies loses its own rollouts and is restarted; the others
    continue. All servers share one budget of restarts, so the run ends when servers die without any attempt finishing
    in between. A server that cannot be restarted is left out while another one remains.
    """

    def __init__(
        self,
        servers: Sequence[RolloutServer | RemoteAgent],
        *,
        connect: Callable[[str], CallbackRolloutDriver],
        note: Callable[[str], None],
        reports_load: bool = True,
    ) -> None:
        self.servers = [PooledServer(server) for server in servers]
        self.on_change: Callable[[], None] = lambda: None
        self._connect = connect
        self._note = note
        self._reports_load = reports_load
        self._changed = asyncio.Event()
        self._supervisors: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        """Start all servers at once."""
        try:
            await asyncio.gather(*map(self._start, self.servers))
            errors = [server.error for server in self.servers if server.error is not None]
            if errors and not self.up:
                raise errors[0]
            for error in errors:
                self._note_left_out(error)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_exc: object) -> None:
        for supervisor in self._supervisors:
            supervisor.cancel()
        await asyncio.gather(*self._supervisors, return_exceptions=True)
        await asyncio.gather(*(server.server.stop() for server in self.servers))

    @property
    def capacity(self) -> int | None:
        """How many rollouts the servers run at once in total; None when one of them has no limit."""
        capacities = [server.server.capacity for server in self.servers if server.error is None]
        limits = [capacity for capacity in capacities if capacity is not None]
        return sum(limits) if len(limits) == len(capacities) else None

    @property
    def up(self) -> list[PooledServer]:
        """The servers that take rollouts now."""
        return [server for server in self.servers if server.base_url]

    async def busy(self) -> float:
        """Return how busy the busiest event loop of the servers is (0..1)."""
        if not self._reports_load:
            return 0.0
        return max(await asyncio.gather(*(_ask_busy(server.base_url) for server in self.up)), default=0.0)

    def share(self, limit: int) -> int:
        """Return how many of ``limit`` rollouts the servers that are up may run."""
        return math.ceil(limit * len(self.up) / len(self.servers))

    def attempt_finished(self) -> None:
        """Record that an attempt finished, which restores the budget of restarts."""
        for server in self.servers:
            server.server.made_progress()

    async def run(self, request: RolloutRunRequest) -> RolloutOutcome:
        """Run one rollout on the server with the fewest, waiting first while no server runs."""
        while not self.up:
            errors = [server.error for server in self.servers if server.error is not None]
            if len(errors) == len(self.servers):
                raise next((error for error in errors if isinstance(error, ServiceDiedError)), errors[-1])
            await self._changed.wait()
        return await min(self.up, key=lambda server: len(server.rollouts)).run(request)

    async def wait_until_ended(self, rollout_ids: Collection[str]) -> frozenset[str]:
        """Wait until the servers have released cancelled rollouts; return those that remain at the limit."""
        remaining = frozenset(rollout_ids)
        deadline = time.monotonic() + SETTLE_LIMIT_S
        while True:
            busy = await asyncio.gather(*(_still_busy(server.base_url, remaining) for server in self.up))
            remaining = frozenset().union(*busy)
            if not remaining or time.monotonic() >= deadline:
                return remaining
            await asyncio.sleep(_POLL_S)

    async def _start(self, server: PooledServer) -> None:
        try:
            await server.server.start()
        except OsmosisError as error:
            server.error = error
        else:
            self._begin(server)
            self._supervisors.append(asyncio.create_task(self._supervise(server)))

    def _begin(self, server: PooledServer) -> None:
        """Let a server that was started take rollouts."""
        server.base_url = server.server.base_url
        server.driver = self._connect(server.base_url)
        server.death = asyncio.get_running_loop().create_future()

    async def _supervise(self, server: PooledServer) -> None:
        """Restart a server when it dies, until it cannot be restarted."""
        try:
            while True:
                try:
                    server.death.set_result(await server.server.death())
                finally:
                    server.base_url = ""
                    self._change()
                    for rollout in server.rollouts:
                        rollout.cancel()
                    await asyncio.gather(*server.rollouts, return_exceptions=True)
                    await server.driver.aclose()
                await self._restart(server)
                self._begin(server)
                self._change()
        except Exception as error:
            # Attempts that wait for a server, now or later, get the reason.
            server.error = error
            self._note_left_out(error)
            self._change()

    async def _restart(self, server: PooledServer) -> None:
        """Restart a server; a process that ends before it is healthy counts as another death."""
        for start in range(1, MAX_FAILED_STARTS + 1):
            try:
                await server.server.revive(self._note)
                return
            except ServiceDiedError as error:
                error.hint = (
                    "no attempt has finished in between. Fix the rollout, then start the run again: "
                    "finished results are kept"
                )
                raise
            except ServiceError:
                if start == MAX_FAILED_STARTS:
                    raise

    def _note_left_out(self, error: Exception) -> None:
        remaining = sum(each.error is None for each in self.servers)
        if remaining:
            reason = str(error).splitlines()[0].rstrip(".")
            self._note(f"{reason}. The run continues with {remaining} of {len(self.servers)} servers.")

    def _change(self) -> None:
        self._changed.set()
        self._changed.clear()
        self.on_change()


async def _still_busy(base_url: str, rollout_ids: Collection[str]) -> set[str]:
    """Return the rollouts that are, or may be, running on a server."""
    import aiohttp

    busy = set()
    async with open_server_session(base_url, timeout_s=5.0) as http:
        for rollout_id in rollout_ids:
            path = f"/rollout/{quote(rollout_id, safe='')}/status"
            try:
                async with http.get(server_url(base_url, path)) as reply:
                    body = await reply.json(content_type=None) if reply.status == 200 else {}
                    status = body.get("status") if isinstance(body, dict) else None
                    if reply.status >= 500 or status in ("queued", "running", "grading"):
                        busy.add(rollout_id)
            except aiohttp.ClientConnectorError:
                break  # the server is gone
            except (aiohttp.ClientError, asyncio.TimeoutError, ValueError):
                busy.add(rollout_id)
    return busy


async def _ask_busy(base_url: str) -> float:
    """Return the share of the last second in which a server's event loop had work; 0 if it is not reported.

    A server that does not answer within :data:`BUSY_TIMEOUT_S` is saturated.
    """
    import aiohttp

    try:
        async with (
            open_server_session(base_url, timeout_s=BUSY_TIMEOUT_S) as session,
            session.get(server_url(base_url, "/health")) as reply,
        ):
            return float((await reply.json(content_type=None))["event_loop"]["busy"])
    except asyncio.TimeoutError:
        return 1.0
    except (aiohttp.ClientError, OSError, ValueError, TypeError, KeyError):
        return 0.0


def default_servers(*, cpus: float | None = None, gpus: int | None = None) -> int:
    """Return how many servers a run has by default."""
    return 1 if gpus else max(1, min(MOST_SERVERS, granted_cores(cpus) - 1))


def useful_servers(requested: int, *, rollouts: int, at_once: int | None) -> int:
    """Return how many of the requested servers would have work."""
    return max(1, min(requested, rollouts, at_once or requested))


def granted_cores(cpus: float | None = None, root: Path = Path("/")) -> int:
    """Return how many processors this process may use: by its affinity, its control groups and ``cpus``."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    counts = [affinity, *granted_processors(root), *([] if cpus is None else [cpus])]
    return max(1, math.floor(min(counts)))


def granted_processors(root: Path = Path("/")) -> Iterator[float]:
    """Yield the processor time that each control group of this process grants, in processors."""
    # One file in version 2 of control groups, two in version 1.
    for files in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        for quota, period in _read_limits("cpu", files, root):
            if quota > 0 and period > 0:
                yield quota / period


def granted_memory(root: Path = Path("/")) -> Iterator[int]:
    """Yield the memory that each control group of this process grants, in bytes."""
    for file in ("memory.max", "memory.limit_in_bytes"):
        yield from (limit for (limit,) in _read_limits("memory", [file], root) if limit > 0)


def _read_limits(controller: str, files: list[str], root: Path) -> Iterator[list[int]]:
    """Yield the numbers in such files of this process's control groups and their parents."""
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in groups:
        _, _, group = line.partition(":")
        controllers, _, path = group.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if controllers else "")
        directory = mount / path.lstrip("/")
        for parent in (directory, *directory.parents):
            with contextlib.suppress(OSError, ValueError):  # missing, or "max"
                if parent.is_relative_to(mount):
                    yield [int(word) for name in files for word in (parent / name).read_text().split()]
