"""What all rows share, on either engine: moments in UTC, JSON without its null, names of constraints, writing again."""

from __future__ import annotations

import json
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
    """A moment in UTC on every engine; SQLite alone would forget the zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a naive datetime has no place in the database")
        return value.astimezone(timezone.utc)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value.replace(tzinfo=timezone.utc) if value is not None and value.tzinfo is None else value


# Migrations name what they change, so every constraint needs a name that is the same on every engine.
_NAMES = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=_NAMES)
    # None is NULL, not JSON's null: queries can ask for it.
    type_annotation_map = {
        datetime: UtcDateTime,
        dict[str, Any]: JSON(none_as_null=True),
        list[Any]: JSON(none_as_null=True),
    }


def unstorable(model: type[Base], row: Mapping[str, Any]) -> str | None:
    """Return the first column of ``row`` that an engine would refuse, or keep otherwise than it is; None: it fits."""
    widths = _widths(model)
    return next((name for name, value in row.items() if not _fits(value, widths.get(name))), None)


def is_readable(value: Any) -> bool:
    """Return whether a JSON value can be read back, since one bad value would break lists of rows."""
    try:
        orjson.loads(json.dumps(value, allow_nan=False))
    except ValueError:  # no number of JSON, or one that no reader takes
        return False
    return True


def _fits(value: Any, width: int | None) -> bool:
    if isinstance(value, str):
        return "\0" not in value and (width is None or len(value) <= width)
    return not isinstance(value, int) or width is None or -width <= value < width


@cache
def _widths(model: type[Base]) -> dict[str, int]:
    """Return what columns hold at most: characters, or whole numbers below."""
    widths = {}
    for column in model.__table__.columns:
        if isinstance(column.type, String) and column.type.length is not None:
            widths[column.name] = column.type.length
        elif isinstance(column.type, Integer):
            widths[column.name] = 1 << (63 if isinstance(column.type, BigInteger) else 31)
    return widths


def rows_changed(session: Session, change: Update | Delete) -> int:
    """Make a change, and return how many rows it met."""
    return cast("CursorResult[Any]", session.execute(change)).rowcount


def upsert(session: Session, model: type[Base], rows: Sequence[dict[str, Any]]) -> None:
    """Insert ``rows`` of ``model``, replacing those with the same primary key; all rows have the same keys."""
    if not rows:
        return
    columns = tuple(rows[0])
    if session.get_bind().dialect.name == "sqlite":
        # One row per statement, compiled once: a statement of hundreds of rows is compiled each time, at ten times the cost
        # of executing it.
        session.connection().execute(_upsert_of_each(model, columns), rows)
        return
    key = [column.name for column in model.__table__.primary_key]
    # One statement must not meet a row twice.
    told = list({tuple(row[name] for name in key): row for row in rows}.values())
    session.connection().execute(_upsert_of_all(model, columns), {"rows": orjson.dumps(told).decode()})


@cache
def _upsert_of_each(model: type[Base], columns: tuple[str, ...]) -> Any:
    from sqlalchemy.dialects import sqlite

    table: Any = model.__table__
    return _replacing(sqlite.insert(table), model, columns)


@cache
def _upsert_of_all(model: type[Base], columns: tuple[str, ...]) -> Any:
    """Return a statement that takes all rows at once, as JSON: one value to be bound and sent, however many they are."""
    from sqlalchemy.dialects import postgresql

    table: Any = model.__table__
    typed: list[Any] = [literal_column(f"told.{name}") for name in columns]
    told = text(f"json_populate_recordset(NULL::{table.name}, CAST(:rows AS json)) AS told").bindparams(
        bindparam("rows", type_=Text)
    )
    insert = postgresql.insert(table).from_select(list(columns), select(*typed).select_from(told))
    return _replacing(insert, model, columns)


def _replacing(insert: Any, model: type[Base], columns: tuple[str, ...]) -> Any:
    key = [column.name for column in model.__table__.primary_key]
    changed = {name: insert.excluded[name] for name in columns if name not in key}
    return insert.on_conflict_do_update(index_elements=key, set_=changed)
