"""Cached run counts of workspaces, since counting a hundred thousand runs takes milliseconds.

A count is valid while the workspace's newest run is unchanged. Submitting a run here invalidates it. Runs of another
process are noticed as newer, or at the latest, after a clock was set back, when the count expires.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.tables import DbRun

MAX_AGE_S = 30.0


@dataclass(frozen=True, slots=True)
class _Count:
    total: int
    newest: tuple[datetime, str] | None
    counted_at: float


class RunCounts:
    """The numbers of runs of one kind, by workspace."""

    def __init__(self, kind: str, clock: Clock) -> None:
        self._kind = kind
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, _Count] = {}

    def forget(self, workspace_id: str) -> None:
        """Discard a workspace's count after a new run."""
        with self._lock:
            self._known.pop(workspace_id, None)

    def of(self, session: Session, workspace_id: str) -> int:
        """Return how many runs the workspace has."""
        with self._lock:
            known = self._known.get(workspace_id)
        runs = (DbRun.workspace_id == workspace_id, DbRun.kind == self._kind)
        row = session.execute(
            select(DbRun.created_at, DbRun.id)
            .where(*runs)
            .order_by(DbRun.created_at.desc(), DbRun.id.desc())
            .limit(1)
        ).first()
        newest = (row[0], row[1]) if row is not None else None
        now = self._clock.monotonic()
        if known is not None and known.newest == newest and now - known.counted_at < MAX_AGE_S:
            return known.total
        total = session.scalar(select(func.count()).select_from(DbRun).where(*runs)) or 0
        with self._lock:
            if self._known.get(workspace_id) is known:
                self._known[workspace_id] = _Count(total, newest, now)
        return total
