"""Rows that move from one database to another: every table, every value, wherever it is interrupted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.platform.db import row_copies
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.row_copies import digests, insert_rows, tables
from osmosis_ai.platform.db.tables import DbLogLine, DbUser, DbWorkspace
from osmosis_ai.platform.moving.database_move import DatabaseMove
from osmosis_ai.platform.moving.sides import Stage
from tests.platform.databases import postgres_database, put_migrated_database

pytestmark = [pytest.mark.integration, pytest.mark.nightly]

ROWS = 3
MOMENT = datetime(2026, 3, 29, 1, 30, 15, 250_000, tzinfo=timezone.utc)


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


class Ended(BaseException):
    """Stands for `kill -9`: nothing catches it."""


class Shown:
    """Shows nothing, and ends the move after so many pieces."""

    def __init__(self, ends_after: int | None = None) -> None:
        self.left = ends_after

    @contextmanager
    def __call__(self, description: str, *, total: float | None, unit: str) -> Iterator[Shown]:
        yield self

    def update(self, completed: float) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Ended


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Database]:
    """A platform's database with rows in every table, texts in it that are sorted otherwise by people than by bytes."""
    put_migrated_database(tmp_path / "platform")
    database = Database(f"sqlite:///{tmp_path}/platform/platform.db")
    with database.transaction() as session:
        for table in tables():
            insert_rows(
                session,
                table,
                [{column.name: value(column, row) for column in table.columns} for row in range(ROWS)],
            )
        for name in ("Zebra", "äpfel", "apple", "_x", "a-b", "aB", "a b"):
            session.add(
                DbWorkspace(id=f"ws_{name}", name=name, created_at=value(DbUser.__table__.c.created_at, 0))
            )
    yield database
    database.dispose()


@pytest.fixture
def target() -> Iterator[Database]:
    with postgres_database() as url:
        database = Database(url)
        yield database
        database.dispose()


def move(source: Database, target: Database, *, ends_after: int | None = None) -> DatabaseMove:
    """Move, up to where it ends."""
    going = DatabaseMove(source, target)
    going.prepare()
    going.begin()
    if going.stage in (Stage.NEW, Stage.REPLACES, Stage.BEGUN):
        going.copy(Shown(ends_after))
        going.depart()
    going.arrive()
    return going


def all_rows(database: Database) -> dict[str, list[sa.Row]]:
    with database.session() as session:
        return {table.name: sorted(session.execute(sa.select(table)).all(), key=repr) for table in tables()}


def test_every_row_of_every_table_arrives_and_goes_back(
    source: Database, target: Database, tmp_path: Path
) -> None:
    before = all_rows(source)
    assert all(len(rows) >= ROWS for rows in before.values())
    assert set(before) == set(sa.inspect(source._engine).get_table_names()) - {"alembic_version"}
    move(source, target)
    assert all_rows(target) == before
    with pytest.raises(ConflictError, match=r"moved to postgresql://postgres@"):
        source.migrate()
    target.migrate()
    # New rows are numbered behind those that came.
    with target.transaction() as session:
        line = DbLogLine(
            subject_id="x", timestamp=before["users"][0].created_at, level="info", step="s", message="m"
        )
        session.add(line)
        session.flush()
        assert line.id == ROWS

    back = DatabaseMove(target, source)
    back.prepare()
    assert back.stage is Stage.REPLACES
    move(target, source)
    assert all_rows(source) == all_rows(target)
    source.migrate()
    with pytest.raises(ConflictError, match=r"moved to sqlite://"):
        target.migrate()


def test_wherever_it_is_killed_the_same_move_goes_on(
    source: Database, target: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_copies, "BATCH_ROWS", 2)
    before, kills = all_rows(source), 0
    for updates in itertools.count():
        try:
            move(source, target, ends_after=updates)
            break
        except Ended:
            kills += 1
            with pytest.raises(ConflictError, match="is not finished"):
                target.migrate()
            source.migrate()  # nothing has been handed over yet
    assert kills > 10 and all_rows(target) == before


@pytest.mark.parametrize("step", ["depart", "arrive"])
def test_a_platform_starts_on_one_side_at_most(
    step: str, source: Database, target: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise Ended

    with monkeypatch.context() as patch:
        patch.setattr(DatabaseMove, step, killed)
        with pytest.raises(Ended):
            move(source, target)
    refused = 0
    for database in (source, target):
        try:
            database.migrate()
        except ConflictError:
            refused += 1
    assert refused == (1 if step == "depart" else 2)
    assert move(source, target).stage is (Stage.BEGUN if step == "depart" else Stage.DEPARTED)
    target.migrate()
    assert move(source, target).stage is Stage.DONE


def test_what_was_worked_on_in_between_is_copied_anew(source: Database, target: Database) -> None:
    with pytest.raises(Ended):
        move(source, target, ends_after=len(tables()))
    with source.transaction() as session:
        session.execute(sa.delete(DbUser).where(DbUser.id == value(DbUser.__table__.c.id, 0)))
        session.execute(sa.update(DbWorkspace).where(DbWorkspace.name == "apple").values(name="pear"))
    move(source, target)
    assert all_rows(target) == all_rows(source)


def test_text_with_a_nul_arrives_without_it(source: Database, target: Database) -> None:
    with source.transaction() as session:
        session.execute(sa.update(DbWorkspace).where(DbWorkspace.name == "apple").values(name="ap\0ple"))
    move(source, target)
    with target.session() as session:
        assert "ap\ufffdple" in session.scalars(sa.select(DbWorkspace.name)).all()


def test_a_row_that_does_not_fit_is_named(source: Database, target: Database) -> None:
    with source.transaction() as session:
        session.execute(sa.update(DbWorkspace).where(DbWorkspace.name == "apple").values(name="canary" * 100))
    with pytest.raises(
        OsmosisError, match=r"a row of the table workspaces between .* value too long"
    ) as refused:
        move(source, target)
    assert "canary" not in refused.value.message
    with source.transaction() as session:
        session.execute(sa.update(DbWorkspace).where(DbWorkspace.id == "ws_apple").values(name="short"))
    move(source, target)
    assert all_rows(target) == all_rows(source)


def test_a_database_that_holds_something_is_not_taken(
    source: Database, target: Database, tmp_path: Path
) -> None:
    with target.transaction() as session:
        session.execute(sa.text("CREATE TABLE theirs (id int)"))
    with pytest.raises(ConflictError, match="is not empty: it holds the table theirs"):
        move(source, target)
    with target.transaction() as session:
        session.execute(sa.text("DROP TABLE theirs"))
    # Another platform's move into it, which was cut off.
    put_migrated_database(tmp_path / "other")
    other = Database(f"sqlite:///{tmp_path}/other/platform.db")
    with pytest.raises(Ended):
        move(other, target, ends_after=2)
    with pytest.raises(ConflictError, match="holds another move, from sqlite"):
        move(source, target)
    move(other, target)
    with pytest.raises(ConflictError, match="holds another move, from sqlite"):
        move(source, target)
    with pytest.raises(ConflictError, match=r"moved to postgresql://"):
        move(other, source)
    other.dispose()


def test_the_same_database_under_another_name_is_seen(target: Database) -> None:
    target.bring_up_to_date()
    with target.session() as session:
        held = digests(session)
    url = target._url.render_as_string(hide_password=False)
    with ExitStack() as stack:
        same = Database(f"{url}&application_name=other")
        stack.callback(same.dispose)
        with pytest.raises(ConflictError, match="already"):
            move(target, same)
    with target.session() as session:
        assert digests(session) == held


@pytest.mark.parametrize("step", ["0001", "9999"])
def test_a_schema_of_another_release_is_refused(step: str, source: Database, target: Database) -> None:
    def set_step(session: Session) -> None:
        session.execute(sa.text("UPDATE alembic_version SET version_num = :step"), {"step": step})

    with source.transaction() as session:
        set_step(session)
    with pytest.raises(OsmosisError, match=f"unknown: revision {step}"):
        move(source, target)


def test_a_server_that_is_gone_or_full_is_a_sentence_and_the_move_goes_on(
    source: Database, target: Database
) -> None:
    with pytest.raises(Ended):
        move(source, target, ends_after=5)
    url = target._url.set(password="canary-4711")
    gone = Database(url.set(port=1, host="127.0.0.1", query={}).render_as_string(hide_password=False))
    with pytest.raises(
        OsmosisError, match=r"postgresql://postgres@127.0.0.1:1/\w+ does not answer"
    ) as refused:
        move(source, gone)
    assert "canary" not in f"{refused.value.message} {refused.value.hint} {gone!r}"
    with target._engine.connect() as connection:
        connection.execute(sa.text(f"ALTER DATABASE {target._url.database} CONNECTION LIMIT 1"))
        connection.execute(sa.text("CREATE ROLE visitor LOGIN"))
        connection.execute(sa.text(f"GRANT ALL ON DATABASE {target._url.database} TO visitor"))
        connection.commit()
        visitor = Database(target._url.set(username="visitor").render_as_string(hide_password=False))
        with pytest.raises(OsmosisError, match="has no connection left"):
            move(source, visitor)
        connection.execute(sa.text(f"ALTER DATABASE {target._url.database} CONNECTION LIMIT -1"))
        connection.execute(sa.text(f"REVOKE ALL ON DATABASE {target._url.database} FROM visitor"))
        connection.execute(sa.text("DROP ROLE visitor"))
        connection.commit()
    move(source, target)
    assert all_rows(target) == all_rows(source)
