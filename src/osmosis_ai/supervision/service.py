"""A supervised service: a child process that reports readiness or an error.

A service (a rollout server, a model, vLLM, another learner rank) counts as started when it reports so itself,
and ends with this process. If it does not start, or ends unasked, one error has the reason and the end of its output.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from osmosis_ai.errors import ErrorCode, OsmosisError
from osmosis_ai.supervision.bounded_log import shorten_log
from osmosis_ai.supervision.child_process import (
    TERMINATION_GRACE_S,
    ChildProcess,
    ContainedProgram,
    exit_words,
)
from osmosis_ai.supervision.server_address import open_server_session, server_url, socket_path

if TYPE_CHECKING:
    import aiohttp
    from typing_extensions import Self

PROBE_TIMEOUT_S = 5.0
POLL_S = (0.05, 0.2)
LOG_LOOK_S = 30.0
"""How often a service's log is looked at for its size, in seconds."""
LOG_TAIL_LINES = 30
_LOG_TAIL_BYTES = 16 * 1024
# For the rest of the output of a process that has ended; who left it to another process may never close it.
_LAST_WORDS_S = 2.0
_LAST_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Iteration)\b.*$")
_FRAME = re.compile(r'^ +File "(?P<path>[^"]+)", line (?P<line>\d+)')

Cause = Literal["not started", "address in use", "killed", "ended", "late"]
"""Why a service does not run. ``killed``: by force, which says nothing about the program: a kernel short of memory, a
person. ``late``: it still ran and was not ready in time, as on a machine with too much to do."""


@dataclass(frozen=True)
class ServiceSpec:
    """What to start, and when it is ready; without an address or an announcement, as soon as it runs."""

    name: str
    command: Sequence[str] | ContainedProgram
    env: Mapping[str, str] = field(repr=False)
    cwd: Path
    log_path: Path | None = None
    addresses: Sequence[str] = ()
    pass_fds: Sequence[int] = ()
    announces: str | None = None
    is_ours: Callable[[Mapping[str, str], Mapping[str, Any]], bool] = lambda _headers, _body: True
    start_timeout_s: float = 90.0
    late_hint: str | None = None
    stop_grace_s: float = TERMINATION_GRACE_S
    restarts: int = 0
    guarded: bool = False
    secret_values: frozenset[str] = field(default=frozenset(), repr=False)
    code: ErrorCode = "VALIDATION"


class ServiceError(OsmosisError):
    """A service did not start, or ended although nobody stopped it."""

    def __init__(self, message: str, cause: Cause, status: int | None = None, **described: Any) -> None:
        super().__init__(message, **described)
        self.cause = cause
        self.status = status


class ServiceDiedError(ServiceError):
    """A service died more often in a row than it is worth starting it again."""

    default_code = "INTERNAL"


@dataclass
class Deaths:
    """How often in a row services died without progress in between: one, or several that do one work."""

    count: int = 0
    whose: str | None = None


class Service:
    """Runs what a spec says while an ``async with`` block lasts, or from :meth:`start` to :meth:`stop`."""

    def __init__(self, spec: ServiceSpec) -> None:
        self.spec = spec
        self.answer: dict[str, Any] | None = None
        self.address: str | None = None
        self._process: ChildProcess | None = None
        self._failure: ServiceError | None = None
        self.deaths = Deaths()
        self._reviving = asyncio.Lock()
        self._log_start = 0
        self._lines: deque[str] = deque(maxlen=LOG_TAIL_LINES)
        self._announced: dict[str, Any] | None = None
        self._reader: threading.Thread | None = None
        self._seen = "no answer"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    @property
    def pid(self) -> int:
        """Of its process group."""
        return self._running().pid

    async def start(self) -> None:
        """Start it and wait until it is ready."""
        if self._process is not None:
            raise RuntimeError(f"{self.spec.name} was started before")
        self._failure = None
        try:
            process = self._spawn()
            self.answer = await self._ready(process)
        except BaseException as error:
            await self.stop()
            self._failure = error if isinstance(error, ServiceError) else None
            raise

    async def stop(self) -> None:
        """End it and everything it started; harmless when it does not run. Cancelling it ends them at once."""
        process, self._process, self.answer, self._failure = self._process, None, None, None
        if process is not None:
            await process.stop(grace_s=self.spec.stop_grace_s)

    def failure(self) -> ServiceError | None:
        """Explain why it does not run although nobody stopped it; None when there is nothing to explain."""
        if self._failure is None and self._process is not None:
            status = self._process.poll()
            self._failure = None if status is None else self._ended(status, "ended")
        return self._failure

    async def death(self) -> ServiceError:
        """Wait until it ends, and explain it as an end that nobody asked for."""
        ended = asyncio.ensure_future(self._running().wait())
        try:
            while not (await asyncio.wait({ended}, timeout=LOG_LOOK_S))[0]:
                self._bound_log()
        finally:
            ended.cancel()
        await self._last_words()
        return self._ended(ended.result(), "ended")

    def _bound_log(self) -> None:
        """Shorten a log that grows without end; what it says of the start of this process is behind us."""
        if self.spec.log_path is None:
            return
        with contextlib.suppress(OSError):  # another look comes, and a log is no result
            if shorten_log(self.spec.log_path):
                self._log_start = 0

    async def revive(self, note: Callable[[str], None] = lambda _: None) -> bool:
        """See to it that it runs: start it again if it does not; return whether it had to be."""
        async with self._reviving:
            failure = self.failure()
            if failure is not None:
                self.deaths.count += 1
                if self.deaths.count > self.spec.restarts:
                    whose = self.deaths.whose or self.spec.name
                    said = f"{whose} died {self.deaths.count} times. The last time: {failure.message}"
                    raise ServiceDiedError(said, failure.cause, failure.status, details=failure.details)
                note(f"{failure.message.splitlines()[0].rstrip('.')}. Starting it again.")
            elif self.answer is not None:
                return False
            await self.stop()
            try:
                await self.start()
            except ServiceError as error:
                self._failure = error  # counts, however early a subclass gave up
                raise
            return True

    def made_progress(self) -> None:
        """Forget its deaths so far: it did what it is for."""
        self.deaths.count = 0

    def log_tail(self) -> list[str]:
        """Return the last lines that it wrote since its latest start, secrets blotted out."""
        if self.spec.log_path is None:
            text = "\n".join(self._lines)
        else:
            try:
                with self.spec.log_path.open("rb") as log:
                    size = log.seek(0, os.SEEK_END)
                    log.seek(max(self._log_start, size - _LOG_TAIL_BYTES))
                    text = log.read().decode("utf-8", "replace")
            except FileNotFoundError:
                return []
        for value in sorted(self.spec.secret_values, key=len, reverse=True):
            text = text.replace(value, "[REDACTED]") if value else text
        return text.splitlines()[-LOG_TAIL_LINES:]

    def _spawn(self) -> ChildProcess:
        spec = self.spec
        command = spec.command
        program = command[0] if isinstance(command, Sequence) else command.name
        guard = [sys.executable, "-m", "osmosis_ai.supervision"] if spec.guarded else []
        self._lines, self._announced, self._seen = deque(maxlen=LOG_TAIL_LINES), None, "no answer"
        try:
            self._log_start = spec.log_path.stat().st_size if spec.log_path and spec.log_path.exists() else 0
            process = self._process = ChildProcess(
                [*guard, *command] if isinstance(command, Sequence) else command,
                env=spec.env,
                cwd=spec.cwd,
                stdout=spec.log_path or subprocess.PIPE,
                pass_fds=spec.pass_fds,
            )
        except OSError as error:
            said = f"{spec.name} could not be started with `{program}`: {error.strerror or error}."
            raise ServiceError(said, "not started", code=spec.code) from error
        if process.stdout is not None:
            self._reader = threading.Thread(
                target=self._read, args=(process.stdout,), name="log", daemon=True
            )
            self._reader.start()
        return process

    def _read(self, output: IO[bytes]) -> None:
        """Keep the pipe from filling up, and look for the announcement."""
        lines, announces = self._lines, self.spec.announces
        with output:
            for raw in output:
                line = raw.decode("utf-8", errors="replace").rstrip()
                lines.append(line)
                if announces is not None and self._announced is None and line.startswith(announces):
                    self._announced = json.loads(line)

    async def _ready(self, process: ChildProcess) -> dict[str, Any]:
        """Return what it says when it is ready; raises ServiceError when it ends before, or is late."""
        ready = asyncio.create_task(self._until_ready())
        ended = asyncio.create_task(process.wait())
        limit_s = self.spec.start_timeout_s
        try:
            await asyncio.wait({ready, ended}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                return ready.result()
            if not ended.done():
                where = " and ".join(map(_place, self.spec.addresses))
                seen = f" (`GET /health` on {where}: {self._seen})" if where else ""
                # Not the exit status, which would be that of our own signal.
                raise self._failed(
                    "late", f"was not ready after {limit_s:g} s{seen}", hint=self.spec.late_hint
                )
        finally:
            ready.cancel()
            ended.cancel()
            await asyncio.gather(ready, ended, return_exceptions=True)
        await process.stop()  # what it started may still hold its output open
        await self._last_words()
        raise self._ended(ended.result(), "ended before it was ready")

    async def _until_ready(self) -> dict[str, Any]:
        if self.spec.addresses:
            return await self._until_healthy_anywhere(self.spec.addresses)
        while self.spec.announces is not None and self._announced is None:  # noqa: ASYNC110 - a thread reads it
            await asyncio.sleep(POLL_S[0])
        return self._announced or {}

    async def _until_healthy_anywhere(self, addresses: Sequence[str]) -> dict[str, Any]:
        probes = {asyncio.ensure_future(self._until_healthy(address)): address for address in addresses}
        try:
            first = (await asyncio.wait(probes, return_when=asyncio.FIRST_COMPLETED))[0].pop()
            self.address = probes[first]
            return first.result()
        finally:
            for probe in probes:
                probe.cancel()
            await asyncio.gather(*probes, return_exceptions=True)

    async def _until_healthy(self, address: str) -> dict[str, Any]:
        import aiohttp

        pause_s, longest_s = POLL_S
        async with open_server_session(address, timeout_s=PROBE_TIMEOUT_S) as session:
            while True:
                try:
                    async with session.get(server_url(address, "/health")) as reply:
                        body = await _json_object(reply)
                        if not self.spec.is_ours(reply.headers, body):
                            said = f"another server is already listening on {_place(address)}"
                            raise ServiceError(
                                f"{said}, where {self.spec.name} should.",
                                "address in use",
                                code=self.spec.code,
                            )
                        if reply.status == 200:
                            return body
                        self._seen = f"status {reply.status}"
                except (aiohttp.ClientError, asyncio.TimeoutError) as error:
                    if not isinstance(error, aiohttp.ClientConnectorError):
                        self._seen = str(error) or type(error).__name__
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 1.2, longest_s)

    async def _last_words(self) -> None:
        """Wait for the rest of what a process that has ended wrote to its pipe."""
        if self._reader is not None:
            await asyncio.to_thread(self._reader.join, _LAST_WORDS_S)

    def _ended(self, status: int, what: str) -> ServiceError:
        starting = self.answer is None  # what is written later may be about any other address
        if starting and any("address already in use" in line.lower() for line in self.log_tail()):
            return self._failed(
                "address in use", f"{what}: another process listens on its port", status=status
            )
        return self._failed(
            "killed" if status == -signal.SIGKILL else "ended",
            f"{what} ({exit_words(status)})",
            status=status,
            hint="it must start a server and keep running." if status == 0 else None,
        )

    def _failed(
        self, cause: Cause, what: str, *, status: int | None = None, hint: str | None = None
    ) -> ServiceError:
        spec, tail = self.spec, self.log_tail()
        reason = _last_exception(tail, spec.cwd)
        message = f"{spec.name} {what}" + (f": {reason}" if reason else ".")
        if tail:
            quoted = "\n".join(f"  {line}" for line in tail)
            message += f"\nlast lines of {spec.log_path or 'its output'}:\n{quoted}"
        details = {"reason": reason, "log_path": spec.log_path and str(spec.log_path), "log_tail": tail}
        return ServiceError(message, cause, status, details=details, hint=hint, code=spec.code)

    def _running(self) -> ChildProcess:
        if self._process is None:
            raise RuntimeError(f"{self.spec.name} is not running")
        return self._process


def free_port() -> int:
    """Return a port of this machine on which nobody listens now."""
    with socket.socket() as probe:
        # Some programs listen on every interface, so the port has to be free on all of them.
        probe.bind(("0.0.0.0", 0))
        port: int = probe.getsockname()[1]
    return port


def is_free(port: int) -> bool:
    """Tell whether a server can listen on ``port`` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


def _place(address: str) -> str:
    return f"port {urlsplit(address).port}" if socket_path(address) is None else "its socket"


async def _json_object(reply: aiohttp.ClientResponse) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        body = await reply.json(content_type=None)
        if isinstance(body, dict):
            return body
    return {}


def _last_exception(lines: Sequence[str], project: Path) -> str | None:
    """Return the exception that a traceback ended with, and the project's own line that it came from."""
    ends = [index for index, line in enumerate(lines) if _LAST_EXCEPTION.match(line)]
    if not ends:
        return None
    root = project.resolve()
    for line in reversed(lines[: ends[-1]]):
        frame = _FRAME.match(line)
        if frame and (path := Path(frame["path"])).is_relative_to(root):
            return f"{lines[ends[-1]]} ({path.relative_to(root)}, line {frame['line']})"
    return lines[ends[-1]]
