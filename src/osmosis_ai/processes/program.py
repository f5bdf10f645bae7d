"""Run a third-party program to completion with bounded output and no leftover processes.

:mod:`osmosis_ai.processes.reaper` runs in between. It ends all descendants when the program ends, when this process
drops it, and when this process dies. The output pipes close when the reaper ends.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from osmosis_ai.processes import reaper

TAIL_BYTES = 64 * 1024
"""How much of the end of each output is returned."""
GRACE_S = 1.0
_LAST_WAIT_S = 3.0
_POLL_S = 0.002


@dataclass(frozen=True)
class FinishedProgram:
    status: int
    stdout: str
    stderr: str
    flooded: bool


class _OutputLimit:
    def __init__(self, limit: int) -> None:
        self.exceeded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = limit

    def count(self, size: int) -> None:
        self._left -= size
        if self._left < 0 and not self.exceeded.done():
            self.exceeded.set_result(None)


class _Output(asyncio.Protocol):
    def __init__(self, limit: _OutputLimit) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._limit = limit
        self._tail = bytearray()

    def data_received(self, data: bytes) -> None:
        self._limit.count(len(data))
        self._tail += data
        if len(self._tail) > 2 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def text(self) -> str:
        return self._tail[-TAIL_BYTES:].decode("utf-8", "replace")


async def run_program(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    stdin: Path,
    max_output_bytes: int,
    grace_s: float = GRACE_S,
) -> FinishedProgram:
    """Run a program; cancelling this ends it, and all that it started."""
    loop = asyncio.get_running_loop()
    limit = _OutputLimit(max_output_bytes)
    outputs = [_Output(limit), _Output(limit)]
    process, lifeline_end, ends = _start(command, env, cwd, stdin, grace_s)
    with os.fdopen(lifeline_end, "wb", 0) as lifeline:
        transports = [
            (await loop.connect_read_pipe(lambda output=output: output, os.fdopen(end, "rb", 0)))[0]  # type: ignore[misc]
            for output, end in zip(outputs, ends, strict=True)
        ]
        everything = asyncio.gather(*(output.ended for output in outputs))
        try:
            await asyncio.wait((everything, limit.exceeded), return_when=asyncio.FIRST_COMPLETED)
        finally:
            lifeline.close()
            await asyncio.wait((everything,), timeout=grace_s + _LAST_WAIT_S)
            everything.cancel()
            for transport in transports:
                transport.close()
            process.poll()
        while (status := process.poll()) is None:  # noqa: ASYNC110 - its pipes are closed, so it ends now
            await asyncio.sleep(_POLL_S)
    stdout, stderr = (output.text() for output in outputs)
    return FinishedProgram(status, stdout, stderr, limit.exceeded.done())


def _start(
    command: Sequence[str], env: Mapping[str, str], cwd: Path, stdin: Path, grace_s: float
) -> tuple[subprocess.Popen[bytes], int, tuple[int, int]]:
    """Start a reaper with the program; return it, the lifeline's write end and the read ends of its outputs."""
    lifeline, lifeline_end = os.pipe()
    pipes = [os.pipe(), os.pipe()]
    reaping = [sys.executable, "-I", "-S", str(reaper.__file__), str(lifeline), str(grace_s), str(cwd)]
    try:
        with stdin.open("rb") as prompt:
            process = subprocess.Popen(
                [*reaping, *command],
                env=dict(env),
                cwd=cwd,
                stdin=prompt,
                stdout=pipes[0][1],
                stderr=pipes[1][1],
                start_new_session=True,
                pass_fds=[lifeline],
            )
    except BaseException:
        for end in (lifeline_end, *(reading for reading, _ in pipes)):
            os.close(end)
        raise
    finally:
        for end in (lifeline, *(writing for _, writing in pipes)):
            os.close(end)
    return process, lifeline_end, (pipes[0][0], pipes[1][0])
