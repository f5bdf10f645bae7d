"""A stand-in model in a thread of its own, for code that blocks the thread it is called from."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.standin_model import StandInModel


@contextmanager
def serving(model: StandInModel) -> Iterator[StandInModel]:
    """Serve ``model`` until the block ends."""
    started, loop = threading.Event(), asyncio.new_event_loop()
    stopped = asyncio.Event()

    async def serve() -> None:
        async with model:
            started.set()
            await stopped.wait()
        # Otherwise, connections that clients keep open would be reported on stderr in a later test.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert started.wait(60)
        yield model
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join()
        loop.close()
