"""A run's rollout servers: started, watched, restarted when they die, and shared by its rollouts."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
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
    from osmosis_ai.rollout.driver import RolloutOutcome, RolloutRunRequest


CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
HEALTH_TIMEOUT_S = 90.0
HEALTH_TIMEOUT_ENV = "OSMOSIS_ROLLOUT_START_TIMEOUT_S"
PORT_ATTEMPTS = 2
KILLED_ATTEMPTS = 3
MAX_RESTARTS = 3
SOCKET_LOOK_S = 2.0
"""Seconds between two checks that a running server's socket exists."""
_LOOPBACK = ("127.0.0.1", "localhost")
# The first two name the Python of the parent, not the rollout's; the token is the user's own.
_NOT_INHERITED = ("VIRTUAL_ENV", "PYTHONHOME", "OSMOSIS_TOKEN")


@dataclass(frozen=True)
class ServerSpec:
    """What to start."""

    rollout_dir: Path
    entrypoint: str
    python: Path
    env: Mapping[str, str] = field(repr=False)
    artifact_root: Path
    port: int | None
    log_path: Path
    secret_values: frozenset[str] = field(default=frozenset(), repr=False)
    sandbox: Sandbox | None = None
    number: int = 1
    of: int = 1

    @property
    def part(self) -> str:
        """Its name among the programs of the run."""
        return f"server-{self.number}"

    @property
    def own_log(self) -> Path:
        """The file of this server's output."""
        path = self.log_path
        return path if self.number == 1 else path.with_name(f"{path.stem}-{self.number}{path.suffix}")


class RolloutServer(Service):
    """One rollout server: the rollout's entrypoint in the rollout's environment; an async context manager.

    It counts as started when its ``/health`` answers with the identity that this process gave it. It authenticates
    nobody, so it gets no port: uvicorn is given a Unix socket, as a descriptor, in place of the port
    (:mod:`osmosis_ai.controller._server_bootstrap`). An entrypoint that serves by other means listens on a port of
    this machine, and so does every one for which the user chose a port.
    """

    def __init__(
        self,
        spec: ServerSpec,
        *,
        health_timeout_s: float = HEALTH_TIMEOUT_S,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(_service(spec, spec.port or 0, None, None, health_timeout_s))
        self.rollout = spec
        self._note: Callable[[str], None] | None = note
        self._socket: PrivateSocket | None = None
        self._callbacks: CallbackListener | None = None
        self._inner: InnerListener | None = None
        self._disconnect: Callable[[], Awaitable[None]] | None = None

    def like(self, spec: ServerSpec) -> RolloutServer:
        """Return another server with its own ``spec``."""
        another = RolloutServer(
            spec, health_timeout_s=self.spec.start_timeout_s, note=self._note or (lambda _: None)
        )
        another._callbacks = self._callbacks
        return another

    @property
    def base_url(self) -> str:
        """Its address while it runs, for :func:`osmosis_ai.supervision.open_server_session`."""
        if self.address is None:
            raise RuntimeError(f"{self.spec.name} is not running")
        return self.address

    @property
    def capacity(self) -> int | None:
        """How many rollouts it takes at once; None if it does not report that, or is not running."""
        return capacity_of(self.answer or {})

    def serve_callbacks(self, callbacks: CallbackListener) -> None:
        """Make ``callbacks`` reachable from servers started from now on in a sandbox without a network."""
        self._callbacks = callbacks

    async def start(self) -> None:
        """Start the server and wait until it is healthy."""
        self.rollout.artifact_root.mkdir(parents=True, exist_ok=True)
        attempts = {"address in use": 1 if self.rollout.port else PORT_ATTEMPTS, "killed": KILLED_ATTEMPTS}
        while True:
            try:
                await self._start_once()
                return self._warn_about_port()
            except ServiceError as error:
                # Neither is the entrypoint's fault: the machine is short of memory or overloaded.
                error.is_infrastructure = error.cause in ("killed", "late")
                attempts[error.cause] = attempts.get(error.cause, 1) - 1
                if not attempts[error.cause]:
                    raise

    async def death(self) -> ServiceError:
        """Wait until it ends unexpectedly, or can no longer be reached, and return the reason."""
        ended = asyncio.ensure_future(super().death())
        try:
            while not (await asyncio.wait({ended}, timeout=SOCKET_LOOK_S))[0]:
                if self._is_cut_off():
                    self._failure = self._failed("ended", "was cut off: its socket was removed")
                    return self._failure
            return ended.result()
        finally:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)

    async def stop(self) -> None:
        """End it and everything it started; does nothing when it is not running. Cancelling ends them at once."""
        try:
            await super().stop()
        finally:
            listener, self._socket = self._socket, None
            inner, self._inner = self._inner, None
            disconnect, self._disconnect = self._disconnect, None
            if listener is not None:
                listener.remove()
            if inner is not None:
                inner.close()
            if disconnect is not None:
                await disconnect()

    def _ended(self, status: int, what: str) -> ServiceError:
        sandbox = self.rollout.sandbox
        met = sandbox.control.end_of(self.rollout.part) if sandbox is not None else None
        if met is None:
            return super()._ended(status, what)
        return self._failed("ended", f"{what} ({met.words})", status=status, hint=met.remedy)

    def _is_cut_off(self) -> bool:
        listener = self._socket
        return listener is not None and self.address == listener.address and not listener.is_there()

    async def _start_once(self) -> None:
        port = self.rollout.port or free_port()
        if not is_free(port):
            raise ServiceError(
                f"port {port} is already in use, so the rollout server cannot listen on it.",
                "address in use",
                hint="choose another port, or leave it out: the server then needs none.",
            )
        listener = self._socket = None if self.rollout.port else _private_socket()
        without_network = self.rollout.sandbox is not None and self.rollout.sandbox.network == "none"
        if without_network and self._callbacks is not None:
            self._inner = InnerListener(self._callbacks.port)
        self.spec = _service(self.rollout, port, listener, self._inner, self.spec.start_timeout_s)
        await super().start()
        if listener is not None:
            listener.let_go()
        await self._connect_callbacks()

    async def _connect_callbacks(self) -> None:
        if self._inner is None or self._callbacks is None:
            return
        try:
            self._disconnect = await self._callbacks.listen_on(self._inner.take())
        except OSError as error:
            await self.stop()
            raise ServiceError(
                f"{self.spec.name} cannot be reached in its sandbox: {error.strerror or error}.",
                "not started",
            ) from error

    def _warn_about_port(self) -> None:
        if self._socket is None or self.address == self._socket.address or self._note is None:
            return
        self._note(
            "The rollout's server listens on a port, so every user of this machine can send it rollouts. "
            "An entrypoint that serves with uvicorn on the port in _OSMOSIS_ROLLOUT_PORT gets a private socket instead."
        )
        self._note = None


def _private_socket() -> PrivateSocket:
    try:
        return PrivateSocket()
    except OSError as error:
        raise ServiceError(
            f"no socket can be made for the rollout server ({error.strerror or error}).",
            "not started",
            hint="the directory for temporary files must be writable; `TMPDIR` names another",
        ) from error


def _service(
    rollout: ServerSpec,
    port: int,
    listener: PrivateSocket | None,
    inner: InnerListener | None,
    health_timeout_s: float,
) -> ServiceSpec:
    env = {name: value for name, value in rollout.env.items() if name not in _NOT_INHERITED}
    # Callbacks and model calls go to this machine; a proxy must not get to see them.
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
    if listener is not None:
        env[LISTENER_ENV] = str(listener.fileno())
    if inner is not None:
        env[ONLY_ADDRESS_ENV] = inner.authority
    by_port = (
        [] if listener is not None and rollout.sandbox is not None else [f"http://{_LOOPBACK[0]}:{port}"]
    )
    return ServiceSpec(
        name=f"the rollout server `{rollout.entrypoint}`"
        + (f" ({rollout.number} of {rollout.of})" if rollout.number > 1 else ""),
        command=_command(rollout, inner),
        env=env,
        cwd=rollout.rollout_dir,
        log_path=rollout.own_log,
        addresses=[*([listener.address] if listener else []), *by_port],
        pass_fds=[each.fileno() for each in (listener, inner) if each is not None],
        is_ours=lambda headers, body: (
            (headers.get(INSTANCE_HEADER) or body.get("instance_id")) in (None, identity)
        ),
        start_timeout_s=health_timeout_s,
        late_hint=f"the entrypoint must serve {'' if by_port else 'with uvicorn '}on the port in "
        "`_OSMOSIS_ROLLOUT_PORT` and keep running; "
        f"if it only needs longer, set {HEALTH_TIMEOUT_ENV} (seconds)",
        # Those that die together, as when memory is short, have died once.
        restarts=MAX_RESTARTS + rollout.of - 1,
        secret_values=rollout.secret_values,
    )


def _command(rollout: ServerSpec, inner: InnerListener | None) -> list[str] | SandboxedProgram:
    command = [str(rollout.python), _server_bootstrap.__file__, rollout.entrypoint]
    if rollout.sandbox is None:
        return command
    if inner is not None:
        command = inner.command(rollout.python, command)
    return rollout.sandbox.command(
        command,
        cwd=rollout.rollout_dir.resolve(),
        writable=[rollout.artifact_root.resolve()],
        part=rollout.part,
    )


def capacity_of(health: Mapping[str, Any]) -> int | None:
    """Return how many rollouts a server takes at once by its ``/health``; None if it does not report that."""
    concurrency = health.get("concurrency")
    candidates = (
        health.get("max_queue_depth"),
        concurrency.get("max_concurrent") if isinstance(concurrency, Mapping) else None,
    )
    return next((value for value in candidates if type(value) is int and value > 0), None)


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


SETTLE_LIMIT_S = 120.0
MAX_FAILED_STARTS = 4
"""How often in a row starting one server may fail."""

_POLL_S = 0.5
_STATUS_TIMEOUT_S = 5.0
_STILL_BUSY = frozenset({"queued", "running", "grading"})
# A dying server refuses connections a little before its end is noticed.
_DEATH_NOTICE_S = 1.0


class SupervisedServer(Protocol):
    """A process of ours (:class:`RolloutServer`), or an agent that someone else serves
    (:class:`osmosis_ai.controller.remote_agents.RemoteAgent`)."""

    @property
    def base_url(self) -> str:
        """Where it serves."""

    @property
    def capacity(self) -> int | None:
        """How many rollouts it runs at once; None if it does not report that."""

    async def start(self) -> None:
        """Make it ready."""

    async def stop(self) -> None:
        """Release it."""

    async def death(self) -> OsmosisError:
        """Wait until it is gone, and return why."""

    async def revive(self, note: Callable[[str], None]) -> bool:
        """Make it ready again."""

    def made_progress(self) -> None:
        """Record that it finished an attempt."""


class AttemptLostError(Exception):
    """The attempt will never report back; its outcome is unknown."""

    def __init__(self, reason: str, *, death: OsmosisError | None) -> None:
        super().__init__(reason)
        self.death = death


class _Life:
    """One life of a server: its address, its driver, and the rollouts that it runs."""

    def __init__(self, base_url: str, driver: CallbackRolloutDriver) -> None:
        self.base_url = base_url
        self.driver = driver
        self.rollouts: set[asyncio.Task[RolloutOutcome]] = set()
        self.died = asyncio.Event()
        self.death: OsmosisError | None = None


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
    )
    return environment, RolloutServer(spec, health_timeout_s=health_timeout(environ), note=note)


class RestartingServer:
    """One server of a run, started again when it dies; created on its event loop.

    Rollouts in flight on a server that dies are lost at once; new ones wait for the next server. Restarting ends when
    servers die one after the other without finishing an attempt in between (:attr:`end` has the reason).
    """

    def __init__(
        self,
        server: SupervisedServer,
        *,
        connect: Callable[[str], CallbackRolloutDriver],
        note: Callable[[str], None],
        changed: Callable[[], None] = lambda: None,
        reports_load: bool = True,
    ) -> None:
        self.end: Exception | None = None
        self.capacity: int | None = None
        self._server = server
        self._connect = connect
        self._note = note
        self._changed = changed
        self._reports_load = reports_load
        self._ready: asyncio.Future[_Life] = asyncio.get_running_loop().create_future()
        self._supervisor: asyncio.Task[None] | None = None
        self._health: tuple[str, aiohttp.ClientSession] | None = None

    @property
    def base_url(self) -> str | None:
        """Address of the running server; None while there is none."""
        ready = self._ready
        if not ready.done() or ready.cancelled() or ready.exception() is not None:
            return None
        return ready.result().base_url

    @property
    def in_flight(self) -> int:
        """Rollouts on the running server."""
        return 0 if self.base_url is None else len(self._ready.result().rollouts)

    async def start(self) -> None:
        """Start the first server."""
        try:
            await self._server.start()
        except OsmosisError as error:
            self.end = error
            raise
        self.capacity = self._server.capacity
        self._supervisor = asyncio.create_task(self._supervise(self._begin_life()))

    async def stop(self) -> None:
        """Stop the server for good."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
            self._supervisor = None
        await self._server.stop()
        await self._close_health()

    def attempt_finished(self) -> None:
        """Record that the server finished an attempt."""
        self._server.made_progress()

    async def busy(self) -> float:
        """Return how busy its event loop is (0..1); 0 if it is down or does not report its load."""
        base_url = self.base_url if self._reports_load else None
        if base_url is None:
            return 0.0
        if self._health is None or self._health[0] != base_url:
            await self._close_health()
            self._health = base_url, open_server_session(base_url, timeout_s=BUSY_TIMEOUT_S)
        return await ask_busy(self._health[1], base_url)

    async def run(self, request: RolloutRunRequest) -> RolloutOutcome:
        """Run one rollout, waiting first while a server is being started.

        Raises:
            AttemptLostError: the server, or the connection to it, was lost.
        """
        import aiohttp

        life = await asyncio.shield(self._ready)
        rollout = asyncio.create_task(life.driver.run(request))
        life.rollouts.add(rollout)
        try:
            return await rollout
        except asyncio.CancelledError:
            if life.died.is_set() and rollout.cancelled():
                raise AttemptLostError("the rollout's server died", death=life.death) from None
            raise
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            try:
                await asyncio.wait_for(life.died.wait(), _DEATH_NOTICE_S)
            except asyncio.TimeoutError:
                reason = reason_of(error) or type(error).__name__
                raise AttemptLostError(
                    f"the rollout's server could not be reached: {reason}", death=None
                ) from None
            raise AttemptLostError("the rollout's server died", death=life.death) from None
        finally:
            life.rollouts.discard(rollout)

    async def wait_until_ended(
        self, rollout_ids: Collection[str], *, limit_s: float = SETTLE_LIMIT_S
    ) -> frozenset[str]:
        """Wait until the server has released cancelled rollouts; return those it still has after ``limit_s``."""
        busy = set(rollout_ids)
        deadline = time.monotonic() + limit_s
        while True:
            busy = await _still_busy(self.base_url, busy) if self.base_url is not None else set()
            if not busy or time.monotonic() >= deadline:
                return frozenset(busy)
            await asyncio.sleep(_POLL_S)

    def _begin_life(self) -> _Life:
        life = _Life(self._server.base_url, self._connect(self._server.base_url))
        self._ready.set_result(life)
        self._changed()
        return life

    async def _supervise(self, life: _Life) -> None:
        """Start the server again when it dies, until cancelled or given up."""
        try:
            while True:
                life.death = await self._server.death()
                self._ready = asyncio.get_running_loop().create_future()
                life.died.set()
                await self._release(life, changed=True)
                await self._revive()
                life = self._begin_life()
        except Exception as error:
            # Attempts that wait for a server, now or later, get the reason.
            self.end = error
            if not self._ready.done():
                self._ready.set_exception(error)
                self._ready.exception()
            self._changed()
        finally:
            await self._release(life)

    async def _revive(self) -> None:
        """Start the server again; one that ends before it is healthy counts as another death."""
        for start in range(1, MAX_FAILED_STARTS + 1):
            try:
                await self._server.revive(self._note)
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

    async def _release(self, life: _Life, *, changed: bool = False) -> None:
        rollouts = tuple(life.rollouts)
        for rollout in rollouts:
            rollout.cancel()
        if changed:
            self._changed()
        await asyncio.gather(*rollouts, return_exceptions=True)
        await life.driver.aclose()

    async def _close_health(self) -> None:
        if self._health is not None:
            await self._health[1].close()
            self._health = None


async def _still_busy(base_url: str, rollout_ids: Collection[str]) -> set[str]:
    async with open_server_session(base_url, timeout_s=_STATUS_TIMEOUT_S) as http:
        return {rollout_id for rollout_id in rollout_ids if await _is_busy(http, base_url, rollout_id)}


async def _is_busy(http: aiohttp.ClientSession, base_url: str, rollout_id: str) -> bool:
    """Whether a rollout is still running; one whose status cannot be read may be."""
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
    return isinstance(body, dict) and body.get("status") in _STILL_BUSY


BUSY_TIMEOUT_S = 1.0
SLOW_ANSWER_S = 0.25


async def ask_busy(session: aiohttp.ClientSession, base_url: str) -> float:
    """Return the share of the last second in which a server's event loop had work.

    A server that does not answer within :data:`BUSY_TIMEOUT_S` is saturated. One of another SDK does not report
    the share, so the time it takes to answer decides.
    """
    import aiohttp

    asked_at = time.monotonic()
    body: Any = None
    try:
        async with session.get(
            server_url(base_url, "/health"), timeout=aiohttp.ClientTimeout(total=BUSY_TIMEOUT_S)
        ) as reply:
            body = await reply.json(content_type=None)
    except asyncio.TimeoutError:
        return 1.0
    except (aiohttp.ClientError, OSError, ValueError):
        return 0.0
    loop = body.get("event_loop") if isinstance(body, Mapping) else None
    busy = loop.get("busy") if isinstance(loop, Mapping) else None
    if isinstance(busy, (int, float)):
        return float(busy)
    return 1.0 if time.monotonic() - asked_at >= SLOW_ANSWER_S else 0.0


def several(server: RolloutServer, count: int) -> list[RolloutServer]:
    """Return ``count`` servers like ``server``, not started, which share one budget of restarts."""
    specs = [replace(server.rollout, number=number, of=count) for number in range(1, count + 1)]
    servers = [server.like(spec) for spec in specs]
    if count > 1:
        deaths = Deaths(whose="the rollout's servers")
        for each in servers:
            each.deaths = deaths
    return servers


class ServerPool:
    """Runs rollouts on the servers of a run; an async context manager, created on its event loop.

    A rollout goes to the server with the fewest. A server that dies loses its own rollouts; the others continue. The
    run has one budget of restarts: it ends when servers die without any attempt finishing in between. A server that
    cannot be started again is left out as long as there is another.
    """

    def __init__(
        self,
        servers: Sequence[SupervisedServer],
        *,
        connect: Callable[[str], CallbackRolloutDriver],
        note: Callable[[str], None],
        reports_load: bool = True,
    ) -> None:
        self.servers = [
            RestartingServer(
                server, connect=connect, note=note, changed=self._change, reports_load=reports_load
            )
            for server in servers
        ]
        self.on_change: Callable[[], None] = lambda: None
        self._note = note
        self._changed = asyncio.Event()
        self._gone: set[RestartingServer] = set()

    async def __aenter__(self) -> Self:
        """Start all servers at once."""
        try:
            ends = await asyncio.gather(*(server.start() for server in self.servers), return_exceptions=True)
            failures = [end for end in ends if isinstance(end, BaseException)]
            unexpected = [failure for failure in failures if not isinstance(failure, OsmosisError)]
            if unexpected or len(failures) == len(ends):
                raise (unexpected or failures)[0]
            self._leave_out_gone()
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
        capacities = [server.capacity for server in self.servers if server not in self._gone]
        known = [capacity for capacity in capacities if capacity is not None]
        return sum(known) if len(known) == len(capacities) else None

    @property
    def up(self) -> list[RestartingServer]:
        """The servers that take rollouts now."""
        return [server for server in self.servers if server.base_url is not None]

    async def busy(self) -> float:
        """Return how busy the busiest event loop of the servers is (0..1)."""
        return max(await asyncio.gather(*(server.busy() for server in self.servers)))

    def share(self, limit: int) -> int:
        """Return how many of ``limit`` rollouts the servers that are up may run."""
        return math.ceil(limit * len(self.up) / len(self.servers))

    def attempt_finished(self) -> None:
        """Record that an attempt finished: the budget of restarts is full again."""
        for server in self.servers:
            server.attempt_finished()

    async def run(self, request: RolloutRunRequest) -> RolloutOutcome:
        """Run one rollout on the server with the fewest, waiting first while no server runs."""
        while not self.up:
            if len(self._gone) == len(self.servers):
                ends = [server.end for server in self.servers if server.end is not None]
                raise next((end for end in ends if isinstance(end, ServiceDiedError)), ends[-1])
            await self._changed.wait()
        return await min(self.up, key=lambda server: server.in_flight).run(request)

    async def wait_until_ended(
        self, rollout_ids: Collection[str], *, limit_s: float = SETTLE_LIMIT_S
    ) -> frozenset[str]:
        """Wait until the servers have released cancelled rollouts; return those that one still has after ``limit_s``."""
        waits = (server.wait_until_ended(rollout_ids, limit_s=limit_s) for server in self.servers)
        return frozenset().union(*await asyncio.gather(*waits))

    def _change(self) -> None:
        self._leave_out_gone()
        waiting, self._changed = self._changed, asyncio.Event()
        waiting.set()
        self.on_change()

    def _leave_out_gone(self) -> None:
        """Note the servers that will not be started any more."""
        gone = {server for server in self.servers if server.end is not None} - self._gone
        self._gone |= gone
        left = len(self.servers) - len(self._gone)
        for server in gone:
            if left and server.end is not None:
                reason = str(server.end).splitlines()[0].rstrip(".")
                self._note(f"{reason}. The run continues with {left} of {len(self.servers)} servers.")


def default_servers(*, cpus: float | None = None, gpus: int | None = None) -> int:
    """Return how many servers a run has by default."""
    return 1 if gpus else max(1, min(MOST_SERVERS, granted_cores(cpus) - 1))


def useful_servers(asked: int, *, rollouts: int, at_once: int | None) -> int:
    """Return how many of the servers ``asked`` for would have work."""
    return max(1, min(asked, rollouts, at_once or asked))


def granted_cores(cpus: float | None = None, *, limits: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return how many processors this process may use: by its affinity, its control groups and ``cpus``."""
    counts = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    counts += [math.floor(quota) for quota in granted_processors(limits, membership)]
    if cpus is not None:
        counts.append(math.floor(cpus))
    return max(1, min(counts))


def granted_processors(limits: Path = CGROUPS, membership: Path = MEMBERSHIP) -> Iterator[float]:
    """Yield the processor time that each control group of this process grants, in processors."""
    for group in _groups("cpu", limits, membership):
        try:
            if (group / "cpu.max").exists():
                quota, period = (group / "cpu.max").read_text().split()
            else:
                quota, period = (
                    (group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period")
                )
            granted = int(quota) / int(period)
        except (OSError, ValueError, ZeroDivisionError):  # not set ("max"), or not there
            continue
        if granted > 0:
            yield granted


def granted_memory(limits: Path = CGROUPS, membership: Path = MEMBERSHIP) -> Iterator[int]:
    """Yield the memory that each control group of this process grants, in bytes; version 1 gives a huge number without a limit."""
    for group in _groups("memory", limits, membership):
        for name in ("memory.max", "memory.limit_in_bytes"):
            try:
                granted = int((group / name).read_text())
            except (OSError, ValueError):  # not set ("max"), or not there
                continue
            if granted > 0:
                yield granted


def _groups(controller: str, limits: Path, membership: Path) -> Iterator[Path]:
    """Yield the directories of the groups of a controller that this process is in, those above them included."""
    try:
        groups = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        return
    for group in groups:
        if len(group) != 3 or (group[1] and controller not in group[1].split(",")):
            continue
        root = limits if not group[1] else limits / controller
        place = root / group[2].lstrip("/")
        for directory in {root, place, *place.parents}:
            if directory == root or root in directory.parents:
                yield directory
