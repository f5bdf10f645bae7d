"""Uploaded results of judging sessions among a workspace's runs: their part of each list, and each one's line and page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Float, Select, and_, cast, false, func, null, or_, select, tuple_
from sqlalchemy.orm import Session, aliased

from osmosis_ai.errors import ConflictError, reason_of
from osmosis_ai.evaluation.headline import Headline
from osmosis_ai.platform.db.keyset import KeysetOrder, KeysetPlace, KeysetRange
from osmosis_ai.platform.db.tables import DbRubricResult
from osmosis_ai.platform.rubric_results import WITH_CREATORS, FoundRubricResult, RubricResultStore
from osmosis_ai.platform.viewer.list_parts import asked_of, numbers_by_id, read_trends
from osmosis_ai.rubric.written_results import parse_result
from osmosis_ai.ui.numbers import iso
from osmosis_ai.viewer.judging_sessions import session_detail
from osmosis_ai.viewer.source import RunDetail, RunEntry, RunQuery

_NO_RATE: Any = cast(null(), Float).label("pass_rate")
"""What a judge says is no pass."""
_ORDERS: Mapping[str, Any] = {
    "started": DbRubricResult.created_at,
    "status": DbRubricResult.status,
    "reward": DbRubricResult.reward,
    "pass_rate": _NO_RATE,
    "cost": DbRubricResult.cost_usd,
    "duration": DbRubricResult.duration_ms,
}
_SEARCHED = (
    DbRubricResult.name,
    DbRubricResult.model_path,
    DbRubricResult.dataset_name,
    DbRubricResult.config,
)


def rubric_range(
    session: Session, workspace_id: str, query: RunQuery, of_runs: KeysetOrder, place: KeysetPlace | None
) -> KeysetRange:
    """Return a workspace's results as a range of a list of runs.

    Args:
        session: of the database.
        workspace_id: whose.
        query: which.
        of_runs: the order of the list.
        place: where the list begins.
    """
    if query.sort == "name":
        order = KeysetOrder(None, (DbRubricResult.name,), of_runs.descending)
        keys: tuple[Any, ...] = (DbRubricResult.id, DbRubricResult.name)
    else:
        value = _ORDERS[query.sort]
        order = KeysetOrder(value, (DbRubricResult.id,), of_runs.descending, nullable=of_runs.nullable)
        keys = (DbRubricResult.id, value)
    rows = select(*keys).where(DbRubricResult.workspace_id == workspace_id)
    rows = rows.where(*rubric_conditions(session, query))
    return KeysetRange(rows, order, place, valueless=query.sort == "pass_rate")


def rubric_conditions(session: Session, query: RunQuery) -> list[ColumnElement[bool]]:
    """Return what a query asks of results; one for a rollout or a commit asks for none."""
    found = asked_of(session, query, DbRubricResult, _SEARCHED)
    return [*found, false()] if query.rollout or query.commit else found


def rubric_count(workspace_id: str, conditions: Sequence[ColumnElement[bool]]) -> Any:
    """Return how many results of a workspace there are, as a part of a statement."""
    mine = select(func.count()).select_from(DbRubricResult).where(DbRubricResult.workspace_id == workspace_id)
    return mine.where(*conditions).scalar_subquery()


def rubric_entries(session: Session, ids: Sequence[str]) -> dict[str, RunEntry]:
    """Return the lines of some results by their ids, each with how those before it came out; in two statements."""
    if not ids:
        return {}
    rows = session.execute(WITH_CREATORS.where(DbRubricResult.id.in_(ids))).all()
    trends = read_trends(session, _last_scores, ids)
    return {
        row.id: rubric_entry(row, name or email, trend=trends.get(row.id, ())) for row, name, email in rows
    }


def rubric_entry(row: DbRubricResult, creator: str | None, *, trend: Sequence[float | None] = ()) -> RunEntry:
    """Return the line of a result."""
    return RunEntry(
        "rubric",
        row.name,
        row.id,
        row.status,
        started_at=row.started_at or row.created_at,
        ended_at=row.started_at,
        model=row.model_path,
        dataset=row.dataset_name,
        person=creator,
        config=row.config,
        headline=Headline.model_validate(row.headline) if row.headline is not None else None,
        reward=row.reward,
        cost_usd=row.cost_usd,
        duration_s=row.duration_ms / 1000 if row.duration_ms is not None else None,
        trend=trend,
    )


def rubric_detail(store: RubricResultStore, found: FoundRubricResult) -> RunDetail:
    """Return the page of a result; of one whose document can not be read it says so.

    Raises:
        BlobStoreError: the store is away, which is not the same as that there is none.
    """
    row, problem = found.row, None
    document: Mapping[str, Any] = {}
    try:
        document = parse_result(store.read(row)).document
    except ConflictError as error:
        problem = error.sentence
    except (ValueError, RecursionError) as error:
        problem = f"The stored document can not be read ({reason_of(error)})."
    known = {"Uploaded": iso(row.created_at), "Uploaded by": found.creator}
    return session_detail(rubric_entry(row, found.creator), document, problem, **known)


@lru_cache
def _last_scores(*, is_sqlite: bool) -> Select[tuple[str, Any]]:
    """Return the statement that lists the scores of up to ten results up to each of ``ids``, the newest first.

    They are those of its rubric and judges, which can be compared with it: they have finished, and something of them is
    scored. It is made once, as that of runs is.
    """
    earlier = aliased(DbRubricResult)
    tells = and_(earlier.status == "finished", earlier.reward.is_not(None))
    scores = (
        select(earlier.reward.label("wanted"))
        .where(
            earlier.workspace_id == DbRubricResult.workspace_id,
            earlier.config == DbRubricResult.config,
            earlier.model_path == DbRubricResult.model_path,
            tuple_(earlier.created_at, earlier.id) <= tuple_(DbRubricResult.created_at, DbRubricResult.id),
            or_(tells, earlier.id == DbRubricResult.id),
        )
        .order_by(earlier.created_at.desc(), earlier.id.desc())
    )
    return numbers_by_id(DbRubricResult, scores, is_sqlite=is_sqlite)
