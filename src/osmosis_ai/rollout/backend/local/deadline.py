"""Deadlines for user code.

The code runs in its own task, which is cancelled at the deadline. A task that ignores its cancellation
is abandoned after a grace period and its result is discarded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

CANCEL_GRACE_S = 5.0
"""Seconds that user code has to clean up after its cancellation."""

# The event loop holds only weak references: without these, abandoned tasks could be collected while running.
_left_behind: set[asyncio.Task[Any]] = set()


class DeadlineExceededError(Exception):
    """The code did not return before its deadline."""


async def run_within(work: Coroutine[Any, Any, T], budget_s: float | None) -> T:
    """Run ``work`` for at most ``budget_s`` seconds; None means no limit.

    A result that arrives after the deadline (swallowed cancellation, blocked event loop) is discarded.

    Raises:
        DeadlineExceededError: The budget ran out, or was already used up.
        RuntimeError: The code tried to exit the process or cancelled itself.
        Exception: Any error raised by the code.
    """
    if budget_s is not None and budget_s <= 0:
        work.close()
        raise DeadlineExceededError
    started = time.monotonic()
    task = asyncio.ensure_future(_contain(work))
    try:
        await asyncio.wait((task,), timeout=budget_s)
    except asyncio.CancelledError:
        await _stop(task)
        raise
    if not task.done():
        await _stop(task)
        raise DeadlineExceededError
    if task.cancelled():
        raise RuntimeError("the code cancelled its own task")
    error = task.exception()
    if error is None and budget_s is not None and time.monotonic() - started > budget_s:
        raise DeadlineExceededError
    return task.result()


async def _contain(work: Coroutine[Any, Any, T]) -> T:
    try:
        return await work
    except SystemExit as error:
        # asyncio passes SystemExit on to the event loop, which would end every other rollout.
        raise RuntimeError(f"the code tried to exit the process (status {error.code})") from error


async def _stop(task: asyncio.Task[Any]) -> None:
    task.cancel()
    _left_behind.add(task)
    task.add_done_callback(_forget)
    await asyncio.wait((task,), timeout=CANCEL_GRACE_S)
    if not task.done():
        logger.error("the code ignored its cancellation for %gs and was left behind", CANCEL_GRACE_S)


def _forget(task: asyncio.Task[Any]) -> None:
    _left_behind.discard(task)
    if not task.cancelled() and task.exception() is not None:
        logger.debug("a cancelled task ended with an error", exc_info=task.exception())
