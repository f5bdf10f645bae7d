"""Questions tests ask about other processes."""

from __future__ import annotations

import asyncio
import subprocess
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
