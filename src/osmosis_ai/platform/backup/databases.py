"""Database copy of a backup: one SQLite file with the rows of either engine, to restore to either engine.

Tables are those of the schema, parents first. A row is compared as read: JSON as values, times in UTC, so that both
engines agree. A table's digest is the SHA-256 over its rows in primary key order, with text compared by bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import (
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
)
from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.orm import Session

from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.platform.backup.archive import DATABASE, OBJECTS, damaged
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.engine import Database, opened_database
from osmosis_ai.platform.db.migrations import current_revision, newest_revision, revisions, unknown_schema
from osmosis_ai.platform.db.tables import Base
from osmosis_ai.platform.process_state import require_same_database

_NEW_DATABASE = "name a new database in OSMOSIS_DATABASE_URL or --database-file"
_BATCH_ROWS = 500
# Rows with bytes may be large pieces of a journal.
_BATCH_ROWS_OF_BYTES = 8
_TABLES: Sequence[Table] = Base.metadata.sorted_tables


def sqlite_file(config: PlatformConfig) -> Path | None:
    """Return the path of the platform's database; None if it is on a server."""
    path = Database(config.database_url).sqlite_path
    return None if path is None else path.absolute().parent.resolve() / path.name


def require_platform(config: PlatformConfig) -> None:
    """Refuse to back up a database without a platform."""
    path = sqlite_file(config)
    config.require_restored()
    if config.home.is_dir():
        require_same_database(config.home, Database(config.database_url).shown)
    if not config.home.is_dir() or (path is not None and not path.is_file()):
        raise NotFoundError(
            f"there is no platform in {config.home}.", hint="set OSMOSIS_HOME to its directory"
        )
    if path is None:
        with opened_database(config.database_url) as database:
            revision = _revision(database)
            if revision is None:
                raise NotFoundError(f"there is no platform in {database.shown}.")
            if revision != newest_revision():
                raise unknown_schema(database.shown, revision)


def copy_database(config: PlatformConfig, target: Path) -> None:
    """Copy a database that may be written to meanwhile, and check the copy."""
    path = sqlite_file(config)
    if path is None:
        with opened_database(config.database_url) as database, opened_database(f"sqlite:///{target}") as copy:
            copy.migrate()
            with database.session() as rows, copy.transaction() as arriving:
                _copy_all(rows, arriving)
        target.with_name(f"{target.name}.lock").unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(target)) as copied:
        if path is not None:
            with contextlib.closing(sqlite3.connect(path, timeout=30)) as live:
                # In one step, which reads a snapshot and is not restarted by writers.
                live.backup(copied, pages=-1)
        # One file, without a log next to it.
        copied.execute("PRAGMA journal_mode=DELETE")
    target.chmod(0o600)
    check_database(target)


def check_database(path: Path) -> None:
    try:
        if not path.is_file():
            raise damaged("it holds no database")
        with contextlib.closing(sqlite3.connect(path)) as connection:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        verdict = str(error)
    if verdict != "ok":
        raise OsmosisError(
            f"the database is damaged: {verdict}.", code="INTERNAL", hint="restore an earlier backup"
        )


def missing_blobs(home: Path) -> int:
    """Count the missing files among those that any table of an unpacked backup refers to."""
    with contextlib.closing(sqlite3.connect(home / DATABASE)) as connection:
        tables = connection.execute(
            "SELECT t.name FROM sqlite_master t, pragma_table_info(t.name) c "
            "WHERE t.type = 'table' AND c.name = 'blob_key'"
        ).fetchall()
        return sum(
            not (home / OBJECTS / key).is_file()
            for (table,) in tables
            for (key,) in connection.execute(f'SELECT blob_key FROM "{table}" WHERE blob_key IS NOT NULL')
        )


def require_known_schema(path: Path) -> None:
    """Refuse the database of a backup that a release with another schema wrote."""
    with opened_database(f"sqlite:///{path}") as database:
        revision = _revision(database)
    if revision is None:
        raise damaged("its database has no schema")
    if revision not in revisions():
        raise unknown_schema("the backup", revision)


def require_empty(config: PlatformConfig) -> None:
    """Refuse to restore into a database that holds something."""
    path = sqlite_file(config)
    if path is None:
        with opened_database(config.database_url) as database, database.session() as session:
            _require_no_rows(database, session)
    elif path.exists():
        raise ConflictError(f"{path} already exists.", hint=_NEW_DATABASE)


def restore_rows(path: Path, url: str, *, again: bool) -> None:
    """Copy the rows of a backup into an empty database, all of them or none."""
    with opened_database(f"sqlite:///{path}") as backup, opened_database(url) as database:
        if database.sqlite_path is not None:
            database.sqlite_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            database.sqlite_path.touch(mode=0o600)
        backup.migrate()
        database.migrate()
        with backup.session() as rows, database.transaction() as arriving:
            if again and _digests(rows) == _digests(arriving):
                return
            _require_no_rows(database, arriving)
            _copy_all(rows, arriving)


def _copy_all(source: Session, target: Session) -> None:
    """Copy every row into empty tables and compare; nothing else may write to either side."""
    for table in _TABLES:
        for rows in _batches(source, table, select(table)):
            values = [dict(zip(table.columns.keys(), _values(row), strict=True)) for row in rows]
            _insert(target, table, values)
    _set_sequences(target)
    if _digests(source) != _digests(target):
        raise OsmosisError("the copied rows differ from those of the database.", code="INTERNAL")


def _set_sequences(session: Session) -> None:
    """Let PostgreSQL number new rows after the copied ones; SQLite does so by itself."""
    if session.get_bind().dialect.name == "sqlite":
        return
    for table in _TABLES:
        column = table.autoincrement_column
        if column is not None:
            last = select(func.max(column)).scalar_subquery()
            sequence = func.pg_get_serial_sequence(table.name, column.name)
            session.execute(select(func.setval(sequence, func.coalesce(last, 1), last.is_not(None))))


def _revision(database: Database) -> str | None:
    with database.session() as session:
        return current_revision(session.connection())


def _require_no_rows(database: Database, session: Session) -> None:
    """Refuse a database that has a row, or a table that is not the platform's."""
    ours = {table.name: table for table in _TABLES}
    for name in sorted(set(inspect(session.connection()).get_table_names()) - {"alembic_version"}):
        if name not in ours or session.scalar(select(literal(1)).select_from(ours[name]).limit(1)):
            raise ConflictError(
                f"{database.shown} is not empty: it contains the table {name}.", hint=_NEW_DATABASE
            )


def _insert(session: Session, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    try:
        session.execute(insert(table), rows)
    except (DataError, IntegrityError) as error:
        first, last = (
            "/".join(str(row[column.name])[:64] for column in table.primary_key)
            for row in (rows[0], rows[-1])
        )
        said = str(error.orig).splitlines()[0] if isinstance(error, DataError) else "it violates the schema"
        raise OsmosisError(
            f"a row of table '{table.name}' between {first} and {last} cannot be stored: {said}.",
            code="INTERNAL",
            hint="correct or delete that row on the platform, then make another backup",
        ) from None


def _digests(session: Session) -> dict[str, tuple[int, str]]:
    """Return the number and the digest of the rows of every table, by its name."""
    is_sqlite = session.get_bind().dialect.name == "sqlite"
    found: dict[str, tuple[int, str]] = {}
    for table in _TABLES:
        # PostgreSQL may order text by the rules of a language.
        order = [
            column if is_sqlite or not isinstance(column.type, String) else collate(column, "C")
            for column in table.primary_key
        ]
        hashed, count = hashlib.sha256(), 0
        for rows in _batches(session, table, select(table).order_by(*order)):
            for row in rows:
                hashed.update(orjson.dumps(_values(row), default=bytes.hex, option=orjson.OPT_SORT_KEYS))
                hashed.update(b"\n")
            count += len(rows)
        found[table.name] = count, hashed.hexdigest()
    return found


def _batches(session: Session, table: Table, query: Select[Any]) -> Iterator[Sequence[Row[Any]]]:
    has_bytes = any(isinstance(column.type, LargeBinary) for column in table.columns)
    size = _BATCH_ROWS_OF_BYTES if has_bytes else _BATCH_ROWS
    found = session.execute(query, execution_options={"stream_results": True, "yield_per": size})
    yield from found.partitions()


def _values(row: Row[Any]) -> list[Any]:
    """Return the values of a row that both engines accept: PostgreSQL has no text with the character NUL."""
    return [value.replace("\0", "\ufffd") if isinstance(value, str) else value for value in row]
