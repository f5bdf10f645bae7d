"""Database copy of a backup: one SQLite file, whichever engine the platform uses.

For PostgreSQL it holds the rows, so that a backup can be restored to either engine.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from sqlalchemy.orm import Session

from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.platform.backup.archive import DATABASE, OBJECTS, damaged
from osmosis_ai.platform.backup.rows import (
    copy_all,
    digests,
    require_this_schema,
    schema_step,
    what_is_in,
)
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.engine import Database, opened_database
from osmosis_ai.platform.db.migrations import revisions, unknown_schema
from osmosis_ai.platform.process_state import require_same_database

_NEW_DATABASE = "name a new database in OSMOSIS_DATABASE_URL or --database-file"


def sqlite_file(config: PlatformConfig) -> Path | None:
    """Return where the platform's database lies; None where it is on a server."""
    path = Database(config.database_url).sqlite_path
    return None if path is None else path.absolute().parent.resolve() / path.name


def require_platform(config: PlatformConfig) -> None:
    """Refuse to back up what is not there."""
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
            require_this_schema(database)


def copy_database(config: PlatformConfig, target: Path) -> None:
    """Copy a database that may be written to meanwhile, and check the copy."""
    path = sqlite_file(config)
    if path is None:
        _copy_rows(config.database_url, target)
    else:
        _copy_sqlite(path, target)
    target.chmod(0o600)
    check_database(target)


def check_database(path: Path) -> None:
    """Refuse a database that is damaged."""
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
    """Count the stored files that the database of an unpacked backup refers to, in any table, and that are not there."""
    with contextlib.closing(sqlite3.connect(home / DATABASE)) as connection:
        tables = connection.execute(
            "SELECT t.name FROM sqlite_master t, pragma_table_info(t.name) c "
            "WHERE t.type = 'table' AND c.name = 'blob_key'"
        ).fetchall()
        keys = [
            key
            for (table,) in tables
            for (key,) in connection.execute(f'SELECT blob_key FROM "{table}" WHERE blob_key IS NOT NULL')
        ]
    return sum(not (home / OBJECTS / key).is_file() for key in keys)


def require_known_schema(path: Path) -> None:
    """Refuse the database of a backup that a release with another schema wrote."""
    with opened_database(f"sqlite:///{path}") as database:
        step = schema_step(database)
    if step is None:
        raise damaged("its database has no schema")
    if step not in revisions():
        raise unknown_schema("the backup", step)


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
            if again and digests(rows) == digests(arriving):
                return
            _require_no_rows(database, arriving)
            copy_all(rows, arriving)


def _require_no_rows(database: Database, session: Session) -> None:
    if (table := what_is_in(session)) is not None:
        raise ConflictError(
            f"{database.shown} is not empty: it contains the table {table}.", hint=_NEW_DATABASE
        )


def _copy_sqlite(source: Path, target: Path) -> None:
    with (
        contextlib.closing(sqlite3.connect(source, timeout=30)) as live,
        contextlib.closing(sqlite3.connect(target)) as copy,
    ):
        # In one step: it reads a snapshot, writers go on beside it, and none makes it begin again.
        live.backup(copy, pages=-1)
        _one_file(copy)


def _copy_rows(url: str, target: Path) -> None:
    with opened_database(url) as database, opened_database(f"sqlite:///{target}") as copy:
        copy.migrate()
        with database.session() as rows, copy.transaction() as arriving:
            copy_all(rows, arriving)
    with contextlib.closing(sqlite3.connect(target)) as connection:
        _one_file(connection)
    target.with_name(f"{target.name}.lock").unlink(missing_ok=True)


def _one_file(connection: sqlite3.Connection) -> None:
    """Let a database be one file, without a log beside it."""
    connection.execute("PRAGMA journal_mode=DELETE")
