"""How a run stands, and what is new in it: cheap enough to be asked every second."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import orjson
from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session

from osmosis_ai.platform.db.tables import DbLogLine, DbRun, DbSample
from osmosis_ai.platform.runs.eval_results import headline_of
from osmosis_ai.platform.viewer.found_runs import no_such_run, of_family
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
    why_it_waits: Callable[[DbRun], str | None],
) -> Changes:
    """Return how a run stands, and what finished since a cursor."""
    asked = of_family(
        select(DbRun, _POSITION.label("position"), _LINE.label("line")), workspace_id, kind, name
    )
    found = session.execute(asked).all()
    named = [row[0] for row in found if name in (row[0].name, row[0].id)]
    if not named:
        raise no_such_run(session, workspace_id, kind, name)
    run = named[0]
    family = [row for row in found if run.id in (row[0].id, row[0].retry_of_id)]
    positions = [row.position or 0 for row in family]
    log_line = next(row.line for row in family if row[0].id == run.id) or 0
    standing = _standing([(row[0], why_it_waits(row[0])) for row in family])
    cursor = changes_cursor(standing, positions, log_line)
    samples: list[tuple[int, int]] = []
    if since is not None and since != cursor:
        samples = _finished(session, [row[0].id for row in family], positions, positions_in(since))
    return Changes(
        cursor,
        run.status,
        headline_of(run) if kind == "eval" else None,
        samples=samples[:_MOST_SAMPLES],
        more=len(samples) > _MOST_SAMPLES,
        log_cursor=str(log_line),
    )


def _finished(
    session: Session, ids: Sequence[str], positions: Sequence[int], seen: Sequence[int]
) -> list[tuple[int, int]]:
    """Return (row, attempt) of what was published behind the positions ``seen``; a retry may be new itself."""
    seen = [*seen, *[0] * len(ids)][: len(ids)]
    news = [
        and_(DbSample.run_id == id, DbSample.position > before)
        for id, now, before in zip(ids, positions, seen, strict=True)
        if now > before
    ]
    if not news:
        return []
    asked = select(DbSample.row_index, DbSample.run_index).where(or_(*news)).limit(_MOST_SAMPLES + 1)
    return [(row, attempt) for row, attempt in session.execute(asked)]


def _standing(runs: Sequence[tuple[DbRun, str | None]]) -> str:
    """Return a digest of all that can change of runs, each with what it waits for, but their samples and lines."""
    known: list[Any] = [
        [run.id, run.status, run.stop_requested_at is None, run.results, run.progress, run.error, waits]
        for run, waits in runs
    ]
    return hashlib.sha256(orjson.dumps(known)).hexdigest()[:12]
