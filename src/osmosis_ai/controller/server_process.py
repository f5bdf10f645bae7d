"""Rollout servers of a run: started, watched, restarted when they die, and shared by the run's attempts."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from osmosis_ai.config.execution import MOST_SERVERS
from osmosis_ai.controller import _server_bootstrap
from osmosis_ai.controller._server_bootstrap import INSTANCE_ENV, INSTANCE_HEADER, LISTENER_ENV
from osmosis_ai.controller.environments import RolloutEnvironment, prepare_environment, running_environment
from osmosis_ai.errors import OsmosisError, reason_of
from osmosis_ai.llm.transport import ONLY_ADDRESS_ENV
from osmosis_ai.rollout.loop.entrypoints import names_an_attribute
from osmosis_ai.sandbox import InnerListener, Sandbox, SandboxedProgram
from osmosis_ai.supervision import (
    Deaths,
    PrivateSocket,
    Service,
    ServiceDiedError,
    ServiceError,
    ServiceSpec,
    free_port,
    is_free,
    open_server_session,
    server_url,
)

if TYPE_CHECKING:
    import aiohttp
    from typing_extensions import Self

    from osmosis_ai.controller.callbacks import CallbackListener, CallbackRolloutDriver
    from osmosis_ai.controller.remote_agents import RemoteAgent
    from osmosis_ai.rollout.driver import RolloutOutcome, RolloutRunRequest


CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
HEALTH_TIMEOUT_S = 90.0
HEALTH_TIMEOUT_ENV = "OSMOSIS_ROLLOUT_START_TIMEOUT_S"
PORT_ATTEMPTS = 2
KILLED_ATTEMPTS = 3
MAX_RESTARTS = 3
MAX_FAILED_STARTS = 4
"""How often in a row starting one server may fail."""
SETTLE_LIMIT_S = 120.0
BUSY_TIMEOUT_S = 1.0

_LOOPBACK = ("127.0.0.1", "localhost")
# The first two name the Python of the parent, not the rollout's. The token is the user's own.
_NOT_INHERITED = ("VIRTUAL_ENV", "PYTHONHOME", "OSMOSIS_TOKEN")
_POLL_S = 0.5
_STATUS_TIMEOUT_S = 5.0
# A dying server refuses connections a little before its end is noticed.
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

    @property
    def part(self) -> str:
        """Its name among the programs of the run."""
        return f"server-{self.number}"


class RolloutServer(Service):
    """The process that runs a rollout's entrypoint in the rollout's environment; an async context manager.

    It has started when its ``/health`` returns the identity that this process gave it. It does not authenticate
    callers, so uvicorn gets a private Unix socket in place of the port
    (:mod:`osmosis_ai.controller._server_bootstrap`). It listens on a port if the user chose one, or if the entrypoint
    does not serve with uvicorn.
    """

    def __init__(self, spec: ServerSpec) -> None:
        super().__init__(_service(spec, spec.port or 0, None, None))
        self.rollout = spec
        self.callbacks: CallbackListener | None = None
        """Listener that a server in a sandbox without a network must reach."""
        self._resources = AsyncExitStack()
        self._has_warned = False

    @property
    def base_url(self) -> str:
        """Its address while it runs, for :func:`osmosis_ai.supervision.open_server_session`."""
        if self.address is None:
            raise RuntimeError(f"{self.spec.name} is not running")
        return self.address

    @property
    def capacity(self) -> int | None:
        """How many rollouts it takes at once; None if unknown."""
        health = self.answer or {}
        concurrency = health.get("concurrency")
        limits = (
            health.get("max_queue_depth"),
            concurrency.get("max_concurrent") if isinstance(concurrency, Mapping) else None,
        )
        return next((value for value in limits if type(value) is int and value > 0), None)

    async def start(self) -> None:
        """Start the server and wait until it is healthy."""
        self.rollout.artifact_root.mkdir(parents=True, exist_ok=True)
        attempts = {"address in use": 1 if self.rollout.port else PORT_ATTEMPTS, "killed": KILLED_ATTEMPTS}
        while True:
            try:
                await self._start_once()
                break
            except ServiceError as error:
                # Not the entrypoint's fault: the machine is short of memory or overloaded.
                error.is_infrastructure = error.cause in ("killed", "late")
                attempts[error.cause] = attempts.get(error.cause, 1) - 1
                if not attempts[error.cause]:
                    raise
        if not self.rollout.port and self.base_url.startswith("http://") and not self._has_warned:
            self._has_warned = True
            self.rollout.note(
                "The rollout server listens on a port, so every user of this machine can send it rollouts. An entrypoint "
                "that serves with uvicorn on the port in _OSMOSIS_ROLLOUT_PORT gets a private socket instead."
            )

    async def stop(self) -> None:
        """End it and everything it started; cancelling kills them."""
        try:
            await super().stop()
        finally:
            await self._resources.aclose()

    def _ended(self, status: int, what: str) -> ServiceError:
        sandbox = self.rollout.sandbox
        limit = sandbox.control.end_of(self.rollout.part) if sandbox is not None else None
        if limit is None:
            return super()._ended(status, what)
        return self._failed("ended", f"{what} ({limit.words})", status=status, hint=limit.remedy)

    async def _start_once(self) -> None:
        rollout = self.rollout
        port = rollout.port or free_port()
        if not is_free(port):
            raise ServiceError(
                f"port {port} is already in use, so the rollout server cannot listen on it.",
                "address in use",
                hint="choose another port, or omit it: the server then needs none.",
            )
        listener = inner = None
        if not rollout.port:
            listener = _private_socket()
            self._resources.callback(listener.remove)
        if rollout.sandbox is not None and rollout.sandbox.network == "none" and self.callbacks is not None:
            inner = InnerListener(self.callbacks.port)
            self._resources.callback(inner.close)
        self.spec = _service(rollout, port, listener, inner)
        await super().start()
        if listener is not None:
            listener.let_go()
        if inner is not None and self.callbacks is not None:
            try:
                self._resources.push_async_callback(await self.callbacks.listen_on(inner.take()))
            except OSError as error:
                await self.stop()
                message = f"{self.spec.name} cannot be reached in its sandbox: {error.strerror or error}."
                raise ServiceError(message, "not started") from error


def _private_socket() -> PrivateSocket:
    try:
        return PrivateSocket()
    except OSError as error:
        raise ServiceError(
            f"cannot create a socket for the rollout server ({error.strerror or error}).",
            "not started",
            hint="make the directory for temporary files writable, or set `TMPDIR` to another",
        ) from error


def _service(
    rollout: ServerSpec, port: int, listener: PrivateSocket | None, inner: InnerListener | None
) -> ServiceSpec:
    env = {name: value for name, value in rollout.env.items() if name not in _NOT_INHERITED}
    # Callbacks and model calls stay on this machine; a proxy must not see them.
    for name in ("NO_PROXY", "no_proxy"):
        env[name] = ",".join(filter(None, [env.get(name, ""), *_LOOPBACK]))
    identity = secrets.token_hex(16)
    env |= {
        "PYTHONUNBUFFERED": "1",
        INSTANCE_ENV: identity,
        "_OSMOSIS_ROLLOUT_HOST": _LOOPBACK[0],
        "_OSMOSIS_ROLLOUT_PORT": str(port),
        "ROLLOUT_PORT": str(port),
        "_OSMOSIS_ROLLOUT_ARTIFACT_ROOT": str(rollout.artifact_root.resolve()),
    }
    addresses = [listener.address] if listener is not None else []
    if listener is None or rollout.sandbox is None:
        addresses.append(f"http://{_LOOPBACK[0]}:{port}")
    program = [str(rollout.python), _server_bootstrap.__file__, rollout.entrypoint]
    if listener is not None:
        env[LISTENER_ENV] = str(listener.fileno())
    if inner is not None:
        env[ONLY_ADDRESS_ENV] = inner.authority
        program = inner.command(rollout.python, program)
    command: list[str] | SandboxedProgram = program
    if rollout.sandbox is not None:
        command = rollout.sandbox.command(
            program,
            cwd=rollout.rollout_dir.resolve(),
            writable=[rollout.artifact_root.resolve()],
            part=rollout.part,
        )
    name, log_path = f"the rollout server `{rollout.entrypoint}`", rollout.log_path
    if rollout.number > 1:
        name += f" ({rollout.number} of {rollout.of})"
        log_path = log_path.with_name(f"{log_path.stem}-{rollout.number}{log_path.suffix}")
    with_uvicorn = "" if len(addresses) > 1 or listener is None else "with uvicorn "
    return ServiceSpec(
        name=name,
        command=command,
        env=env,
        cwd=rollout.rollout_dir,
        log_path=log_path,
        addresses=addresses,
        pass_fds=[each.fileno() for each in (listener, inner) if each is not None],
        is_ours=lambda headers, body: (
            (headers.get(INSTANCE_HEADER) or body.get("instance_id")) in (None, identity)
        ),
        start_timeout_s=rollout.health_timeout_s,
        late_hint=f"the entrypoint must serve {with_uvicorn}on the port in `_OSMOSIS_ROLLOUT_PORT` and keep running; "
        f"if it only needs longer, set {HEALTH_TIMEOUT_ENV} (seconds)",
        # Servers that die together, as when memory is short, count as one death.
        restarts=MAX_RESTARTS + rollout.of - 1,
        secret_values=rollout.secret_values,
    )


def health_timeout(environ: Mapping[str, str]) -> float:
    """Return how long a server may take to become healthy, in seconds."""
    text = environ.get(HEALTH_TIMEOUT_ENV, "").strip()
    if not text:
        return HEALTH_TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise OsmosisError(f"{HEALTH_TIMEOUT_ENV} must be a number of seconds above 0, not '{text}'.")
    return seconds


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
        environment = await asyncio.to_thread(
            prepare_environment, rollout_dir, cache_dir=cache_dir, note=note, sandbox=sandbox
        )
        note(f"environment: {environment.summary}")
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
    """Return ``count`` servers like ``server``, not started, which share one budget of restarts."""
    deaths = Deaths(whose="the rollout's servers" if count > 1 else None)
    servers = []
    for number in range(1, count + 1):
        each = RolloutServer(replace(server.rollout, number=number, of=count))
        each.callbacks, each.deaths = server.callbacks, deaths
        servers.append(each)
    return servers


class AttemptLostError(Exception):
    """The attempt will never report back; its outcome is unknown."""

    def __init__(self, reason: str, *, death: OsmosisError | None) -> None:
        super().__init__(reason)
        self.death = death


class RestartingServer:
    """One server of a run, restarted when it dies; created on its event loop.

    Rollouts on a server that dies are lost at once. Restarting ends when servers die one after the other without
    finishing an attempt in between (:attr:`end` has the reason).
    """

    def __init__(
        self,
        server: RolloutServer | RemoteAgent,
        *,
        connect: Callable[[str], CallbackRolloutDriver],
        note: Callable[[str], None],
        changed: Callable[[], None],
    ) -> None:
        self.server = server
        self.base_url: str | None = None
        """Address of the running server; None while it does not run."""
        self.capacity: int | None = None
        self.rollouts: set[asyncio.Task[RolloutOutcome]] = set()
        self.end: Exception | None = None
        self._connect = connect
        self._note = note
        self._changed = changed
        self._driver: CallbackRolloutDriver | None = None
        self._death: asyncio.Future[OsmosisError] | None = None
        self._supervisor: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the server, and restart it from now on when it dies."""
        try:
            await self.server.start()
        except OsmosisError as error:
            self.end = error
            raise
        self.capacity = self.server.capacity
        self._supervisor = asyncio.create_task(self._supervise(self._begin()))

    async def stop(self) -> None:
        """Stop the server for good."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
            self._supervisor = None
        await self._end()
        await self.server.stop()

    async def run(self, request: RolloutRunRequest) -> RolloutOutcome:
        """Run one rollout on the running server.

        Raises:
            AttemptLostError: the server, or the connection to it, was lost.
        """
        import aiohttp

        driver, death = self._driver, self._death
        if driver is None or death is None:
            raise RuntimeError("the rollout's server is not running")
        rollout = asyncio.create_task(driver.run(request))
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

    def _begin(self) -> asyncio.Future[OsmosisError]:
        """Let the started server take rollouts; return the future of its death."""
        self.base_url = self.server.base_url
        self._driver = self._connect(self.base_url)
        self._death = asyncio.get_running_loop().create_future()
        return self._death

    async def _end(self) -> None:
        """Cancel the rollouts of a server that died or is being stopped."""
        self.base_url = None
        for rollout in self.rollouts:
            rollout.cancel()
        await asyncio.gather(*self.rollouts, return_exceptions=True)
        if self._driver is not None:
            await self._driver.aclose()

    async def _supervise(self, death: asyncio.Future[OsmosisError]) -> None:
        """Restart the server when it dies, until cancelled or given up."""
        try:
            while True:
                death.set_result(await self.server.death())
                self.base_url = None
                self._changed()
                await self._end()
                await self._revive()
                death = self._begin()
                self._changed()
        except Exception as error:
            # Attempts that wait for a server, now or later, get the reason.
            self.end = error
            self._changed()

    async def _revive(self) -> None:
        """Restart the server; a process that ends before it is healthy counts as another death."""
        for start in range(1, MAX_FAILED_STARTS + 1):
            try:
                await self.server.revive(self._note)
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


class ServerPool:
    """Runs rollouts on the servers of a run; an async context manager, created on its event loop.

    A rollout goes to the server with the fewest. A server that dies loses its own rollouts; the others continue. All
    servers share one budget of restarts, so the run ends when servers die without any attempt finishing in between. A
    server that cannot be restarted is left out while another one remains.
    """

    def __init__(
        self,
        servers: Sequence[RolloutServer | RemoteAgent],
        *,
        connect: Callable[[str], CallbackRolloutDriver],
        note: Callable[[str], None],
        reports_load: bool = True,
    ) -> None:
        self.servers = [
            RestartingServer(server, connect=connect, note=note, changed=self._change) for server in servers
        ]
        self.on_change: Callable[[], None] = lambda: None
        self._note = note
        self._reports_load = reports_load
        self._changed = asyncio.Event()
        self._left_out: set[RestartingServer] = set()

    async def __aenter__(self) -> Self:
        """Start all servers at once."""
        try:
            starts = await asyncio.gather(
                *(server.start() for server in self.servers), return_exceptions=True
            )
            failures = [failure for failure in starts if failure is not None]
            unexpected = [failure for failure in failures if not isinstance(failure, OsmosisError)]
            if unexpected or len(failures) == len(starts):
                raise (unexpected or failures)[0]
            self._leave_out_ended()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stop the servers for good."""
        await asyncio.gather(*(server.stop() for server in self.servers))

    @property
    def capacity(self) -> int | None:
        """How many rollouts the servers run at once in total; None when one of them has no limit."""
        total = 0
        for server in self.servers:
            if server.end is None:
                if server.capacity is None:
                    return None
                total += server.capacity
        return total

    @property
    def up(self) -> list[RestartingServer]:
        """The servers that take rollouts now."""
        return [server for server in self.servers if server.base_url is not None]

    async def busy(self) -> float:
        """Return how busy the busiest event loop of the servers is (0..1)."""
        addresses = [server.base_url for server in self.servers if server.base_url is not None]
        if not self._reports_load:
            return 0.0
        return max(await asyncio.gather(*map(_ask_busy, addresses)), default=0.0)

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
            errors = [server.end for server in self.servers if server.end is not None]
            if len(errors) == len(self.servers):
                raise next((error for error in errors if isinstance(error, ServiceDiedError)), errors[-1])
            await self._changed.wait()
        return await min(self.up, key=lambda server: len(server.rollouts)).run(request)

    async def wait_until_ended(
        self, rollout_ids: Collection[str], *, limit_s: float = SETTLE_LIMIT_S
    ) -> frozenset[str]:
        """Wait until the servers have released cancelled rollouts; return those that remain after ``limit_s``."""
        remaining = frozenset(rollout_ids)
        deadline = time.monotonic() + limit_s
        while True:
            addresses = [server.base_url for server in self.servers if server.base_url is not None]
            asked = (_still_busy(address, remaining) for address in addresses)
            remaining = frozenset().union(*await asyncio.gather(*asked))
            if not remaining or time.monotonic() >= deadline:
                return remaining
            await asyncio.sleep(_POLL_S)

    def _change(self) -> None:
        self._leave_out_ended()
        self._changed.set()
        self._changed.clear()
        self.on_change()

    def _leave_out_ended(self) -> None:
        """Note the servers that will not be restarted."""
        ended = {server for server in self.servers if server.end is not None}
        remaining = len(self.servers) - len(ended)
        for server in ended - self._left_out:
            self._left_out.add(server)
            if remaining:
                reason = str(server.end).splitlines()[0].rstrip(".")
                self._note(f"{reason}. The run continues with {remaining} of {len(self.servers)} servers.")


async def _still_busy(base_url: str, rollout_ids: Collection[str]) -> set[str]:
    """Return the rollouts that are, or may be, running on a server."""
    async with open_server_session(base_url, timeout_s=_STATUS_TIMEOUT_S) as http:
        return {rollout_id for rollout_id in rollout_ids if await _is_busy(http, base_url, rollout_id)}


async def _is_busy(http: aiohttp.ClientSession, base_url: str, rollout_id: str) -> bool:
    import aiohttp

    try:
        path = f"/rollout/{quote(rollout_id, safe='')}/status"
        async with http.get(server_url(base_url, path)) as reply:
            if reply.status != 200:
                return reply.status >= 500
            body = await reply.json(content_type=None)
    except aiohttp.ClientConnectorError:
        return False  # the server is gone
    except (aiohttp.ClientError, asyncio.TimeoutError, ValueError):
        return True
    return isinstance(body, dict) and body.get("status") in ("queued", "running", "grading")


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
            body: Any = await reply.json(content_type=None)
            return float(body["event_loop"]["busy"])
    except asyncio.TimeoutError:
        return 1.0
    except (aiohttp.ClientError, OSError, ValueError, TypeError, KeyError):
        return 0.0


def default_servers(*, cpus: float | None = None, gpus: int | None = None) -> int:
    """Return how many servers a run has by default."""
    return 1 if gpus else max(1, min(MOST_SERVERS, granted_cores(cpus) - 1))


def useful_servers(asked: int, *, rollouts: int, at_once: int | None) -> int:
    """Return how many of the servers ``asked`` for would have work."""
    return max(1, min(asked, rollouts, at_once or asked))


def granted_cores(cpus: float | None = None, *, limits: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return how many processors this process may use: by its affinity, its control groups and ``cpus``."""
    counts: list[float] = [
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ]
    counts += granted_processors(limits, membership)
    if cpus is not None:
        counts.append(cpus)
    return max(1, math.floor(min(counts)))


def granted_processors(limits: Path = CGROUPS, membership: Path = MEMBERSHIP) -> Iterator[float]:
    """Yield the processor time that each control group of this process grants, in processors."""
    # One file in version 2 of control groups, two in version 1.
    files = ["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
    for quota, period in _read_limits("cpu", files, limits, membership):
        if quota > 0 and period > 0:
            yield quota / period


def granted_memory(limits: Path = CGROUPS, membership: Path = MEMBERSHIP) -> Iterator[int]:
    """Yield the memory that each control group of this process grants, in bytes; without a limit, version 1 has a huge number."""
    for (limit,) in _read_limits("memory", (["memory.max"], ["memory.limit_in_bytes"]), limits, membership):
        if limit > 0:
            yield limit


def _read_limits(
    controller: str, files: Sequence[list[str]], limits: Path, membership: Path
) -> Iterator[list[int]]:
    """Yield the numbers in such files of the control groups of this process and their parents."""
    try:
        groups = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        return
    for group in groups:
        if len(group) != 3 or (group[1] and controller not in group[1].split(",")):
            continue
        root = limits if not group[1] else limits / controller
        place = root / group[2].lstrip("/")
        for directory in {root, *(each for each in (place, *place.parents) if root in each.parents)}:
            for names in files:
                with contextlib.suppress(OSError, ValueError):  # missing, or "max"
                    yield [int(word) for name in names for word in (directory / name).read_text().split()]
