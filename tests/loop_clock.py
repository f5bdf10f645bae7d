"""The clock of the running event loop, for timeouts that pass when a test says so."""

from __future__ import annotations

import asyncio


def advance_loop_clock(seconds: float) -> None:
    """Put the clock of the running loop forward: every timer that is due by then fires next."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds  # type: ignore[method-assign]
