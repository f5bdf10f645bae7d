"""State of a backend's rollouts: all running ones and the most recently finished."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...types.protocol import RolloutStatus

FINISHED_LIMIT = 10_000
"""How many finished rollouts are kept."""

_MESSAGE_LIMIT = 500


@dataclass(slots=True)
class RolloutEntry:
    """Status of one rollout and, while it runs, its task."""

    task: asyncio.Task[Any] | None
    status: RolloutStatus = RolloutStatus.QUEUED
    reward: float | None = None
    err_message: str | None = None


class RolloutLedger:
    """A backend's rollouts by id. A rollout is active between :meth:`open` and :meth:`close`."""

    def __init__(self) -> None:
        self._active: dict[str, RolloutEntry] = {}
        self._finished: OrderedDict[str, RolloutEntry] = OrderedDict()

    def open(self, rollout_id: str, task: asyncio.Task[Any] | None) -> RolloutEntry:
        """Add a queued rollout.

        Raises:
            ValueError: A rollout with this id is running.
        """
        if rollout_id in self._active:
            raise ValueError(f"rollout {rollout_id} is already running")
        entry = self._active[rollout_id] = RolloutEntry(task)
        return entry

    def close(self, rollout_id: str) -> None:
        entry = self._active.pop(rollout_id)
        entry.task = None
        if entry.err_message is not None:
            entry.err_message = entry.err_message[:_MESSAGE_LIMIT]
        self._finished[rollout_id] = entry
        self._finished.move_to_end(rollout_id)
        if len(self._finished) > FINISHED_LIMIT:
            self._finished.popitem(last=False)

    def find(self, rollout_id: str) -> RolloutEntry | None:
        return self._active.get(rollout_id) or self._finished.get(rollout_id)

    def cancel(self, ids: Sequence[str] | None, prefix: str | None, everything: bool) -> dict[str, str]:
        """Cancel the selected active rollouts and return the outcome of each one named or matched."""
        chosen: Iterable[str]
        if ids is not None:
            chosen = ids
        elif prefix is not None:
            chosen = [name for name in self._active if name.startswith(prefix)]
        else:
            chosen = list(self._active) if everything else []
        return {name: self._cancel_one(name) for name in chosen}

    def _cancel_one(self, rollout_id: str) -> str:
        entry = self._active.get(rollout_id)
        if entry is None or entry.task is None:
            return "not_found"
        entry.task.cancel()
        return "cancelled_queued" if entry.status is RolloutStatus.QUEUED else "cancelled_running"
