"""Copy a platform's rows between databases and compare them.

Tables are those of the schema, parents first. A row is compared as read: JSON as values, times in UTC, so that both
engines agree. A table's digest is the SHA-256 over its rows in primary key order, with text compared by bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
from sqlalchemy import (
    Column,
    ColumnElement,
    LargeBinary,
    Row,
    Select,
    String,
    Table,
    collate,
    func,
    insert,
    inspect,
    literal,
    select,
    text,
)
from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.orm import Session

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.migrations import newest_revision, unknown_schema
from osmosis_ai.platform.db.tables import Base

_BATCH_ROWS = 500
# Bytes of a row may be a piece of a journal, and few of those fit into memory.
_BATCH_ROWS_OF_BYTES = 8
_STEP_TABLE = "alembic_version"


def copy_all(source: Session, target: Session) -> None:
    """Copy every row into empty tables and compare; nothing else may write to either side."""
    for table in _tables():
        for rows in _pieces(source, table, select(table)):
            values = [dict(zip(table.columns.keys(), _settled(row), strict=True)) for row in rows]
            _insert(target, table, values)
    _set_sequences(target)
    if digests(source) != digests(target):
        raise OsmosisError("the copied rows are not those of the database.", code="INTERNAL")


def digests(session: Session) -> dict[str, tuple[int, str]]:
    """Return the number and the digest of the rows of every table, by its name."""
    return {table.name: _digest(session, table) for table in _tables()}


def schema_step(database: Database) -> str | None:
    """Return the step of the schema that a database is at; None if it has no schema."""
    with database.session() as session:
        if not inspect(session.connection()).has_table(_STEP_TABLE):
            return None
        step: str | None = session.scalar(text(f"SELECT version_num FROM {_STEP_TABLE}"))
        return step


def require_this_schema(database: Database) -> None:
    """Refuse a database whose schema is not that of this release."""
    step = schema_step(database)
    if step is None:
        raise OsmosisError(f"there is no platform in {database.shown}.", code="NOT_FOUND")
    if step != newest_revision():
        raise unknown_schema(database.shown, step)


def what_is_in(session: Session) -> str | None:
    """Return a table that holds a row, or is not one of the platform's; None if the database is empty."""
    found = set(inspect(session.connection()).get_table_names()) - {_STEP_TABLE}
    ours = {table.name: table for table in _tables()}
    for name in sorted(found):
        if name not in ours or session.scalar(select(literal(1)).select_from(ours[name]).limit(1)):
            return name
    return None


def _tables() -> Sequence[Table]:
    """Return every table of the schema, parents first."""
    return Base.metadata.sorted_tables


def _insert(session: Session, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    try:
        session.execute(insert(table), rows)
    except (DataError, IntegrityError) as error:
        first, last = (_named(table, row) for row in (rows[0], rows[-1]))
        said = str(error.orig).splitlines()[0] if isinstance(error, DataError) else "it violates the schema"
        raise OsmosisError(
            f"a row of table '{table.name}' between {first} and {last} cannot be stored: {said}.",
            code="INTERNAL",
            hint="correct or delete that row on the platform, then make another backup",
        ) from None


def _digest(session: Session, table: Table) -> tuple[int, str]:
    key = [_by_bytes(session, column) for column in table.primary_key]
    hashed, count = hashlib.sha256(), 0
    for rows in _pieces(session, table, select(table).order_by(*key)):
        for row in rows:
            hashed.update(orjson.dumps(_settled(row), default=bytes.hex, option=orjson.OPT_SORT_KEYS))
            hashed.update(b"\n")
        count += len(rows)
    return count, hashed.hexdigest()


def _set_sequences(session: Session) -> None:
    """Let PostgreSQL number new rows after those that came with their numbers; SQLite does so by itself."""
    if session.get_bind().dialect.name == "sqlite":
        return
    for table in _tables():
        column = table.autoincrement_column
        if column is not None:
            last = select(func.max(column)).scalar_subquery()
            sequence = func.pg_get_serial_sequence(table.name, column.name)
            session.execute(select(func.setval(sequence, func.coalesce(last, 1), last.is_not(None))))


def _pieces(session: Session, table: Table, query: Select[Any]) -> Iterator[Sequence[Row[Any]]]:
    has_bytes = any(isinstance(column.type, LargeBinary) for column in table.columns)
    size = _BATCH_ROWS_OF_BYTES if has_bytes else _BATCH_ROWS
    found = session.execute(query, execution_options={"stream_results": True, "yield_per": size})
    yield from found.partitions()


def _settled(row: Row[Any]) -> list[Any]:
    """Return a row as both engines can hold it: PostgreSQL has no text with the character NUL."""
    return [value.replace("\0", "\ufffd") if isinstance(value, str) else value for value in row]


def _by_bytes(session: Session, column: Column[Any]) -> ColumnElement[Any]:
    """Return what orders text by its bytes, as SQLite does, whatever the language of the database."""
    is_text = isinstance(column.type, String) and session.get_bind().dialect.name != "sqlite"
    return collate(column, "C") if is_text else column


def _named(table: Table, row: Mapping[str, Any]) -> str:
    return "/".join(str(row[column.name])[:64] for column in table.primary_key)
