"""The database of a backup: always one SQLite file, whichever engine the platform is on, at one moment.

Of a PostgreSQL database it holds the rows, so that a backup can be restored onto either engine.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.platform.backup.archive import damaged
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.engine import Database, opened_database
from osmosis_ai.platform.db.migrations import revisions, unknown_schema
from osmosis_ai.platform.db.move_marks import MARKS_TABLE, write_mark
from osmosis_ai.platform.db.row_copies import copy_all, require_this_schema, what_is_in
from osmosis_ai.platform.process_state import require_same_database


def sqlite_file(config: PlatformConfig) -> Path | None:
    """Return where the platform's database lies; None where it is on a server."""
    path = Database(config.database_url).sqlite_path
    return None if path is None else path.absolute().parent.resolve() / path.name


def require_platform(config: PlatformConfig) -> None:
    """Refuse to back up what is not there.

    Raises:
        NotFoundError: there is no platform.
        ConflictError: the one that runs there has its rows in another database.
        OsmosisError: its database has the schema of another release, or cannot be reached.
    """
    path = sqlite_file(config)
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
    """Refuse a database that is damaged.

    Raises:
        OsmosisError: it is, or there is none.
    """
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


def require_known_schema(path: Path) -> None:
    """Refuse the database of a backup that a release with another schema wrote.

    Raises:
        OsmosisError: one did.
    """
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    if revision not in revisions():
        raise unknown_schema("the backup", revision)


def known_blobs(path: Path) -> Iterator[str]:
    """Yield the keys of blobs that a database refers to, in whatever table."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        tables = connection.execute(
            "SELECT t.name FROM sqlite_master t, pragma_table_info(t.name) c "
            "WHERE t.type = 'table' AND c.name = 'blob_key'"
        ).fetchall()
        for (table,) in tables:
            for (key,) in connection.execute(f'SELECT blob_key FROM "{table}" WHERE blob_key IS NOT NULL'):
                yield key


def let_it_start(path: Path) -> None:
    """Forget that what a database holds moved elsewhere: who restores it wants it here."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        marked = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (MARKS_TABLE,)).fetchone()
        if marked:
            connection.execute(f"DELETE FROM {MARKS_TABLE} WHERE name = 'departure'")


def require_empty(config: PlatformConfig) -> None:
    """Refuse to restore into a database that holds something.

    Raises:
        ConflictError: it does.
    """
    path = sqlite_file(config)
    if path is not None:
        if path.exists():
            raise _occupied(str(path))
        return
    with opened_database(config.database_url) as database:
        if table := what_is_in(database):
            raise ConflictError(
                f"{database.shown} is not empty: it holds the table {table}.",
                hint="a backup is restored into a new database: name one in OSMOSIS_DATABASE_URL",
            )


def restore_rows(path: Path, url: str) -> None:
    """Bring the rows of a backup into an empty database on a server, all of them or none.

    Raises:
        OsmosisError: it does not take them.
    """
    with opened_database(f"sqlite:///{path}") as backup, opened_database(url) as database:
        backup.bring_up_to_date()
        database.bring_up_to_date()
        with backup.session() as rows, database.transaction() as arriving:
            copy_all(rows, arriving)
            for direction in ("arrival", "departure"):
                write_mark(arriving.connection(), direction, None)


def _occupied(place: str) -> ConflictError:
    return ConflictError(
        f"{place} is there already; a backup is restored into an empty data directory.",
        hint="set OSMOSIS_HOME to a directory that does not exist yet",
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
        copy.bring_up_to_date()
        with database.session() as rows, copy.transaction() as arriving:
            copy_all(rows, arriving)
    with contextlib.closing(sqlite3.connect(target)) as connection:
        _one_file(connection)
    target.with_name(f"{target.name}.lock").unlink(missing_ok=True)


def _one_file(connection: sqlite3.Connection) -> None:
    """Let a database be one file, without a log beside it."""
    connection.execute("PRAGMA journal_mode=DELETE")
