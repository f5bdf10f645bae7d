"""Child processes that never outlive their parent.

A child holds the read end of a pipe, the lifeline, whose write end only the parent has. However the parent ends,
including ``kill -9``, the kernel closes the write end. The child's watcher then ends the child's process group.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from osmosis_ai.processes import reaper
from osmosis_ai.processes.privacy import PRIVATE_VARIABLES_ENV, private_end
from osmosis_ai.processes.reaper import LIFELINE_ENV

TERMINATION_GRACE_S = 5.0
BACKGROUND_NICENESS = 10
_POLL_S = 0.05
_ENDING_POLL_S = 0.005  # people wait for it
_SHELL_SIGNALS = 128
_MAX_STRING_PAGES = 32
# The kernel allows a quarter of RLIMIT_STACK within these bounds.
_MIN_EXEC_BYTES, _MAX_EXEC_BYTES = 128 << 10, 6 << 20
# Room for variables that a sandbox sets, the program's path, and variables for its own children.
_RESERVED_EXEC_BYTES = 4096


def watch_parent() -> None:
    """End this process group when the parent is gone; does nothing without a lifeline."""
    raw = os.environ.pop(LIFELINE_ENV, None)
    if raw is None or os.getpgid(0) != os.getpid():
        # A descendant that merely inherited the variable owns neither the pipe nor the group.
        return
    descriptor = int(raw)
    os.set_inheritable(descriptor, False)

    def wait_for_end_of_file() -> None:
        # The pipe carries no data: read returns only when the last write end is closed.
        while os.read(descriptor, 1):
            pass
        _end_own_group()

    threading.Thread(target=wait_for_end_of_file, name="osmosis-lifeline", daemon=True).start()


def _end_own_group() -> None:
    """Terminate the whole group, and kill what remains after the grace period."""
    group = os.getpgid(0)
    try:
        subprocess.Popen(
            ["/bin/sh", "-c", f"sleep {TERMINATION_GRACE_S}; kill -s KILL -- -{group}"],
            env={"PATH": os.defpath},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        os.killpg(group, signal.SIGKILL)
    os.killpg(group, signal.SIGTERM)


def lower_priority() -> None:
    """Give interactive processes precedence over this one and its children."""
    os.nice(max(0, BACKGROUND_NICENESS - os.getpriority(os.PRIO_PROCESS, 0)))
    # A session started by others, such as a terminal's, holds more than this process.
    if os.getsid(0) == os.getpid():
        _share_niceness("self")


def _share_niceness(process: int | str) -> None:
    """Give a process's session this process's niceness."""
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    if niceness > 0:
        with contextlib.suppress(OSError):
            Path(f"/proc/{process}/autogroup").write_text(str(niceness))


def describe_exit(status: int) -> str:
    if status == -signal.SIGKILL:
        return "signal 9, as when the machine has no memory left"
    return f"signal {-status}" if status < 0 else f"exit status {status}"


@dataclass(frozen=True)
class ProgramStart:
    command: Sequence[str]
    env: Mapping[str, str] = field(repr=False)
    fds: Sequence[int] = ()


class ContainedProgram(Protocol):
    """A program in a sandbox; only the program receives the environment."""

    @property
    def name(self) -> str: ...

    @property
    def program(self) -> Sequence[str]: ...

    def start(self, env: Mapping[str, str]) -> AbstractContextManager[ProgramStart]:
        """Yield what starts it once with ``env``; leave the context when it has started."""


def program_start(
    command: Sequence[str] | ContainedProgram, env: Mapping[str, str]
) -> AbstractContextManager[ProgramStart]:
    """Return a context that yields what starts a program once with ``env``, in a sandbox or without one.

    Raises:
        OSError: The variables are too long; the kernel's own error would not name them.
    """
    if sys.platform == "linux":
        _check_sizes(env, command if isinstance(command, Sequence) else command.program)
    return nullcontext(ProgramStart(command, env)) if isinstance(command, Sequence) else command.start(env)


def _check_sizes(env: Mapping[str, str], arguments: Sequence[str]) -> None:
    """Check execve(2), "Limits on size of arguments and environment"."""
    # Each variable has a `=` and a closing zero byte.
    sizes = {name: len(os.fsencode(name)) + len(os.fsencode(value)) + 2 for name, value in env.items()}
    names = sorted(sizes, key=lambda name: sizes[name], reverse=True)[:3]
    longest = _MAX_STRING_PAGES * os.sysconf("SC_PAGE_SIZE")
    if names and sizes[names[0]] > longest:
        raise OSError(
            errno.E2BIG,
            f"the variable {names[0]} is too long: {sizes[names[0]]:,} bytes with its name (the limit is {longest:,})",
        )
    total = sum(sizes.values())
    needed = total + sum(len(os.fsencode(argument)) + 1 for argument in arguments)
    needed += struct.calcsize("P") * (len(env) + len(arguments)) + _RESERVED_EXEC_BYTES
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    quarter = _MAX_EXEC_BYTES if stack == resource.RLIM_INFINITY else stack // 4
    most = max(_MIN_EXEC_BYTES, min(quarter, _MAX_EXEC_BYTES))
    if needed > most:
        largest = ", ".join(f"{name} ({sizes[name]:,})" for name in names)
        raise OSError(
            errno.E2BIG,
            f"the {len(env):,} variables are too long: {total:,} bytes together (the limit is {most:,} with the "
            f"arguments; the largest are {largest}); move long values to a file",
        )


class ChildProcess:
    """A supervised subprocess in its own session, tied to this process by a lifeline.

    Args:
        stdout: A file, a descriptor or ``subprocess.PIPE``; a path is opened for appending.
        outlives: Start it without a lifeline, so that it continues when this process ends.
        private_env: Variables that only the child's :func:`take_private_variables` returns.
    """

    def __init__(
        self,
        command: Sequence[str] | ContainedProgram,
        *,
        env: Mapping[str, str],
        cwd: Path,
        stdout: IO[bytes] | int | Path | None,
        stderr: IO[bytes] | int | None = subprocess.STDOUT,
        stdin: IO[bytes] | int = subprocess.DEVNULL,
        outlives: bool = False,
        pass_fds: Sequence[int] = (),
        private_env: Mapping[str, str] | None = None,
    ) -> None:
        self._lifeline: IO[bytes] | None = None
        self._contained = not isinstance(command, Sequence)
        with contextlib.ExitStack() as ours:
            if isinstance(stdout, Path):
                stdout.parent.mkdir(parents=True, exist_ok=True)
                stdout = os.open(stdout, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                ours.callback(os.close, stdout)
            ends: dict[str, int] = {}
            if private_env is not None:
                ends[PRIVATE_VARIABLES_ENV] = private_end(private_env)
                ours.callback(os.close, ends[PRIVATE_VARIABLES_ENV])
            if not outlives:
                ends[LIFELINE_ENV], our_end = os.pipe()
                ours.callback(os.close, ends[LIFELINE_ENV])
                self._lifeline = os.fdopen(our_end, "wb", 0)
            try:
                variables = {**env, **{name: str(end) for name, end in ends.items()}}
                start = ours.enter_context(program_start(command, variables))
                self._process = subprocess.Popen(
                    list(start.command),
                    env=dict(start.env),
                    cwd=cwd,
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    start_new_session=True,
                    pass_fds=[*pass_fds, *ends.values(), *start.fds],
                )
            except BaseException:
                self.close_lifeline()
                raise
        self.pid, self.stdout, self.stderr = self._process.pid, self._process.stdout, self._process.stderr
        _share_niceness(self.pid)

    def poll(self) -> int | None:
        """Return the exit status, or None while the child runs."""
        status = self._process.poll()
        if self._contained and status is not None and status > _SHELL_SIGNALS:
            return _SHELL_SIGNALS - status  # a sandbox reports a signal as a shell does
        return status

    async def wait(self, poll_s: float = _POLL_S) -> int:
        while (status := self.poll()) is None:  # noqa: ASYNC110 - no portable exit event
            await asyncio.sleep(poll_s)
        return status

    def finish(self, timeout_s: float = math.inf, cancelled: threading.Event | None = None) -> int | None:
        """Wait without an event loop, then kill what is left; None if it was late or ``cancelled`` was set."""
        cancelled = cancelled or threading.Event()
        deadline = time.monotonic() + timeout_s
        try:
            while (status := self.poll()) is None and time.monotonic() < deadline:
                if cancelled.wait(_POLL_S):
                    break
            return status
        finally:
            self.kill()

    async def stop(self, *, grace_s: float = TERMINATION_GRACE_S) -> int:
        """Terminate the child's process group, and kill it after ``grace_s`` seconds."""
        try:
            if self._process.poll() is None:
                if self._contained:
                    self.close_lifeline()
                else:
                    self._signal(signal.SIGTERM)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.wait(_ENDING_POLL_S), grace_s)
                self._signal(signal.SIGKILL)
            return await self.wait()
        finally:
            # The child's own children may still run in its group.
            self._signal(signal.SIGKILL)
            self.close_lifeline()

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()
        self.close_lifeline()

    def _signal(self, number: signal.Signals) -> None:
        # macOS answers "not permitted" where only zombies are left in the group.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def close_lifeline(self) -> None:
        """End a child that watches its lifeline."""
        if self._lifeline is not None:
            self._lifeline.close()


TAIL_BYTES = 64 * 1024
"""How much of the end of each output is returned."""
GRACE_S = 1.0
_LAST_WAIT_S = 3.0
_PROGRAM_POLL_S = 0.002


@dataclass(frozen=True)
class FinishedProgram:
    status: int
    stdout: str
    stderr: str
    flooded: bool


async def run_program(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    stdin: Path,
    max_output_bytes: int,
    grace_s: float = GRACE_S,
) -> FinishedProgram:
    """Run a third-party program to completion; cancelling this ends it, and all that it started.

    :mod:`osmosis_ai.processes.reaper` runs in between. It ends all descendants when the program ends, when this process
    drops it, and when this process dies. The output pipes close when the reaper ends.
    """
    loop = asyncio.get_running_loop()
    exceeded: asyncio.Future[None] = loop.create_future()
    left = max_output_bytes
    tails = [bytearray(), bytearray()]

    async def read(output: IO[bytes], tail: bytearray) -> None:
        nonlocal left
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_read_pipe(lambda: protocol, output)
        with contextlib.closing(transport):
            while chunk := await reader.read(TAIL_BYTES):
                tail += chunk
                del tail[:-TAIL_BYTES]
                left -= len(chunk)
                if left < 0 and not exceeded.done():
                    exceeded.set_result(None)

    reaping = [sys.executable, "-I", "-S", reaper.__file__, str(grace_s), str(cwd)]
    pipe = subprocess.PIPE
    with stdin.open("rb") as prompt:
        process = ChildProcess([*reaping, *command], env=env, cwd=cwd, stdin=prompt, stdout=pipe, stderr=pipe)
    assert process.stdout is not None and process.stderr is not None
    reading = asyncio.gather(read(process.stdout, tails[0]), read(process.stderr, tails[1]))
    try:
        await asyncio.wait((reading, exceeded), return_when=asyncio.FIRST_COMPLETED)
    finally:
        process.close_lifeline()
        await asyncio.wait((reading,), timeout=grace_s + _LAST_WAIT_S)
        reading.cancel()
        process.poll()
    status = await process.wait(_PROGRAM_POLL_S)
    stdout, stderr = (tail.decode("utf-8", "replace") for tail in tails)
    return FinishedProgram(status, stdout, stderr, exceeded.done())
