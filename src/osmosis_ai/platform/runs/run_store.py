"""The runs of a workspace as users see them, one kind at a time: lists, details, and requests to stop.

Every query filters by workspace first. What lists show of ended runs is cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session, defer

from osmosis_ai.errors import ConflictError
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun, DbUser
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.runs.lifecycle import COMMAND_GROUPS, KIND_NAMES, OPEN, RunKind
from osmosis_ai.platform.workspaces import row_named

_NEWEST_FIRST = (DbRun.created_at.desc(), DbRun.id.desc())
_COUNT_KEPT_S = 30.0
_MOST_ENDED = 4096


class Queue(Protocol):
    """What runs need of their queue (``platform/queue``), each method in its caller's transaction."""

    term: timedelta
    """How long a lease lasts."""

    def add(self, session: Session, run: DbRun, attempts: Sequence[tuple[int, int]] | None = None) -> None:
        """Queue a pending run: all of it, or only these attempts (row, number) of an evaluation."""

    def request_stop(self, session: Session, run: DbRun) -> None:
        """Make a run stop: at once if no worker has begun with it."""

    def time(self, session: Session) -> datetime:
        """Return the present moment by the clock of leases."""


class RunEndedError(ConflictError):
    """A run that was to stop had ended before."""

    def __init__(self, run: DbRun) -> None:
        super().__init__(f"the run {run.name} has already ended: {run.status}.")
        self.run = run


@dataclass(frozen=True, slots=True, eq=False)
class FoundRun:
    """A run and who submitted it; a run of a list has no metrics."""

    run: DbRun
    creator: DbUser | None


class RunCounts:
    """The numbers of runs by workspace and kind, cached: counting a hundred thousand runs takes milliseconds.

    A number is valid until :meth:`forget`, until there is a newer run (of another process), and for half a minute.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, dict[RunKind, tuple[int, str | None, float]]] = {}

    def forget(self, workspace_id: str) -> None:
        """Count the runs of a workspace again, since one was created or deleted."""
        self._known.pop(workspace_id, None)

    def of(self, session: Session, workspace_id: str, kind: RunKind) -> int:
        """Return how many runs the workspace has."""
        known = self._known.setdefault(workspace_id, {})
        mine = (DbRun.workspace_id == workspace_id, DbRun.kind == kind)
        newest = session.scalar(select(DbRun.id).where(*mine).order_by(*_NEWEST_FIRST).limit(1))
        now = self._clock.monotonic()
        if kind in known:
            total, counted_newest, counted_at = known[kind]
            if counted_newest == newest and now - counted_at < _COUNT_KEPT_S:
                return total
        total = session.scalar(select(func.count()).select_from(DbRun).where(*mine)) or 0
        # If the workspace was forgotten in between, this number is not used again.
        known[kind] = (total, newest, now)
        return total


# The index alone finds the ids, however large the offset is.
_PAGE_IDS = (
    select(DbRun.id)
    .where(DbRun.workspace_id == bindparam("workspace_id"), DbRun.kind == bindparam("kind"))
    .order_by(*_NEWEST_FIRST)
    .limit(bindparam("limit"))
    .offset(bindparam("offset"))
    .subquery()
)
_PAGE = (
    select(DbRun.id, DbRun.completed_at).join(_PAGE_IDS, DbRun.id == _PAGE_IDS.c.id).order_by(*_NEWEST_FIRST)
)
_LISTED = (
    select(DbRun, DbUser)
    .outerjoin(DbUser, DbUser.id == DbRun.creator_id)
    .where(DbRun.id.in_(bindparam("ids", expanding=True)))
    .options(defer(DbRun.metrics), defer(DbRun.training_state), defer(DbRun.sealed_secrets))
)


class RunStore:
    """The runs of one kind, of all workspaces."""

    def __init__(self, kind: RunKind, db: Database, logs: LogStore, counts: RunCounts, queue: Queue) -> None:
        self._kind = kind
        self._db = db
        self._logs = logs
        self._counts = counts
        self._queue = queue
        # An ended run that is reopened ends at another moment.
        self._ended: dict[tuple[str, datetime | None], FoundRun] = {}

    def page(self, workspace_id: str, *, limit: int, offset: int) -> tuple[list[FoundRun], int]:
        """Return one page of a workspace's runs, newest first, and the number of all its runs."""
        asked = {"workspace_id": workspace_id, "kind": self._kind, "limit": limit, "offset": offset}
        with self._db.session() as session:
            total = self._counts.of(session, workspace_id, self._kind)
            keys = [(id, completed_at) for id, completed_at in session.execute(_PAGE, asked)]
            known = {key: found for key in keys if (found := self._ended.get(key)) is not None}
            if missing := [id for id, completed_at in keys if (id, completed_at) not in known]:
                rows = session.execute(_LISTED, {"ids": missing})
                known |= {(run.id, run.completed_at): FoundRun(run, creator) for run, creator in rows}
        if len(self._ended) > _MOST_ENDED:
            self._ended.clear()
        self._ended.update((key, found) for key, found in known.items() if found.run.status not in OPEN)
        return [known[key] for key in keys], total

    def get(self, workspace_id: str, name_or_id: str) -> FoundRun:
        """Return a run by its name or id."""
        mine: Any = (
            select(DbRun, DbUser)
            .outerjoin(DbUser, DbUser.id == DbRun.creator_id)
            .where(DbRun.workspace_id == workspace_id, DbRun.kind == self._kind)
        )
        called, see = f"{KIND_NAMES[self._kind]} run", f"see `{COMMAND_GROUPS[self._kind]} list`"
        with self._db.session() as session:
            return FoundRun(*row_named(session, mine, DbRun, name_or_id, called=called, otherwise=see))

    def stop(self, workspace_id: str, name_or_id: str, *, by: str) -> DbRun:
        """Ask a run to stop, and return it; repeating it changes nothing."""
        found = self.get(workspace_id, name_or_id).run
        with self._db.transaction() as session:
            run = session.get_one(DbRun, found.id, with_for_update=True)
            if run.status not in OPEN:
                raise RunEndedError(run)
            if run.stop_requested_at is None:
                self._logs.add(session, run.id, [LogLine(f"{by} asked for the run to stop", step="run")])
                self._queue.request_stop(session, run)
            return run
