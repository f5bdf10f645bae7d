"""How a run stands, and what is new in it: cheap enough to be asked every second."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from osmosis_ai.platform.db.tables import DbLogLine, DbRun, DbSample
from osmosis_ai.platform.runs.eval_results import headline_of
from osmosis_ai.platform.runs.waiting import RunWaits
from osmosis_ai.platform.viewer.found_runs import no_such_run, of_runs
from osmosis_ai.viewer.cursors import changes_cursor, positions_in
from osmosis_ai.viewer.local_runs import RunKind
from osmosis_ai.viewer.source import Changes

_MOST_SAMPLES = 300
_POSITION = (
    select(func.max(DbSample.position)).where(DbSample.run_id == DbRun.id).correlate(DbRun).scalar_subquery()
)
_LINE = (
    select(func.max(DbLogLine.id)).where(DbLogLine.subject_id == DbRun.id).correlate(DbRun).scalar_subquery()
)


def read_changes(
    session: Session,
    workspace_id: str,
    kind: RunKind,
    name: str,
    *,
    since: str | None,
    waits: RunWaits,
) -> Changes:
    """Return how a run stands, and what finished since a cursor."""
    asked: Any = select(DbRun, func.coalesce(_POSITION, 0), func.coalesce(_LINE, 0))
    found = session.execute(of_runs(asked, workspace_id, kind, name)).first()
    if found is None:
        raise no_such_run(session, workspace_id, kind, name)
    run, position, log_line = found
    cursor = changes_cursor(_standing(run, waits.read(session, [run]).why(run)), [position], log_line)
    samples: list[tuple[int, int]] = []
    if since is not None and since != cursor and position > (seen := positions_in(since)[0]):
        samples = _finished(session, run.id, seen)
    return Changes(
        cursor,
        run.status,
        headline_of(run) if kind == "eval" else None,
        samples=samples[:_MOST_SAMPLES],
        more=len(samples) > _MOST_SAMPLES,
        log_cursor=str(log_line),
    )


def _finished(session: Session, run_id: str, seen: int) -> list[tuple[int, int]]:
    """Return (row, attempt) of what was published behind the position ``seen``."""
    asked = select(DbSample.row_index, DbSample.run_index).where(
        DbSample.run_id == run_id, DbSample.position > seen
    )
    return [(row, attempt) for row, attempt in session.execute(asked.limit(_MOST_SAMPLES + 1))]


def _standing(run: DbRun, waits: str | None) -> str:
    """Return a digest of all that can change of a run, and of what it waits for, but its samples and lines."""
    is_stopping = run.stop_requested_at is not None
    known = [run.id, run.status, run.revision, is_stopping, run.results, run.progress, run.error, waits]
    return hashlib.sha256(orjson.dumps(known)).hexdigest()[:12]
