"""What submitting, retrying and stopping runs need of the run queue (``platform/queue``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sqlalchemy.orm import Session

from osmosis_ai.platform.db.tables import DbRun


class Queue(Protocol):
    """Both methods are part of the session's transaction."""

    def add(self, session: Session, run: DbRun, attempts: Sequence[tuple[int, int]] | None = None) -> None:
        """Queue a pending run: all of it, or only these attempts (row, number) of an evaluation."""

    def request_stop(self, session: Session, run: DbRun) -> None:
        """Make a run stop: at once if no worker has begun with it."""
