"""The platform's database: revisions, transactions, locks, indexes, a full disk."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.db import engine
from osmosis_ai.platform.db.engine import Database, DatabaseBusyError, StorageFullError, opened_database
from osmosis_ai.platform.db.migrations import newest_revision
from osmosis_ai.platform.db.tables import Base, DbLogLine, DbSample, DbWorkspace, new_id
from tests.full_disk import files_of_at_most
from tests.platform.databases import postgres_database


def workspace(name: str) -> DbWorkspace:
    return DbWorkspace(id=new_id("wsp"), name=name, created_at=SystemClock().now())


def names(db: Database) -> list[str]:
    with db.session() as session:
        return list(session.scalars(select(DbWorkspace.name).order_by(DbWorkspace.name)))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'platform.db'}"


@pytest.fixture
def db(url: str) -> Database:
    opened = Database(url)
    opened.migrate()
    return opened


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.integration)])
def any_url(request: pytest.FixtureRequest, url: str) -> Iterator[str]:
    """Every engine that a platform runs on."""
    if request.param == "sqlite":
        yield url
        return
    with postgres_database() as postgres_url:
        yield postgres_url


@pytest.fixture
def any_db(any_url: str) -> Iterator[Database]:
    with opened_database(any_url) as opened:
        opened.migrate()
        yield opened


@pytest.mark.integration
def test_the_revisions_create_what_the_models_declare(any_db: Database, any_url: str) -> None:
    with create_engine(any_url.replace("postgresql:", "postgresql+psycopg:")).connect() as connection:
        options = {"compare_type": True, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, Base.metadata) == []
        assert context.get_current_revision() == newest_revision()


@pytest.mark.e2e
def test_several_processes_migrate_an_empty_database_at_once(any_url: str) -> None:
    program = f"from osmosis_ai.platform.db.engine import Database; Database({any_url!r}).migrate()"
    started = [
        subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) for _ in range(3)
    ]
    outcomes = [(process.communicate(timeout=300)[1], process.returncode) for process in started]
    assert [status for _, status in outcomes] == [0, 0, 0], outcomes
    with opened_database(any_url) as db:
        with db.transaction() as session:
            session.add(workspace("fern"))
        assert names(db) == ["fern"]


@pytest.mark.parametrize("revision", ["0001", "0024", "9999"])
def test_a_database_of_another_release_is_refused(any_db: Database, revision: str) -> None:
    with any_db.transaction() as session:
        session.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})
    with pytest.raises(OsmosisError, match=f"is unknown: revision {revision} ") as caught:
        any_db.migrate()
    assert caught.value.hint == "use the release of Osmosis that wrote it, or start with an empty database"


def test_a_read_cannot_write(any_db: Database) -> None:
    with pytest.raises(DBAPIError, match=r"read-?only"), any_db.session() as session:
        session.execute(text("DELETE FROM workspaces"))
    with any_db.transaction() as session:
        session.add(workspace("fern"))


HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
connection.execute("COMMIT")
"""


@pytest.mark.integration
def test_a_lock_held_by_another_process_delays_a_write_for_a_while_and_no_read(db: Database) -> None:
    def write(wait_s: float) -> None:
        with db.transaction(wait_s=wait_s) as session:
            session.add(workspace("fern"))

    command = [sys.executable, "-c", HOLDER, str(db.sqlite_path)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder,
        ThreadPoolExecutor(1) as pool,
    ):
        assert holder.stdin is not None and holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DatabaseBusyError, match="busy"):
            write(0.05)
        writing = pool.submit(write, 60)
        assert names(db) == []
        with pytest.raises(TimeoutError):
            writing.result(0.2)
        holder.communicate("go\n")
        writing.result(60)
    assert names(db) == ["fern"]


def test_a_full_disk_leaves_nothing_half_written(db: Database) -> None:
    assert db.sqlite_path is not None
    with db.transaction() as session:
        session.add(workspace("fern"))
    db.dispose()
    now = SystemClock().now()

    def fill() -> None:
        with db.transaction() as session:
            session.add(workspace("moss"))
            session.flush()
            for number in range(200):
                line = f"{number}" * 4000
                session.add(DbLogLine(subject_id="run_1", timestamp=now, level="info", step="", message=line))

    with (
        files_of_at_most(db.sqlite_path.stat().st_size + 65_536),
        pytest.raises(StorageFullError, match="disk is full"),
    ):
        fill()
    assert names(db) == ["fern"]
    with db.transaction() as session:
        session.add(workspace("moss"))
    with sqlite3.connect(db.sqlite_path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_what_rows_hold_is_not_in_the_text_of_an_error(any_db: Database) -> None:
    with any_db.transaction() as session:
        session.add(workspace("fern"))
    with pytest.raises(IntegrityError) as caught, any_db.transaction() as session:
        session.add(DbWorkspace(id="canary-4711", name="fern", created_at=SystemClock().now()))
    assert "canary-4711" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "says", "hint"),
    [
        ("mysql://root:hunter2@host/db", "not on 'mysql'", "write it as sqlite:////"),
        ("no url: hunter2", "is not a database URL", "write it as sqlite:////"),
        (
            "postgres://u:hunter2@host/db",
            "not on 'postgres'",
            "a URL of PostgreSQL begins with postgresql://",
        ),
    ],
)
def test_a_url_of_another_database_is_refused_without_its_password(url: str, says: str, hint: str) -> None:
    with pytest.raises(OsmosisError, match=says) as caught:
        Database(url)
    assert (caught.value.hint or "").startswith(hint)
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize("column", ["reward", "duration_ms", "tokens", "cost_usd"])
@pytest.mark.parametrize("missing", [False, True])
def test_samples_in_each_order_are_read_from_an_index(db: Database, column: str, missing: bool) -> None:
    value = getattr(DbSample, column)
    order = (value, DbSample.row_index, DbSample.run_index)
    asked = (
        select(DbSample.row_index)
        .where(DbSample.run_id == "r", value.is_(None) if missing else value > 0.5)
        .order_by(*(each.desc() for each in order))
    )
    with db.session() as session:
        literal = asked.compile(session.get_bind(), compile_kwargs={"literal_binds": True})
        steps = [step[-1] for step in session.execute(text(f"EXPLAIN QUERY PLAN {literal}"))]
    assert any("ix_samples_run_" in step for step in steps)
    assert not any("TEMP B-TREE" in step for step in steps)


def test_who_gets_no_connection_because_all_are_in_use_is_told_so(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("_POOL_SIZE", 1), ("_POOL_OVERFLOW", 0), ("BUSY_TIMEOUT_S", 0.01)):
        monkeypatch.setattr(engine, name, value)
    with opened_database(url) as db:
        with db.session() as held:
            held.execute(text("SELECT 1"))
            with (
                pytest.raises(DatabaseBusyError, match="1 connections to its database are all in use"),
                db.session() as more,
            ):
                more.execute(text("SELECT 1"))
        with db.session() as session:
            assert session.scalar(text("SELECT 1")) == 1
