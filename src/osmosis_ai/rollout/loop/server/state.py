"""The rollouts of one served agent: each key admitted once, in bounded memory, and forgotten a while after its end.

A key is a rollout's id or the idempotency key that came with it. What is admitted runs or waits for a place; beyond
so many that wait, and beyond so many bytes of requests, nothing is admitted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..settings import RolloutServerSettings, RolloutSettings

logger = logging.getLogger(__name__)

REMEMBERED_KEYS = 65_536
"""How many rollouts that have ended are known, however long their records are to be kept."""

REMEMBERED_BYTES = 64 * 1024 * 1024
"""How many bytes the answers to the requests of known rollouts may have; the oldest that have ended are forgotten."""

HELD_BYTES = 128 * 1024 * 1024
"""How many bytes the requests of all rollouts that have not ended may have."""

CANCEL_WAIT_S = 30.0
"""How long cancelled rollouts may take to report and end, in seconds."""


class AppState:
    """What a served agent knows of its rollouts.

    Args:
        max_concurrent: how many run at once; None and 0 mean the setting.
        record_ttl_seconds: how long a rollout is known after its end; the setting when None.
        cleanup_interval_seconds: how often ended ones are looked through; the setting when None.
        settings: what is not given above (default: the process's).
        agent_loop_name: whose rollouts these are.
        max_queued: how many may wait for a place; the setting when None.

    Attributes:
        rollout_tasks: key -> task of every rollout that runs, waits, or is being reported.
        completed_rollouts: key -> when it ended, on the monotonic clock.
        semaphore: the places.
        request_timeout: how long a request may take to arrive, in seconds.
        closing: whether the server is shutting down.
    """

    def __init__(
        self,
        max_concurrent: int | None = None,
        record_ttl_seconds: float | None = None,
        cleanup_interval_seconds: float | None = None,
        settings: RolloutSettings | RolloutServerSettings | None = None,
        agent_loop_name: str = "default",
        *,
        max_queued: int | None = None,
    ) -> None:
        configured = _server_settings(settings)
        self.agent_loop_name = agent_loop_name
        self.max_concurrent: int = max_concurrent or configured.max_concurrent_rollouts
        self.max_queued: int = configured.max_queued_rollouts if max_queued is None else max_queued
        self.request_timeout: float = configured.request_timeout_seconds
        self.record_ttl: float = _given(record_ttl_seconds, configured.record_ttl_seconds)
        self.cleanup_interval: float = _given(cleanup_interval_seconds, configured.cleanup_interval_seconds)
        self.semaphore = asyncio.Semaphore(self.max_concurrent)
        self.rollout_tasks: dict[str, asyncio.Task[Any]] = {}
        self.completed_rollouts: dict[str, float] = {}
        self.closing = False
        self._replies: dict[str, bytes] = {}
        self._reply_bytes = 0
        self._held_bytes = 0
        self._cleanup: asyncio.Task[None] | None = None

    @property
    def active_count(self) -> int:
        """How many rollouts run, wait for a place or are being reported."""
        return len(self.rollout_tasks)

    @property
    def completed_count(self) -> int:
        """How many ended rollouts are known."""
        return len(self.completed_rollouts)

    def is_duplicate(self, key: str) -> bool:
        """Tell whether a rollout of this key was started, and has not been forgotten since its end."""
        if key in self.rollout_tasks:
            return True
        ended = self.completed_rollouts.get(key)
        return ended is not None and time.monotonic() - ended <= self.record_ttl

    def reply_to(self, key: str) -> bytes | None:
        """Return what the first request of this key was answered, None when there was none."""
        return self._replies.get(key) if self.is_duplicate(key) else None

    def has_room(self) -> bool:
        """Tell whether one more rollout may run or wait."""
        return len(self.rollout_tasks) < self.max_concurrent + self.max_queued

    def mark_started(self, key: str, task: asyncio.Task[Any], reply: bytes | None = None) -> None:
        """Know a rollout from now on.

        Args:
            key: its id, or its idempotency key.
            task: runs and reports it.
            reply: what a repeated request is answered.
        """
        self.completed_rollouts.pop(key, None)
        self.rollout_tasks[key] = task
        self._drop_reply(key)
        if reply is not None:
            self._replies[key] = reply
            self._reply_bytes += len(reply)

    def mark_completed(self, key: str) -> None:
        """Remember that a rollout has ended and been reported."""
        self.rollout_tasks.pop(key, None)
        self.completed_rollouts.pop(key, None)
        self.completed_rollouts[key] = time.monotonic()
        while len(self.completed_rollouts) > (1 if self._reply_bytes > REMEMBERED_BYTES else REMEMBERED_KEYS):
            self._forget(next(iter(self.completed_rollouts)))

    def hold(self, size_bytes: int) -> bool:
        """Count bytes of a request as held, until :meth:`release`; refuse what is too much with the others."""
        if self._held_bytes + size_bytes > HELD_BYTES:
            return False
        self._held_bytes += size_bytes
        return True

    def release(self, size_bytes: int) -> None:
        """Count bytes as held no more."""
        self._held_bytes -= size_bytes

    def forget_expired(self) -> None:
        """Forget the rollouts that ended longer ago than :attr:`record_ttl`."""
        oldest = time.monotonic() - self.record_ttl
        for key in [key for key, ended in self.completed_rollouts.items() if ended < oldest]:
            self._forget(key)

    def start_cleanup_task(self) -> None:
        """Forget ended rollouts from now on; needs a running event loop."""
        if self._cleanup is None:
            self._cleanup = asyncio.ensure_future(self._clean_up())

    async def stop_cleanup_task(self) -> None:
        """Forget no more."""
        cleanup, self._cleanup = self._cleanup, None
        if cleanup is not None:
            cleanup.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await cleanup

    async def cancel_all(self) -> None:
        """Admit no more, cancel what runs or waits, and return when all of it has been reported."""
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
            self.forget_expired()

    def _forget(self, key: str) -> None:
        self.completed_rollouts.pop(key, None)
        if key not in self.rollout_tasks:
            self._drop_reply(key)

    def _drop_reply(self, key: str) -> None:
        self._reply_bytes -= len(self._replies.pop(key, b""))


def _given(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def _server_settings(settings: RolloutSettings | RolloutServerSettings | None) -> RolloutServerSettings:
    from ..settings import RolloutServerSettings, get_settings

    if isinstance(settings, RolloutServerSettings):
        return settings
    return (settings or get_settings()).server
