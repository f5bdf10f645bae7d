"""Runs as people see them: lists, details, numbers, logs, and the request to stop.

Every query names the workspace first, so the run of another one is not there. Lists read no more of a row than
they show; the numbers of a run are its own row's, so that no list ever counts samples.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session, defer

from osmosis_ai.api.wire.base import LogPage
from osmosis_ai.errors import NotFoundError
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.models import Run, User
from osmosis_ai.platform.logs import Direction, Line, Logs
from osmosis_ai.platform.runs.counts import RunCounts
from osmosis_ai.platform.runs.leases import Leases
from osmosis_ai.platform.runs.status import OPEN

KIND = "eval"


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run and who submitted it."""

    run: Run
    creator: User | None


class EvalRuns:
    """The evaluation runs of all workspaces.

    Args:
        db, clock, logs: the platform's.
        counts: how many there are, shared with who adds some.
    """

    def __init__(self, db: Database, clock: Clock, logs: Logs, counts: RunCounts) -> None:
        self._db = db
        self._counts = counts
        self._clock = clock
        self._logs = logs
        self._leases = Leases(db, clock)

    def page(self, workspace_id: str, *, limit: int, offset: int) -> tuple[list[ListedRun], int]:
        """Return one page of a workspace's runs, the newest first, and how many there are in all."""
        of_workspace = (Run.workspace_id == workspace_id, Run.kind == KIND)
        with self._db.session() as session:
            total = self._counts.of(session, workspace_id)
            # The ids come from the index alone, however far the offset; whole rows only of the page.
            page = (
                select(Run.id)
                .where(*of_workspace)
                .order_by(Run.created_at.desc(), Run.id.desc())
                .limit(limit)
                .offset(offset)
            )
            rows = session.execute(
                select(Run, User)
                .outerjoin(User, User.id == Run.creator_id)
                .where(Run.id.in_(page))
                .order_by(Run.created_at.desc(), Run.id.desc())
                .options(defer(Run.metrics), defer(Run.sealed_secrets))
            ).all()
        return [ListedRun(run, creator) for run, creator in rows], total

    def get(self, workspace_id: str, name_or_id: str) -> ListedRun:
        """Return a run by its name or id.

        Raises:
            NotFoundError: the workspace has none.
        """
        with self._db.session() as session:
            return self._find(session, workspace_id, name_or_id)

    def logs(
        self, workspace_id: str, name_or_id: str, *, limit: int, direction: Direction, cursor: str | None
    ) -> LogPage:
        """Return one page of a run's log.

        Raises:
            NotFoundError: as :meth:`get`.
            OsmosisError: the cursor did not come from a page.
        """
        run = self.get(workspace_id, name_or_id).run
        return self._logs.page(run.id, limit=limit, direction=direction, cursor=cursor)

    def stop(self, workspace_id: str, name_or_id: str, *, by: str) -> tuple[Run, bool]:
        """Ask for a run to stop; return it, and whether it is still to end. One that has ended stays as it is.

        Args:
            workspace_id: the workspace.
            name_or_id: the run.
            by: who asks, for the log.

        Raises:
            NotFoundError: as :meth:`get`.
        """
        found = self.get(workspace_id, name_or_id).run
        with self._db.transaction() as session:
            run = session.get_one(Run, found.id, with_for_update=True)
            if run.status not in OPEN or run.stop_requested_at is not None:
                return run, run.status in OPEN
            self._logs.add(session, run.id, [Line(f"{by} asked for the run to stop", step="run")])
            if run.status == "pending":
                self._leases.end(run, "stopped")
                return run, False
            run.stop_requested_at = self._clock.now()
            return run, True

    def _find(self, session: Session, workspace_id: str, name_or_id: str) -> ListedRun:
        for column in (Run.name, Run.id):
            row = session.execute(
                select(Run, User)
                .outerjoin(User, User.id == Run.creator_id)
                .where(Run.workspace_id == workspace_id, Run.kind == KIND, column == name_or_id)
            ).first()
            if row is not None:
                return ListedRun(row[0], row[1])
        raise NotFoundError(
            f"there is no evaluation run '{name_or_id[:200]}' in this workspace.",
            hint="see `osmosis eval list`",
        )
