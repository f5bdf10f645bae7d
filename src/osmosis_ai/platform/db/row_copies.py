"""The platform's rows on their way from one database to another: in order, in pieces, and compared afterwards.

All tables are those of the schema, parents before what refers to them. A row is what the platform reads of it: JSON
as its values, moments in UTC, so that it is the same on either engine. A table's digest is the SHA-256 over its rows
in the order of their primary keys, text by its bytes; one that is equal on both sides holds equal rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    delete,
    func,
    insert,
    inspect,
    literal,
    select,
    text,
    tuple_,
)
from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.orm import Session

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.migrations import newest_revision, unknown_schema
from osmosis_ai.platform.db.move_marks import MARKS_TABLE
from osmosis_ai.platform.db.tables import Base

BATCH_ROWS = 500
# Bytes of a row may be a piece of a journal, of which there is room for few.
_BATCH_ROWS_OF_BYTES = 8
_STEP_TABLE = "alembic_version"

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TableDigest:
    """What a table holds.

    Args:
        rows: how many.
        sha256: over all of them, in hexadecimal.
    """

    rows: int
    sha256: str


def tables() -> Sequence[Table]:
    """Return every table of the schema, parents first."""
    return Base.metadata.sorted_tables


def key_of(table: Table) -> list[Column[Any]]:
    """Return the columns of a table's primary key."""
    return list(table.primary_key)


def batches(session: Session, table: Table, after: Sequence[Any] | None = None) -> Iterator[list[Values]]:
    """Yield the rows whose key comes after ``after`` in this database's own order."""
    key = key_of(table)
    query = select(table).order_by(*key)
    if after is not None:
        last = [literal(value, column.type) for value, column in zip(after, key, strict=True)]
        query = query.where(tuple_(*key) > tuple_(*last))
    for rows in _pieces(session, table, query):
        yield [dict(zip(table.columns.keys(), _settled(row), strict=True)) for row in rows]


def insert_rows(session: Session, table: Table, rows: Sequence[Values]) -> None:
    """Put rows into a table.

    Raises:
        OsmosisError: the database does not take one of them.
    """
    try:
        session.execute(insert(table), rows)
    except (DataError, IntegrityError) as error:
        first, last = (_named(table, row) for row in (rows[0], rows[-1]))
        said = str(error.orig).splitlines()[0] if isinstance(error, DataError) else "a rule of the schema"
        raise OsmosisError(
            f"a row of the table {table.name} between {first} and {last} does not fit into the other database: {said}.",
            code="INTERNAL",
            hint="mend or delete that row on the platform, then run the same command again",
        ) from None


def digest(session: Session, table: Table) -> TableDigest:
    """Return what a table holds."""
    key = [_by_bytes(session, column) for column in key_of(table)]
    hashed, count = hashlib.sha256(), 0
    for rows in _pieces(session, table, select(table).order_by(*key)):
        for row in rows:
            hashed.update(orjson.dumps(_settled(row), default=bytes.hex, option=orjson.OPT_SORT_KEYS))
            hashed.update(b"\n")
        count += len(rows)
    return TableDigest(count, hashed.hexdigest())


def digests(session: Session) -> dict[str, TableDigest]:
    """Return what every table holds, by name."""
    return {table.name: digest(session, table) for table in tables()}


def clear(session: Session) -> None:
    """Remove the rows of all tables."""
    for table in reversed(tables()):
        session.execute(delete(table))


def copy_all(source: Session, target: Session) -> None:
    """Copy every row into empty tables and compare; both sides stand still."""
    for table in tables():
        for rows in batches(source, table):
            insert_rows(target, table, rows)
    set_sequences(target)
    if digests(source) != digests(target):
        raise OsmosisError("the copied rows are not those of the database.", code="INTERNAL")


def set_sequences(session: Session) -> None:
    """Let PostgreSQL number new rows after those that came with their numbers; SQLite does so by itself."""
    if session.get_bind().dialect.name == "sqlite":
        return
    for table in tables():
        column = table.autoincrement_column
        if column is not None:
            last = select(func.max(column)).scalar_subquery()
            sequence = func.pg_get_serial_sequence(table.name, column.name)
            session.execute(select(func.setval(sequence, func.coalesce(last, 1), last.is_not(None))))


def hold_still(session: Session) -> None:
    """Let nobody write to a table until the transaction of ``session`` has ended; on SQLite nobody can, anyway."""
    if session.get_bind().dialect.name != "sqlite":
        names = ", ".join(table.name for table in tables())
        session.execute(text(f"LOCK TABLE {names} IN SHARE MODE"))


def schema_step(database: Database) -> str | None:
    """Return the step of the schema that a database is at; None of one that has none."""
    with database.session() as session:
        if not inspect(session.connection()).has_table(_STEP_TABLE):
            return None
        step: str | None = session.scalar(text(f"SELECT version_num FROM {_STEP_TABLE}"))
        return step


def require_this_schema(database: Database) -> None:
    """Refuse a database whose schema is not that of this release.

    Raises:
        OsmosisError: it has none, or another one.
    """
    step = schema_step(database)
    if step is None:
        raise OsmosisError(f"there is no platform in {database.shown}.", code="NOT_FOUND")
    if step != newest_revision():
        raise unknown_schema(database.shown, step)


def what_is_in(database: Database) -> str | None:
    """Return a table that holds something, or is none of ours; None of a database that is empty."""
    with database.session() as session:
        found = set(inspect(session.connection()).get_table_names()) - {_STEP_TABLE, MARKS_TABLE}
        ours = {table.name: table for table in tables()}
        for name in sorted(found):
            if name not in ours or session.scalar(select(literal(1)).select_from(ours[name]).limit(1)):
                return name
    return None


def _pieces(session: Session, table: Table, query: Select[Any]) -> Iterator[Sequence[Row[Any]]]:
    has_bytes = any(isinstance(column.type, LargeBinary) for column in table.columns)
    size = _BATCH_ROWS_OF_BYTES if has_bytes else BATCH_ROWS
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
    return "/".join(str(row[column.name])[:64] for column in key_of(table))
