"""A rollout's server as a child process: ours, healthy, or explained.

The server is the rollout's entrypoint, run in the rollout's environment. It counts as started only
when its ``/health`` answers with the identity this process gave it; it never outlives this
process. When it does not start, the error says why in one sentence and shows what it last wrote.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.driving import _server_bootstrap
from osmosis_ai.driving._server_bootstrap import INSTANCE_ENV, INSTANCE_HEADER
from osmosis_ai.errors import OsmosisError
from osmosis_ai.llm.transport import open_session
from osmosis_ai.supervision import TERMINATION_GRACE_S, ChildProcess

if TYPE_CHECKING:
    import aiohttp
    from typing_extensions import Self

HEALTH_TIMEOUT_S = 90.0
HEALTH_TIMEOUT_ENV = "OSMOSIS_ROLLOUT_START_TIMEOUT_S"
PROBE_TIMEOUT_S = 5.0
POLL_S = (0.05, 0.2)
PORT_ATTEMPTS = 2
KILLED_ATTEMPTS = 3
LOG_TAIL_LINES = 30
_LOG_TAIL_BYTES = 16 * 1024
_LOOPBACK = ("127.0.0.1", "localhost")
# The first two name the Python of whoever started this, not the rollout's; the token is the user's
# own key to the platform, and no business of an agent.
_NOT_INHERITED = ("VIRTUAL_ENV", "PYTHONHOME", "OSMOSIS_TOKEN")
_LAST_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Iteration)\b.*$")
_FRAME = re.compile(r'^ +File "(?P<path>[^"]+)", line (?P<line>\d+)')


@dataclass(frozen=True)
class ServerSpec:
    """What to start.

    Attributes:
        rollout_dir: the rollout's directory, the server's working directory.
        entrypoint: its file, relative to ``rollout_dir``.
        python: the interpreter of the rollout's environment.
        env: the server's whole environment; what the protocol defines is added.
        artifact_root: where the server puts trajectories and artifacts.
        port: a port to listen on, or None for a free one.
        log_path: the file its output is appended to, readable by its owner alone.
        secret_values: values blotted out where the log is quoted in an error.
    """

    rollout_dir: Path
    entrypoint: str
    python: Path
    env: Mapping[str, str] = field(repr=False)
    artifact_root: Path
    port: int | None
    log_path: Path
    secret_values: frozenset[str] = field(default=frozenset(), repr=False)


class RolloutServerError(OsmosisError):
    """The rollout's server did not start, or is not ours."""


class _PortTaken(RolloutServerError):
    """Somebody else listens where the server should."""


class _Killed(RolloutServerError):
    """Something ended the server by force, which says nothing about the entrypoint: a kernel short of memory, a person."""

    is_infrastructure = True


class _Late(RolloutServerError):
    """The server still ran, and was not ready in time, as on a machine with too much to do."""

    is_infrastructure = True


class RolloutServer:
    """One rollout server; an async context manager.

    Args:
        spec: what to start.
        health_timeout_s: how long the server may take to become healthy, in seconds.
    """

    def __init__(self, spec: ServerSpec, *, health_timeout_s: float = HEALTH_TIMEOUT_S) -> None:
        self._spec = spec
        self._health_timeout_s = health_timeout_s
        self._process: ChildProcess | None = None
        self._port: int | None = None
        self._instance_id = ""
        self._log_start = 0
        self.capacity: int | None = None

    @property
    def base_url(self) -> str:
        """Where the server listens.

        Raises:
            RuntimeError: before :meth:`start`.
        """
        if self._port is None:
            raise RuntimeError("the rollout server is not running")
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """Process id of the server.

        Raises:
            RuntimeError: before :meth:`start`.
        """
        return self._running().pid

    async def start(self) -> None:
        """Start the server and wait until it is healthy; ``capacity`` is known then.

        ``capacity`` is how many rollouts it takes at once, None when it does not say.

        Raises:
            RolloutServerError: when it ends, stays unhealthy, or its port belongs to another.
            RuntimeError: when it was started before.
        """
        if self._process is not None:
            raise RuntimeError("the rollout server was started before")
        attempts: dict[type[Exception], int] = {
            _PortTaken: 1 if self._spec.port is not None else PORT_ATTEMPTS,
            _Killed: KILLED_ATTEMPTS,
        }
        while True:
            try:
                await self._start_once(self._spec.port or _free_port())
                return
            except (_PortTaken, _Killed) as error:
                attempts[type(error)] -= 1
                if not attempts[type(error)]:
                    raise

    async def wait_exit(self) -> int:
        """Wait until the server's process ends by itself; return its exit status."""
        return await self._running().wait()

    def exit_error(self, status: int) -> RolloutServerError:
        """Explain a server that ended with ``status`` although nobody stopped it."""
        return self._failure(f"the rollout server ended ({_describe_exit(status)})")

    async def stop(self) -> None:
        """End the server and everything it started; does nothing when it is not running."""
        process, self._process, self._port = self._process, None, None
        if process is not None:
            await process.stop(grace_s=TERMINATION_GRACE_S)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> list[str]:
        """Return the last lines this server wrote, secrets blotted out."""
        try:
            with self._spec.log_path.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_start, size - _LOG_TAIL_BYTES))
                text = log.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return []
        for value in sorted(self._spec.secret_values, key=len, reverse=True):
            text = text.replace(value, "[REDACTED]") if value else text
        return text.splitlines()[-lines:]

    async def _start_once(self, port: int) -> None:
        if not _is_free(port):
            raise _PortTaken(
                f"port {port} is already in use, so the rollout server cannot listen on it.",
                hint="choose another port, or leave it out and a free one is taken.",
            )
        self._instance_id = secrets.token_hex(16)
        self._spawn(port)
        self._port = port
        try:
            health = await self._wait_healthy()
        except BaseException:
            await self.stop()
            raise
        self.capacity = capacity_of(health)

    def _spawn(self, port: int) -> None:
        spec = self._spec
        spec.log_path.parent.mkdir(parents=True, exist_ok=True)
        spec.artifact_root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(spec.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "ab") as log:
            self._log_start = log.tell()
            try:
                self._process = ChildProcess(
                    [str(spec.python), _server_bootstrap.__file__, spec.entrypoint],
                    env=self._environment(port),
                    cwd=spec.rollout_dir,
                    stdout=log,
                )
            except OSError as error:
                raise RolloutServerError(
                    f"the rollout server could not be started with `{spec.python}`: {error.strerror or error}."
                ) from error

    def _environment(self, port: int) -> dict[str, str]:
        env = {name: value for name, value in self._spec.env.items() if name not in _NOT_INHERITED}
        # Callbacks and model calls go to this machine; a proxy must not get to see them.
        for name in ("NO_PROXY", "no_proxy"):
            env[name] = ",".join(filter(None, [env.get(name, ""), *_LOOPBACK]))
        env.update(
            {
                "PYTHONUNBUFFERED": "1",
                INSTANCE_ENV: self._instance_id,
                "_OSMOSIS_ROLLOUT_HOST": _LOOPBACK[0],
                "_OSMOSIS_ROLLOUT_PORT": str(port),
                "ROLLOUT_PORT": str(port),
                "_OSMOSIS_ROLLOUT_ARTIFACT_ROOT": str(self._spec.artifact_root.resolve()),
            }
        )
        return env

    async def _wait_healthy(self) -> dict[str, Any]:
        """Return the body of the first healthy answer, unless the process ends before."""
        process = self._running()
        healthy = asyncio.create_task(self._poll_health())
        ended = asyncio.create_task(process.wait())
        try:
            await asyncio.wait({healthy, ended}, return_when=asyncio.FIRST_COMPLETED)
            if healthy.done():
                return healthy.result()
            raise self._early_exit(ended.result())
        finally:
            healthy.cancel()
            ended.cancel()
            await asyncio.gather(healthy, ended, return_exceptions=True)

    async def _poll_health(self) -> dict[str, Any]:
        deadline = time.monotonic() + self._health_timeout_s
        pause_s, longest_s = POLL_S
        seen = "no answer"
        async with open_session(timeout_s=PROBE_TIMEOUT_S) as session:
            while time.monotonic() < deadline:
                health, seen = await self._probe(session, seen)
                if health is not None:
                    return health
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 1.2, longest_s)
        raise self._failure(
            f"the rollout server was not healthy after {self._health_timeout_s:g} s "
            f"(`GET /health` on port {self._port}: {seen})",
            hint="the entrypoint must serve on the port in `_OSMOSIS_ROLLOUT_PORT` and keep running; "
            f"if it only needs longer, set {HEALTH_TIMEOUT_ENV} (seconds)",
            kind=_Late,
        )

    async def _probe(self, session: aiohttp.ClientSession, seen: str) -> tuple[dict[str, Any] | None, str]:
        """Ask ``/health`` once; return its body when it is healthy, and what there was to see."""
        import aiohttp

        try:
            async with session.get(f"{self.base_url}/health") as reply:
                body = await _json_object(reply)
                identity = reply.headers.get(INSTANCE_HEADER) or body.get("instance_id")
                if identity is not None and identity != self._instance_id:
                    raise _PortTaken(f"another rollout server is already listening on port {self._port}.")
                return (body, "healthy") if reply.status == 200 else (None, f"status {reply.status}")
        except aiohttp.ClientConnectorError:
            return None, seen
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            return None, str(error) or type(error).__name__

    def _early_exit(self, status: int) -> RolloutServerError:
        if any("address already in use" in line.lower() for line in self.log_tail()):
            return _PortTaken(f"port {self._port} was taken before the rollout server could listen on it.")
        return self._failure(
            f"the rollout server ended before becoming healthy ({_describe_exit(status)})",
            hint="the entrypoint must start a server and keep running." if status == 0 else None,
            kind=_Killed if status == -signal.SIGKILL else RolloutServerError,
        )

    def _failure(
        self, what: str, *, hint: str | None = None, kind: type[RolloutServerError] = RolloutServerError
    ) -> RolloutServerError:
        tail = self.log_tail()
        reason = self._reason(tail)
        message = f"{what}, entrypoint `{self._spec.entrypoint}`" + (f": {reason}" if reason else ".")
        if tail:
            quoted = "\n".join(f"  {line}" for line in tail)
            message += f"\nlast lines of {self._spec.log_path}:\n{quoted}"
        return kind(
            message,
            details={"reason": reason, "log_path": str(self._spec.log_path), "log_tail": tail},
            hint=hint,
        )

    def _reason(self, tail: list[str]) -> str | None:
        """Return the exception a traceback ended with, and the project's own line it came from."""
        ends = [index for index, line in enumerate(tail) if _LAST_EXCEPTION.match(line)]
        if not ends:
            return None
        root = self._spec.rollout_dir.resolve()
        for line in reversed(tail[: ends[-1]]):
            frame = _FRAME.match(line)
            if frame and (path := Path(frame["path"])).is_relative_to(root):
                return f"{tail[ends[-1]]} ({path.relative_to(root)}, line {frame['line']})"
        return tail[ends[-1]]

    def _running(self) -> ChildProcess:
        if self._process is None:
            raise RuntimeError("the rollout server is not running")
        return self._process


def capacity_of(health: Mapping[str, Any]) -> int | None:
    """Read from ``/health`` how many rollouts a server takes at once; None when it does not say."""
    concurrency = health.get("concurrency")
    candidates = (
        health.get("max_queue_depth"),
        concurrency.get("max_concurrent") if isinstance(concurrency, Mapping) else None,
    )
    return next((value for value in candidates if type(value) is int and value > 0), None)


def health_timeout(environ: Mapping[str, str]) -> float:
    """Return how long a server may take to become healthy, in seconds: the user's wish, or the default.

    Raises:
        OsmosisError: when what the user set is no positive number.
    """
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


async def _json_object(reply: aiohttp.ClientResponse) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        body = await reply.json(content_type=None)
        if isinstance(body, dict):
            return body
    return {}


def _describe_exit(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def _free_port() -> int:
    with socket.socket() as probe:
        # Entrypoints listen on every interface, so the port has to be free on all of them.
        probe.bind(("0.0.0.0", 0))
        port: int = probe.getsockname()[1]
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
