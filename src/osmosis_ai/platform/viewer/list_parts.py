"""What lists of runs and of uploaded results of judges have in common: what is asked of their columns, and trends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Select, bindparam, func, or_, select
from sqlalchemy.orm import Session

from osmosis_ai.platform.db.tables import DbUser
from osmosis_ai.platform.db.text_search import one_holds
from osmosis_ai.viewer.source import RunQuery

TREND = 10
"""The most numbers of a trend, the line's own included."""


def asked_of(
    session: Session, query: RunQuery, table: Any, searched: Sequence[Any]
) -> list[ColumnElement[bool]]:
    """Return what a query asks of the columns that both tables have.

    Args:
        session: of the database.
        query: which lines are asked for.
        table: the table, or an alias of it.
        searched: the columns in which the query's text is looked for.
    """
    equal = {
        table.status: query.status,
        table.model_path: query.model,
        table.dataset_name: query.dataset,
    }
    found: list[ColumnElement[bool]] = [column == value for column, value in equal.items() if value]
    if query.person:
        people = select(DbUser.id).where(or_(DbUser.name == query.person, DbUser.email == query.person))
        found.append(table.creator_id.in_(people))
    if query.since is not None:
        found.append(table.created_at >= query.since)
    if query.until is not None:
        found.append(table.created_at <= query.until)
    if query.text:
        found.append(one_holds(session, searched, query.text))
    return found


def numbers_by_id(table: Any, newest_first: Select[Any], *, is_sqlite: bool) -> Select[tuple[str, Any]]:
    """Return the statement that lists the numbers of a trend of each of ``ids``, the newest first.

    Args:
        table: the table.
        newest_first: the column ``wanted`` of the rows of the trend of a row of ``table``.
        is_sqlite: whether it is for SQLite.
    """
    last = newest_first.limit(TREND).correlate(table).subquery()
    listed = (func.json_group_array if is_sqlite else func.json_agg)(last.c.wanted)
    numbers = select(listed).correlate(table).scalar_subquery()
    return select(table.id, numbers).where(table.id.in_(bindparam("ids", expanding=True)))


def read_trends(
    session: Session, statement: Callable[..., Select[tuple[str, Any]]], ids: Sequence[str]
) -> dict[str, tuple[float | None, ...]]:
    """Return the trend of each row, the oldest number first, in one statement.

    Args:
        session: of the database.
        statement: makes the one of :func:`numbers_by_id`; takes ``is_sqlite``.
        ids: of the rows.
    """
    is_sqlite = session.get_bind().dialect.name == "sqlite"
    found = session.execute(statement(is_sqlite=is_sqlite), {"ids": list(ids)})
    # The one gives text, the other what it says.
    lists = ((id, orjson.loads(told) if is_sqlite else told) for id, told in found)
    return {id: tuple(reversed(numbers or ())) for id, numbers in lists}
