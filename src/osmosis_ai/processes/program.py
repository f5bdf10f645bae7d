"""Run a third-party program to completion with bounded output and no leftover processes.

:mod:`osmosis_ai.processes.reaper` runs in between. It ends all descendants when the program ends, when this process
drops it, and when this process dies. The output pipes close when the reaper ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

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

    process, our_end = _start(command, env, cwd, stdin, grace_s)
    with os.fdopen(our_end, "wb", 0) as lifeline:
        assert process.stdout is not None and process.stderr is not None
        reading = asyncio.gather(read(process.stdout, tails[0]), read(process.stderr, tails[1]))
        try:
            await asyncio.wait((reading, exceeded), return_when=asyncio.FIRST_COMPLETED)
        finally:
            lifeline.close()
            await asyncio.wait((reading,), timeout=grace_s + _LAST_WAIT_S)
            reading.cancel()
            process.poll()
        while (status := process.poll()) is None:  # noqa: ASYNC110 - its lifeline is closed, so it ends now
            await asyncio.sleep(_POLL_S)
    stdout, stderr = (tail.decode("utf-8", "replace") for tail in tails)
    return FinishedProgram(status, stdout, stderr, exceeded.done())


def _start(
    command: Sequence[str], env: Mapping[str, str], cwd: Path, stdin: Path, grace_s: float
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a reaper with the program; return it and the lifeline's write end."""
    reaper_end, our_end = os.pipe()
    reaping = [sys.executable, "-I", "-S", reaper.__file__, str(reaper_end), str(grace_s), str(cwd)]
    try:
        with stdin.open("rb") as prompt:
            process = subprocess.Popen(
                [*reaping, *command],
                env=dict(env),
                cwd=cwd,
                stdin=prompt,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                pass_fds=[reaper_end],
            )
    except BaseException:
        os.close(our_end)
        raise
    finally:
        os.close(reaper_end)
    return process, our_end
