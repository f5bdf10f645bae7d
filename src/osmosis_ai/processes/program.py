"""Run a third-party program to completion with bounded output and no leftover processes.

:mod:`osmosis_ai.processes.reaper` runs in between. It ends all descendants when the program ends, when this process
drops it, and when this process dies. The output pipes close when the reaper ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from osmosis_ai.processes import reaper
from osmosis_ai.processes.child_process import ChildProcess

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
    status = await process.wait(_POLL_S)
    stdout, stderr = (tail.decode("utf-8", "replace") for tail in tails)
    return FinishedProgram(status, stdout, stderr, exceeded.done())
