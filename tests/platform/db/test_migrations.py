"""A database that an earlier release wrote keeps its rows on the way to this release."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import alembic.command
import pytest
import sqlalchemy as sa
from alembic.script import ScriptDirectory

from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.migrations import alembic_config, newest_step
from osmosis_ai.platform.db.tables import Base
from tests.platform.databases import postgres_database

ROWS = 3
MOMENT = datetime(2026, 3, 29, 1, 30, 15, 250_000, tzinfo=timezone.utc)
Rows = dict[str, list[Mapping[str, Any]]]


def revisions() -> list[str]:
    """Every step, the first one first."""
    with sa.create_engine("sqlite://").connect() as connection:
        steps = ScriptDirectory.from_config(alembic_config(connection)).walk_revisions()
        return [step.revision for step in steps][::-1]


@contextmanager
def database(kind: str, directory: Path) -> Iterator[str]:
    """Give the URL of an empty database."""
    if kind == "sqlite":
        yield f"sqlite:///{directory / 'platform.db'}"
        return
    with postgres_database() as url:
        yield url.replace("postgresql:", "postgresql+psycopg:")


def value(column: sa.Column[Any], row: int) -> Any:
    """Return what the ``row``-th row holds in a column: nothing in the last row, wherever that may be."""
    if column.nullable and row == ROWS - 1:
        return None
    for key in column.foreign_keys:
        return value(key.column, row)
    kind = column.type.impl if isinstance(column.type, sa.TypeDecorator) else column.type
    if isinstance(kind, sa.JSON):
        return {"row": row, "text": "grüezi"}
    if isinstance(kind, sa.Boolean):
        return bool(row % 2)
    if isinstance(kind, sa.DateTime):
        return MOMENT
    if isinstance(kind, sa.Integer):
        return row
    if isinstance(kind, (sa.Numeric, sa.Float)):
        return row + 0.5
    text = f"{row} {column.table.name} {column.name}"[: getattr(kind, "length", None)]
    return text.encode() if isinstance(kind, sa.LargeBinary) else text


def rows_of(connection: sa.Connection) -> Rows:
    """Return all that the database holds, table by table."""
    found = sa.MetaData()
    found.reflect(connection)
    return rows_in(found.sorted_tables, connection)


def rows_in(tables: Iterable[sa.Table], connection: sa.Connection) -> Rows:
    return {
        table.name: [
            dict(row) for row in connection.execute(sa.select(table).order_by(*table.primary_key)).mappings()
        ]
        for table in tables
    }


def fill(connection: sa.Connection) -> Rows:
    """Put rows into every table there is; gives what it then holds."""
    found = sa.MetaData()
    found.reflect(connection)
    for table in found.sorted_tables:
        if table.name != "alembic_version":
            rows = [{column.name: value(column, row) for column in table.columns} for row in range(ROWS)]
            connection.execute(table.insert(), rows)
    return rows_in(found.sorted_tables, connection)


EVERY_PUSH = [("sqlite", revisions()[0]), ("sqlite", revisions()[-1]), ("postgresql", revisions()[0])]


def test_the_newest_step_is_told_by_its_files_name() -> None:
    assert newest_step() == revisions()[-1]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("kind", "revision"),
    [
        pytest.param(kind, revision, marks=[pytest.mark.nightly] * ((kind, revision) not in EVERY_PUSH))
        for kind in ("sqlite", "postgresql")
        for revision in revisions()
    ],
)
def test_a_database_of_each_release_keeps_its_rows(kind: str, revision: str, tmp_path: Path) -> None:
    with database(kind, tmp_path) as url:
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        with engine.begin() as connection:
            alembic.command.upgrade(alembic_config(connection), revision)
            before = fill(connection)
        assert all(len(rows) == ROWS for name, rows in before.items() if name != "alembic_version")
        db = Database(url)
        db.migrate()
        with engine.connect() as connection:
            after = rows_of(connection)
            if kind == "sqlite":
                assert connection.execute(sa.text("PRAGMA foreign_key_check")).all() == []
                assert connection.execute(sa.text("PRAGMA integrity_check")).scalar() == "ok"
        assert after.pop("alembic_version") == [{"version_num": revisions()[-1]}]
        for table, rows in before.items():
            if table not in ("alembic_version", "rubric_results"):  # this table is dropped
                kept = [
                    {name: new[name] for name in old} for old, new in zip(rows, after[table], strict=True)
                ]
                assert kept == rows, table
        # Steps that make rows of others: a repository was known by what it is called alone.
        if revision < "0003":
            assert [row["identity"] for row in after["repository_identities"]] == [
                row["identity"] for row in before["repositories"]
            ]
        with db.session() as session:
            for mapper in Base.registry.mappers:
                session.scalars(sa.select(mapper.class_)).all()
        db.dispose()
