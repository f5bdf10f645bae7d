"""Shared parts of all tables on both engines: times in UTC, JSON without null, constraint names, upserts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import cache
from typing import Any, cast

import orjson
from sqlalchemy import (
    JSON,
    BigInteger,
    CursorResult,
    DateTime,
    Delete,
    Integer,
    MetaData,
    String,
    Text,
    TypeDecorator,
    Update,
    bindparam,
    literal_column,
    select,
    text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Session


class UtcDateTime(TypeDecorator[datetime]):
    """A time in UTC on every engine; SQLite alone would forget the zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("the database stores no naive datetimes")
        return value.astimezone(timezone.utc)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value.replace(tzinfo=timezone.utc) if value is not None and value.tzinfo is None else value


# Migrations refer to constraints by name, so each needs the same name on every engine.
_NAMES = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=_NAMES)
    # None is NULL and not JSON's null, so that queries can test for it.
    type_annotation_map = {
        datetime: UtcDateTime,
        dict[str, Any]: JSON(none_as_null=True),
        list[Any]: JSON(none_as_null=True),
    }


def unstorable(model: type[Base], row: Mapping[str, Any]) -> str | None:
    """Return the first column of ``row`` that an engine would refuse or alter, None if there is none."""
    widths = _widths(model)
    return next((name for name, value in row.items() if not _fits(value, widths.get(name))), None)


def _fits(value: Any, width: int | None) -> bool:
    if isinstance(value, str):
        return "\0" not in value and (width is None or len(value) <= width)
    return not isinstance(value, int) or width is None or -width <= value < width


@cache
def _widths(model: type[Base]) -> dict[str, int]:
    """Return the limits of columns: characters, or the bound of whole numbers."""
    widths = {}
    for column in model.__table__.columns:
        if isinstance(column.type, String) and column.type.length is not None:
            widths[column.name] = column.type.length
        elif isinstance(column.type, Integer):
            widths[column.name] = 1 << (63 if isinstance(column.type, BigInteger) else 31)
    return widths


def rows_changed(session: Session, change: Update | Delete) -> int:
    """Make a change, and return the number of rows that it matched."""
    return cast("CursorResult[Any]", session.execute(change)).rowcount


def upsert(
    session: Session, model: type[Base], rows: Sequence[dict[str, Any]], *, unless: str | None = None
) -> bool:
    """Insert ``rows`` of ``model``, replacing those with the same primary key; all rows have the same keys.

    Rows that have a value in the column ``unless`` are kept. Returns whether all the new ones were written.
    """
    if not rows:
        return True
    is_sqlite = session.get_bind().dialect.name == "sqlite"
    statement = _upsert_statement(model, tuple(rows[0]), is_sqlite, unless)
    if is_sqlite:
        # One row per statement, compiled once: compiling a statement of hundreds of rows costs ten times its execution.
        return session.connection().execute(statement, rows).rowcount == len(rows)
    key = [column.name for column in model.__table__.primary_key]
    # One statement must not change a row twice.
    unique = list({tuple(row[name] for name in key): row for row in rows}.values())
    given = {"rows": orjson.dumps(unique).decode()}
    return session.connection().execute(statement, given).rowcount == len(unique)


@cache
def _upsert_statement(
    model: type[Base], columns: tuple[str, ...], is_sqlite: bool, unless: str | None
) -> Any:
    """Return a statement that takes one row, or on PostgreSQL all rows as JSON, which is one value to bind and send."""
    from sqlalchemy.dialects import postgresql, sqlite

    table: Any = model.__table__
    insert: Any = sqlite.insert(table)
    if not is_sqlite:
        typed: list[Any] = [literal_column(f"given.{name}") for name in columns]
        source = f"json_populate_recordset(NULL::{table.name}, CAST(:rows AS json)) AS given"
        given = select(*typed).select_from(text(source).bindparams(bindparam("rows", type_=Text)))
        insert = postgresql.insert(table).from_select(list(columns), given)
    key = [column.name for column in table.primary_key]
    changed = {name: insert.excluded[name] for name in columns if name not in key}
    where = None if unless is None else table.c[unless].is_(None)
    changing = insert.on_conflict_do_update(index_elements=key, set_=changed, where=where)
    return changing.execution_options(preserve_rowcount=True)
