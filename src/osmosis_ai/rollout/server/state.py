"""Table of a served agent's rollouts, by id or idempotency key."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any

from ..config import RolloutServerSettings, RolloutSettings, get_settings

logger = logging.getLogger(__name__)

REMEMBERED_KEYS = 16_384  # of finished rollouts, with their replies; the oldest are forgotten first
HELD_BYTES = 128 * 1024 * 1024  # of the requests of all unfinished rollouts
CANCEL_WAIT_S = 30.0  # for cancelled rollouts to report and end


class AppState:
    """State of a served agent's rollouts. Arguments that are None use the settings.

    Attributes:
        rollout_tasks: Task of every running, waiting or reporting rollout, by key.
        completed_rollouts: End time on the monotonic clock, by key.
        semaphore: The concurrency slots.
        held_bytes: Bytes of the requests of unfinished rollouts.
        closing: Whether the server is shutting down.
    """

    def __init__(
        self,
        max_concurrent: int | None = None,
        record_ttl_seconds: float | None = None,
        cleanup_interval_seconds: float | None = None,
        settings: RolloutSettings | RolloutServerSettings | None = None,
        agent_loop_name: str = "default",
    ) -> None:
        if not isinstance(settings, RolloutServerSettings):
            settings = (settings or get_settings()).server
        ttl_s, interval_s = record_ttl_seconds, cleanup_interval_seconds
        self.settings = settings
        self.agent_loop_name = agent_loop_name
        self.max_concurrent = max_concurrent or settings.max_concurrent_rollouts
        self.record_ttl = settings.record_ttl_seconds if ttl_s is None else ttl_s
        self.cleanup_interval = settings.cleanup_interval_seconds if interval_s is None else interval_s
        self.semaphore = asyncio.Semaphore(self.max_concurrent)
        self.rollout_tasks: dict[str, asyncio.Task[Any]] = {}
        self.completed_rollouts: dict[str, float] = {}
        self.held_bytes = 0
        self.closing = False
        self._replies: dict[str, bytes] = {}
        self._cleanup: asyncio.Task[None] | None = None

    @property
    def active_count(self) -> int:
        """Number of running, waiting and reporting rollouts."""
        return len(self.rollout_tasks)

    @property
    def completed_count(self) -> int:
        """Number of remembered finished rollouts."""
        return len(self.completed_rollouts)

    def is_duplicate(self, key: str) -> bool:
        """Return whether a rollout with this key is active or remembered."""
        ended = self.completed_rollouts.get(key, float("-inf"))
        return key in self.rollout_tasks or time.monotonic() - ended <= self.record_ttl

    def reply_to(self, key: str) -> bytes | None:
        """Return the reply to the first request with this key, or None."""
        return self._replies.get(key) if self.is_duplicate(key) else None

    def has_room(self, size_bytes: int) -> bool:
        """Return whether another rollout, with a request of this size, may run or wait."""
        most = self.max_concurrent + self.settings.max_queued_rollouts
        return len(self.rollout_tasks) < most and self.held_bytes + size_bytes <= HELD_BYTES

    def mark_started(self, key: str, task: asyncio.Task[Any], reply: bytes = b"") -> None:
        """Add the task of a rollout, and the reply to repeated requests."""
        self._forget(key)
        self.rollout_tasks[key] = task
        self._replies[key] = reply

    def mark_completed(self, key: str) -> None:
        """Record that a rollout has ended and been reported."""
        self.rollout_tasks.pop(key, None)
        self.completed_rollouts.pop(key, None)
        self.completed_rollouts[key] = time.monotonic()
        if len(self.completed_rollouts) > REMEMBERED_KEYS:
            self._forget(next(iter(self.completed_rollouts)))

    def start_cleanup_task(self) -> None:
        """Start to remove expired rollouts regularly; needs a running event loop."""
        if self._cleanup is None:
            self._cleanup = asyncio.ensure_future(self._clean_up())

    async def stop_cleanup_task(self) -> None:
        """Stop removing expired rollouts."""
        cleanup, self._cleanup = self._cleanup, None
        if cleanup is not None:
            cleanup.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await cleanup

    async def cancel_all(self) -> None:
        """Stop admission, cancel all rollouts, and return when they have been reported."""
        self.closing = True
        tasks = list(self.rollout_tasks.values())
        if not tasks:
            return
        # A task that is cancelled before its first step never gets to report anything.
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        _, unfinished = await asyncio.wait(tasks, timeout=CANCEL_WAIT_S)
        if unfinished:
            logger.error("%d cancelled rollouts did not end in %gs", len(unfinished), CANCEL_WAIT_S)
        self.rollout_tasks = {key: task for key, task in self.rollout_tasks.items() if not task.done()}

    async def _clean_up(self) -> None:
        while True:
            await asyncio.sleep(self.cleanup_interval)
            oldest = time.monotonic() - self.record_ttl
            for key in [key for key, ended in self.completed_rollouts.items() if ended < oldest]:
                self._forget(key)

    def _forget(self, key: str) -> None:
        self.completed_rollouts.pop(key, None)
        self._replies.pop(key, None)
