"""The clock of the running event loop, which a test can advance."""

from __future__ import annotations

import asyncio


def advance_loop_clock(seconds: float) -> None:
    """Advance the clock of the running loop; timers that are due fire next."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds  # type: ignore[method-assign]
