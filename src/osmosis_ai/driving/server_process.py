"""A rollout's server as a supervised service: ours, healthy, or explained.

The server is the rollout's entrypoint, run in the rollout's environment. It counts as started only
when its ``/health`` answers with the identity this process gave it.

It asks nobody for a key, so it gets no port: it listens on a Unix socket that is made here and handed to it
as a descriptor, which uvicorn is given in place of the port (:mod:`osmosis_ai.driving._server_bootstrap`). An
entrypoint that serves by other means listens on a port of this machine, and so does every one for which the user
chose a port.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from osmosis_ai.driving import _server_bootstrap
from osmosis_ai.driving._server_bootstrap import INSTANCE_ENV, INSTANCE_HEADER, LISTENER_ENV
from osmosis_ai.errors import OsmosisError
from osmosis_ai.llm.transport import ONLY_ADDRESS_ENV
from osmosis_ai.sandbox import InnerListener, Sandbox, SandboxedProgram
from osmosis_ai.supervision import PrivateSocket, Service, ServiceError, ServiceSpec, free_port, is_free

HEALTH_TIMEOUT_S = 90.0
HEALTH_TIMEOUT_ENV = "OSMOSIS_ROLLOUT_START_TIMEOUT_S"
PORT_ATTEMPTS = 2
KILLED_ATTEMPTS = 3
MAX_RESTARTS = 3
SOCKET_LOOK_S = 2.0
"""How often a running server's socket is looked for, in seconds."""
_LOOPBACK = ("127.0.0.1", "localhost")
# The first two name the Python of whoever started this, not the rollout's; the token is the user's
# own key to the platform, and no business of an agent.
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
        """What it is called among the programs of its run."""
        return f"server-{self.number}"

    @property
    def own_log(self) -> Path:
        """The file of this server's output."""
        path = self.log_path
        return path if self.number == 1 else path.with_name(f"{path.stem}-{self.number}{path.suffix}")


class CallbackDoor(Protocol):
    """Where a rollout's server finds the model and leaves its results
    (:class:`osmosis_ai.driving.callback_server.CallbackListener`)."""

    @property
    def port(self) -> int:
        """Its port on loopback."""

    async def listen_on(self, listening: socket.socket) -> Callable[[], Awaitable[None]]:
        """Be found at one more socket; returns what ends that."""


class RolloutServer(Service):
    """One rollout server; an async context manager."""

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
        self._door: CallbackDoor | None = None
        self._inner: InnerListener | None = None
        self._leave: Callable[[], Awaitable[None]] | None = None

    def like(self, spec: ServerSpec) -> RolloutServer:
        """Return another server, which is told apart from this one by ``spec``."""
        another = RolloutServer(
            spec, health_timeout_s=self.spec.start_timeout_s, note=self._note or (lambda _: None)
        )
        another._door = self._door
        return another

    @property
    def base_url(self) -> str:
        """Its address while it runs, for :func:`osmosis_ai.supervision.open_server_session`."""
        if self.address is None:
            raise RuntimeError(f"{self.spec.name} is not running")
        return self.address

    @property
    def capacity(self) -> int | None:
        """How many rollouts it takes at once; None when it does not say, or does not run."""
        return capacity_of(self.answer or {})

    def let_in(self, door: CallbackDoor) -> None:
        """Have a server that is started from now on in a sandbox without a network find ``door`` on its loopback."""
        self._door = door

    async def start(self) -> None:
        """Start the server and wait until it is healthy."""
        self.rollout.artifact_root.mkdir(parents=True, exist_ok=True)
        attempts = {"address in use": 1 if self.rollout.port else PORT_ATTEMPTS, "killed": KILLED_ATTEMPTS}
        while True:
            try:
                await self._start_once()
                return self._say_where()
            except ServiceError as error:
                # Neither is the entrypoint's fault: a machine short of memory, one with too much to do.
                error.is_infrastructure = error.cause in ("killed", "late")
                attempts[error.cause] = attempts.get(error.cause, 1) - 1
                if not attempts[error.cause]:
                    raise

    async def death(self) -> ServiceError:
        """Wait until it ends, or nobody can reach it any more, and explain that as an end that nobody asked
        for."""
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
        """End it and everything it started; harmless when it does not run. Cancelling it ends them at once."""
        try:
            await super().stop()
        finally:
            listener, self._socket = self._socket, None
            inner, self._inner = self._inner, None
            leave, self._leave = self._leave, None
            if listener is not None:
                listener.remove()
            if inner is not None:
                inner.close()
            if leave is not None:
                await leave()

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
        if without_network and self._door is not None:
            self._inner = InnerListener(self._door.port)
        self.spec = _service(self.rollout, port, listener, self._inner, self.spec.start_timeout_s)
        await super().start()
        if listener is not None:
            listener.let_go()
        await self._open_door()

    async def _open_door(self) -> None:
        if self._inner is None or self._door is None:
            return
        try:
            self._leave = await self._door.listen_on(self._inner.take())
        except OSError as error:
            await self.stop()
            raise ServiceError(
                f"{self.spec.name} can not be reached in its sandbox: {error.strerror or error}.",
                "not started",
            ) from error

    def _say_where(self) -> None:
        if self._socket is None or self.address == self._socket.address or self._note is None:
            return
        self._note(
            "the rollout's server listens on a port of this machine, where whoever is on it can ask it for rollouts: "
            "an entrypoint that serves with uvicorn, on the port in `_OSMOSIS_ROLLOUT_PORT`, gets a socket in place of it."
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
    """Read from ``/health`` how many rollouts a server takes at once; None when it does not say."""
    concurrency = health.get("concurrency")
    candidates = (
        health.get("max_queue_depth"),
        concurrency.get("max_concurrent") if isinstance(concurrency, Mapping) else None,
    )
    return next((value for value in candidates if type(value) is int and value > 0), None)


def health_timeout(environ: Mapping[str, str]) -> float:
    """Return how long a server may take to become healthy, in seconds: the user's wish, or the default."""
    wished = environ.get(HEALTH_TIMEOUT_ENV, "").strip()
    if not wished:
        return HEALTH_TIMEOUT_S
    try:
        seconds = float(wished)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise OsmosisError(f"{HEALTH_TIMEOUT_ENV} must be a number of seconds above 0, not '{wished}'.")
    return seconds
