"""Read access to runs for users (lists, details, numbers, logs), and stop requests.

Every query filters by workspace first. Lists read only the displayed columns, and cache ended runs, which change
only when resumed. A run's numbers are in its own row, so lists never count samples.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import Select, bindparam, select
from sqlalchemy.orm import Session

from osmosis_ai.api.wire.base import LogPage
from osmosis_ai.errors import ConflictError
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun, DbUser
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.logs import Direction, LogStore
from osmosis_ai.platform.name_lookup import row_named
from osmosis_ai.platform.runs.lifecycle import COMMAND_GROUPS, KIND_NAMES, OPEN, RunKind
from osmosis_ai.platform.runs.queue import Queue
from osmosis_ai.platform.runs.read.run_counts import RunCounts


class RunEndedError(ConflictError):
    """A run that was to stop had ended before."""

    def __init__(self, run: DbRun) -> None:
        super().__init__(f"the run {run.name} has ended already: {run.status}.")
        self.run = run


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run and who submitted it."""

    run: DbRun
    creator: DbUser | None


@dataclass(frozen=True, slots=True, eq=False)
class ListedRun:
    """What a list shows of a run; the fields are columns of :class:`DbRun`, the last two of its creator."""

    id: str
    workspace_id: str
    name: str
    status: str
    error: str | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    request: dict[str, Any]
    results: dict[str, Any] | None
    selection: dict[str, Any] | None
    seed: int
    model_path: str
    dataset_id: str | None
    dataset_name: str
    rollout_id: str | None
    rollout_name: str
    commit_sha: str | None
    imported: dict[str, Any] | None
    revision: int
    retried_at: datetime | None
    pool: str | None
    stop_requested_at: datetime | None
    creator_name: str | None
    creator_email: str | None


_NEWEST_FIRST = (DbRun.created_at.desc(), DbRun.id.desc())
# The ids come from the index alone, however far the offset; whole rows only of the page.
_PAGE_IDS = (
    select(DbRun.id)
    .where(DbRun.workspace_id == bindparam("workspace_id"), DbRun.kind == bindparam("kind"))
    .order_by(*_NEWEST_FIRST)
    .limit(bindparam("limit"))
    .offset(bindparam("offset"))
)
# Plain columns cost half of what entities do, and a statement that is built once is also compiled once.
_SUMMARIES: Select[Any] = (
    select(*(getattr(DbRun, field.name) for field in fields(ListedRun)[:-2]), DbUser.name, DbUser.email)
    .outerjoin(DbUser, DbUser.id == DbRun.creator_id)
    .where(DbRun.id.in_(bindparam("ids", expanding=True)))
)
# Some 20 MB at most.
_REMEMBERED = 4096


class RunStore:
    """The runs of one kind, of all workspaces."""

    def __init__(self, kind: RunKind, db: Database, logs: LogStore, counts: RunCounts, queue: Queue) -> None:
        self._kind = kind
        self._db = db
        self._counts = counts
        self._logs = logs
        self._queue = queue
        self._ended: dict[str, ListedRun] = {}
        self._lock, self._forgotten = threading.Lock(), 0

    def page(self, workspace_id: str, *, limit: int, offset: int) -> tuple[list[ListedRun], int]:
        """Return one page of a workspace's runs, the newest first, and how many there are in all."""
        asked = {"workspace_id": workspace_id, "kind": self._kind, "limit": limit, "offset": offset}
        with self._db.session() as session:
            total = self._counts.of(session, workspace_id)
            ids = session.scalars(_PAGE_IDS, asked).all()
            return self._summaries(session, ids), total

    def get(self, workspace_id: str, name_or_id: str) -> FoundRun:
        """Return a run by its name or id."""
        with self._db.session() as session:
            return self._find(session, workspace_id, name_or_id)

    def logs(
        self, workspace_id: str, name_or_id: str, *, limit: int, direction: Direction, cursor: str | None
    ) -> LogPage:
        """Return one page of a run's log."""
        run = self.get(workspace_id, name_or_id).run
        return self._logs.page(run.id, limit=limit, direction=direction, cursor=cursor)

    def stop(self, workspace_id: str, name_or_id: str, *, by: str) -> DbRun:
        """Ask for a run to stop, and return it; asking again while it does so changes nothing."""
        found = self.get(workspace_id, name_or_id).run
        with self._db.transaction() as session:
            run = session.get_one(DbRun, found.id, with_for_update=True)
            if run.status not in OPEN:
                raise RunEndedError(run)
            if run.stop_requested_at is not None:
                return run
            self._logs.add(session, run.id, [LogLine(f"{by} asked for the run to stop", step="run")])
            self._queue.request_stop(session, run)
            return run

    def forget_ended(self, run_id: str) -> None:
        """Forget what an ended run was remembered by: it has not ended any more."""
        with self._lock:
            self._forgotten += 1
            self._ended = {id: summary for id, summary in self._ended.items() if id != run_id}

    def _summaries(self, session: Session, ids: Sequence[str]) -> list[ListedRun]:
        ended, forgotten = self._ended, self._forgotten
        found = {id: ended[id] for id in ids if id in ended}
        missing = [id for id in ids if id not in found]
        if missing:
            found |= {row.id: ListedRun(*row) for row in session.execute(_SUMMARIES, {"ids": missing})}
            if newly := {id: found[id] for id in missing if found[id].status not in OPEN}:
                # Other threads read the one that is there; they never see it change.
                with self._lock:
                    if forgotten == self._forgotten:
                        self._ended = {**(ended if len(ended) < _REMEMBERED else {}), **newly}
        return [found[id] for id in ids]

    def _find(self, session: Session, workspace_id: str, name_or_id: str) -> FoundRun:
        mine: Any = (
            select(DbRun, DbUser)
            .outerjoin(DbUser, DbUser.id == DbRun.creator_id)
            .where(DbRun.workspace_id == workspace_id, DbRun.kind == self._kind)
        )
        called, see = f"{KIND_NAMES[self._kind]} run", f"see `{COMMAND_GROUPS[self._kind]} list`"
        run, creator = row_named(session, mine, DbRun, name_or_id, called=called, otherwise=see)
        return FoundRun(run, creator)
