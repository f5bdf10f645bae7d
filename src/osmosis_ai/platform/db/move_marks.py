"""Marks of moves in a database: a table beside the schema, there once a move has begun.

No step of the schema knows it, so a move's rows never hold it, and neither does a backup made of rows. While rows
arrive it also says how far each table is, in the transaction that brings them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column, Connection, MetaData, String, Table, Text, delete, insert, inspect, select

from osmosis_ai.platform.move_marks import Direction, Mark, Marks

_TABLE = Table(
    "platform_moves",
    MetaData(),
    Column("name", String(80), primary_key=True),
    Column("value", Text, nullable=False),
)
MARKS_TABLE = _TABLE.name
_ROWS_OF = "rows of "


def read_marks(connection: Connection) -> Marks:
    """Return the marks of the database."""
    notes = _read(connection)
    marks = {name: Mark.from_json(notes[name]) for name in ("arrival", "departure") if name in notes}
    return Marks(marks.get("arrival"), marks.get("departure"))


def write_mark(connection: Connection, direction: Direction, mark: Mark | None) -> None:
    """Replace a mark in the transaction of ``connection``; None removes it."""
    _write(connection, direction, None if mark is None else mark.to_json())


def read_last_keys(connection: Connection) -> dict[str, list[Any]]:
    """Return the key of the last row that has arrived, by table."""
    notes = _read(connection).items()
    return {name[len(_ROWS_OF) :]: json.loads(key) for name, key in notes if name.startswith(_ROWS_OF)}


def write_last_key(connection: Connection, table: str, key: Sequence[Any] | None) -> None:
    """Say how far a table is; None: that it has to be begun anew."""
    _write(connection, f"{_ROWS_OF}{table}", None if key is None else json.dumps(list(key)))


def forget_last_keys(connection: Connection) -> None:
    """Say nothing any more of how far tables are."""
    for table in read_last_keys(connection):
        write_last_key(connection, table, None)


def _read(connection: Connection) -> dict[str, str]:
    if not inspect(connection).has_table(MARKS_TABLE):
        return {}
    return {row.name: row.value for row in connection.execute(select(_TABLE))}


def _write(connection: Connection, name: str, value: str | None) -> None:
    _TABLE.create(connection, checkfirst=True)
    connection.execute(delete(_TABLE).where(_TABLE.c.name == name))
    if value is not None:
        connection.execute(insert(_TABLE).values(name=name, value=value))
