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
from osmosis_ai.processes.addresses import open_server_session, server_url, socket_path
from osmosis_ai.processes.child_process import (
    TERMINATION_GRACE_S,
    ChildProcess,
    ContainedProgram,
    describe_exit,
)

if TYPE_CHECKING:
    from typing_extensions import Self

LOG_CHECK_S = 30.0
LOG_TAIL_LINES = 30
MAX_LOG_BYTES = 64 * 1024 * 1024
LOG_REMAINDER_BYTES = 16 * 1024 * 1024
PROBE_TIMEOUT_S = 5.0
_POLL_S = (0.05, 0.2)
_LOG_TAIL_BYTES = 16 * 1024
# For the rest of an ended process's output: a grandchild may keep the pipe open.
_OUTPUT_END_S = 2.0
_LAST_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Iteration)\b.*$")
_FRAME = re.compile(r'^ +File "(?P<path>[^"]+)", line (?P<line>\d+)')

Cause = Literal["not started", "address in use", "killed", "ended", "late"]
"""The reason why a service does not run. ``killed`` and ``late`` may be the machine's fault, not the program's."""


@dataclass(frozen=True)
class ServiceSpec:
    """The command to start, and the sign that it is ready; without an address or an announcement, as soon as it runs.

    Attributes:
        addresses: It is ready when ``GET /health`` answers at one of them.
        announces: It is ready when it prints a JSON line that begins so.
        is_ours: Whether an answer's headers and body are from this service.
        restarts: How often :meth:`Service.revive` starts it again without progress in between.
        guarded: It is a third-party program, which does not watch its parent.
    """

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
    """A service did not start, or ended unexpectedly."""

    def __init__(self, message: str, cause: Cause, status: int | None = None, **described: Any) -> None:
        super().__init__(message, **described)
        self.cause = cause
        self.status = status


class ServiceDiedError(ServiceError):
    default_code = "INTERNAL"


@dataclass
class Deaths:
    """How often a service, or several that share their work, died without progress in between."""

    count: int = 0
    whose: str | None = None


class Service:
    """Runs a spec's program while an ``async with`` block lasts, or from :meth:`start` to :meth:`stop`."""

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
        self._probe_result = "no answer"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    @property
    def pid(self) -> int:
        return self._running().pid

    async def start(self) -> None:
        if self.answer is not None:
            raise RuntimeError(f"{self.spec.name} was started before")
        self._failure = None
        try:
            self.answer = await self._ready(self._process or self._spawn())
        except BaseException as error:
            await self.stop()
            self._failure = error if isinstance(error, ServiceError) else None
            raise

    async def stop(self) -> None:
        """End it and everything it started; cancelling kills them."""
        process, self._process, self.answer, self._failure = self._process, None, None, None
        if process is not None:
            await process.stop(grace_s=self.spec.stop_grace_s)

    def failure(self) -> ServiceError | None:
        """Return why it does not run; None if it runs or was stopped."""
        if self._failure is None and self._process is not None:
            status = self._process.poll()
            self._failure = None if status is None else self._ended(status, "ended")
        return self._failure

    async def death(self) -> ServiceError:
        """Wait until it ends unexpectedly, and return why; meanwhile, keep its log small."""
        ended = asyncio.ensure_future(self._running().wait())
        try:
            while not (await asyncio.wait({ended}, timeout=LOG_CHECK_S))[0]:
                if self.spec.log_path is not None:
                    with contextlib.suppress(OSError):  # it is checked again
                        if shorten_log(self.spec.log_path):
                            self._log_start = 0
        finally:
            ended.cancel()
        await self._read_output_end()
        return self._ended(ended.result(), "ended")

    async def revive(
        self, note: Callable[[str], None] = lambda _: None, *, unresponsive: bool = False
    ) -> bool:
        """Start it again if it does not run, or is ``unresponsive``; return whether it was started."""
        async with self._reviving:
            failure = self.failure() or (self._failed("late", "does not respond") if unresponsive else None)
            if failure is not None:
                self.deaths.count += 1
                if self.deaths.count > self.spec.restarts:
                    name = self.deaths.whose or self.spec.name
                    message = f"{name} died {self.deaths.count} times. The last time: {failure.message}"
                    raise ServiceDiedError(message, failure.cause, failure.status, details=failure.details)
                note(f"{failure.message.splitlines()[0].rstrip('.')}. Starting it again.")
            elif self.answer is not None:
                return False
            await self.stop()
            try:
                await self.start()
            except ServiceError as error:
                self._failure = error  # it counts, however early a subclass failed
                raise
            return True

    def made_progress(self) -> None:
        self.deaths.count = 0

    def log_tail(self) -> list[str]:
        """Return the last lines of its output since it was started, with secrets redacted."""
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
        guard = [sys.executable, "-m", "osmosis_ai.processes"] if spec.guarded else []
        self._lines, self._announced, self._probe_result = deque(maxlen=LOG_TAIL_LINES), None, "no answer"
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
            message = f"{spec.name} could not be started with `{program}`: {error.strerror or error}."
            raise ServiceError(message, "not started", code=spec.code) from error
        if process.stdout is not None:
            self._reader = threading.Thread(
                target=self._read, args=(process.stdout,), name="log", daemon=True
            )
            self._reader.start()
        return process

    def _read(self, output: IO[bytes]) -> None:
        """Drain the pipe and look for the announcement."""
        lines, announces = self._lines, self.spec.announces
        with output:
            for raw in output:
                line = raw.decode("utf-8", errors="replace").rstrip()
                lines.append(line)
                if announces is not None and self._announced is None and line.startswith(announces):
                    self._announced = json.loads(line)

    async def _ready(self, process: ChildProcess) -> dict[str, Any]:
        """Return its announcement or health; raises ServiceError when it ends before, or is late."""
        ready = asyncio.create_task(self._until_ready())
        ended = asyncio.create_task(process.wait())
        limit_s = self.spec.start_timeout_s
        try:
            await asyncio.wait({ready, ended}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                return ready.result()
            if not ended.done():
                where = " and ".join(map(_format_place, self.spec.addresses))
                seen = f" (`GET /health` on {where}: {self._probe_result})" if where else ""
                raise self._failed(
                    "late", f"was not ready after {limit_s:g} s{seen}", hint=self.spec.late_hint
                )
        finally:
            ready.cancel()
            ended.cancel()
            await asyncio.gather(ready, ended, return_exceptions=True)
        await process.stop()  # its children may hold its output open
        await self._read_output_end()
        raise self._ended(ended.result(), "ended before it was ready")

    async def _until_ready(self) -> dict[str, Any]:
        if not self.spec.addresses:
            while self.spec.announces is not None and self._announced is None:  # noqa: ASYNC110 - a thread reads it
                await asyncio.sleep(_POLL_S[0])
            return self._announced or {}
        probes = [asyncio.ensure_future(self._until_healthy(each)) for each in self.spec.addresses]
        try:
            self.address, answer = await next(asyncio.as_completed(probes))
            return answer
        finally:
            for probe in probes:
                probe.cancel()
            await asyncio.gather(*probes, return_exceptions=True)

    async def _until_healthy(self, address: str) -> tuple[str, dict[str, Any]]:
        import aiohttp

        pause_s, longest_s = _POLL_S
        async with open_server_session(address, timeout_s=PROBE_TIMEOUT_S) as session:
            while True:
                try:
                    async with session.get(server_url(address, "/health")) as reply:
                        body: Any = None
                        with contextlib.suppress(ValueError):
                            body = await reply.json(content_type=None)
                        body = body if isinstance(body, dict) else {}
                        if not self.spec.is_ours(reply.headers, body):
                            raise self._failed(
                                "address in use",
                                f"cannot listen on {_format_place(address)}: another server is listening there",
                            )
                        if reply.status == 200:
                            return address, body
                        self._probe_result = f"status {reply.status}"
                except (aiohttp.ClientError, asyncio.TimeoutError) as error:
                    if not isinstance(error, aiohttp.ClientConnectorError):
                        self._probe_result = str(error) or type(error).__name__
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 1.2, longest_s)

    async def _read_output_end(self) -> None:
        """Wait for the rest of an ended process's output."""
        if self._reader is not None:
            await asyncio.to_thread(self._reader.join, _OUTPUT_END_S)

    def _ended(self, status: int, what: str) -> ServiceError:
        starting = self.answer is None  # later output may be about another address
        if starting and any("address already in use" in line.lower() for line in self.log_tail()):
            return self._failed(
                "address in use", f"{what}: another process listens on its port", status=status
            )
        return self._failed(
            "killed" if status == -signal.SIGKILL else "ended",
            f"{what} ({describe_exit(status)})",
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


def shorten_log(path: Path) -> bool:
    """Keep the last lines of a log that has grown too large; return whether it had.

    Another process appends to it (O_APPEND); what it writes meanwhile can be lost.
    """
    with path.open("r+b") as log:
        size = log.seek(0, os.SEEK_END)
        if size <= MAX_LOG_BYTES:
            return False
        log.seek(size - LOG_REMAINDER_BYTES)
        log.readline(LOG_REMAINDER_BYTES)  # the rest of a line
        tail = log.read()
        log.seek(0)
        log.write(f"[{size - len(tail)} bytes were left out here: the log had grown too large]\n".encode())
        log.write(tail)
        log.truncate()
        return True


def free_port() -> int:
    with socket.socket() as probe:
        # Some programs listen on every interface, so the port has to be free on all of them.
        probe.bind(("0.0.0.0", 0))
        port: int = probe.getsockname()[1]
    return port


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


def _format_place(address: str) -> str:
    return f"port {urlsplit(address).port}" if socket_path(address) is None else "its socket"


def _last_exception(lines: Sequence[str], project: Path) -> str | None:
    """Return the last exception of a traceback and the project's line that raised it."""
    ends = [index for index, line in enumerate(lines) if _LAST_EXCEPTION.match(line)]
    if not ends:
        return None
    root = project.resolve()
    for line in reversed(lines[: ends[-1]]):
        frame = _FRAME.match(line)
        if frame and (path := Path(frame["path"])).is_relative_to(root):
            return f"{lines[ends[-1]]} ({path.relative_to(root)}, line {frame['line']})"
    return lines[ends[-1]]
