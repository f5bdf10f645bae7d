"""Checks of other processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path


def alive(pid: int) -> bool:
    """Tell whether a process runs; one that ended and waits for its parent does not."""
    try:
        if Path("/proc/self").exists():
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1]
        else:
            state = subprocess.run(
                ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
            ).stdout
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state.strip()[:1] not in ("", "Z")


async def gone(pid: int) -> None:
    """Wait until a process that is no child of ours has ended."""
    while alive(pid):  # noqa: ASYNC110 - another process's end cannot be waited for
        await asyncio.sleep(0.02)


def stop_process(process: int) -> None:
    """Send SIGSTOP and wait until all threads stand still; a thread that still runs takes a later SIGTERM first."""
    os.kill(process, signal.SIGSTOP)
    deadline = time.monotonic() + 300
    while not all(
        "(stopped)" in status.read_text() for status in Path(f"/proc/{process}/task").glob("*/status")
    ):
        assert time.monotonic() < deadline, "the process does not stop"
        time.sleep(0.01)
