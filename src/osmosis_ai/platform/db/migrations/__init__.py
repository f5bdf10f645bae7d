"""Database schema as Alembic revisions.

A revision is a file in ``versions/``; a test checks that they create what ``tables.py`` declares.
``scripts/draft_migration.py "what changes"`` drafts the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, Connection, create_engine, event, inspect, text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.pool import NullPool

from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from alembic.config import Config

HERE = Path(__file__).parent
POSTGRESQL_TEXT = {"client_encoding": "utf8"}
"""Makes the server send text even if its own encoding is none, so that :func:`_require_unicode` can refuse it."""
_LOCK_TIMEOUT_S = 300.0
# Any number will do, as long as every release asks PostgreSQL for the same.
_ADVISORY_LOCK = 7_023_641_190


def upgrade(url: URL, sqlite_path: Path | None, shown: str) -> None:
    """Bring the database at ``url``, printed as ``shown``, to the newest revision, under a lock."""
    with _locked(url, sqlite_path, shown) as connection:
        version = current_revision(connection)
        # Usually there is nothing to do, and importing Alembic takes longer than finding that out.
        if version == newest_revision():
            return
        if version is not None and version not in revisions():
            raise unknown_schema(shown, version)
        from alembic import command

        command.upgrade(alembic_config(connection), "head")


def revisions() -> list[str]:
    """Return every revision, oldest first: the numbers that the file names start with."""
    return sorted(path.name.partition("_")[0] for path in (HERE / "versions").glob("[0-9]*.py"))


def newest_revision() -> str:
    return revisions()[-1]


def unknown_schema(shown: str, version: str) -> OsmosisError:
    """Return the error for a database that another release of Osmosis wrote."""
    return OsmosisError(
        f"The schema of {shown} is unknown: revision {version} (this release uses {newest_revision()}).",
        hint="use the release of Osmosis that wrote it, or start with an empty database",
    )


def current_revision(connection: Connection) -> str | None:
    """Return the revision of a database, None if it has no schema."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    version: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return version


def alembic_config(connection: Connection) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(HERE).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


@contextmanager
def _locked(url: URL, sqlite_path: Path | None, shown: str) -> Iterator[Connection]:
    if sqlite_path is None:
        engine = create_engine(url, poolclass=NullPool, hide_parameters=True, connect_args=POSTGRESQL_TEXT)
        with _permitted(shown), engine.begin() as connection:
            _require_unicode(connection, shown)
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK})
            yield connection
        return
    from filelock import FileLock, Timeout

    sqlite_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        with FileLock(f"{sqlite_path}.lock", timeout=_LOCK_TIMEOUT_S), _sqlite(url) as connection:
            yield connection
    except Timeout as error:
        raise OsmosisError(
            f"another process has been migrating {sqlite_path} for {_LOCK_TIMEOUT_S:.0f} seconds.",
            hint="wait for it to end, then try again",
        ) from error


@contextmanager
def _sqlite(url: URL) -> Iterator[Connection]:
    """One transaction with foreign keys off: rebuilding a table would else delete what refers to it."""
    engine = create_engine(url, poolclass=NullPool, hide_parameters=True)

    def on_connect(connection: Any, _record: object) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA busy_timeout=30000")
        # The mode is a property of the file: set here, under the lock, and found by everybody.
        # Packed conversations leave free pages, which maintenance returns to the file system.
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA foreign_keys=OFF")

    event.listen(engine, "connect", on_connect)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    with engine.begin() as connection:
        yield connection


def _require_unicode(connection: Connection, shown: str) -> None:
    """Refuse a database that cannot store every text."""
    encoding = connection.scalar(text("SHOW server_encoding"))
    if encoding != "UTF8":
        raise OsmosisError(
            f"{shown} stores text as {encoding}, which cannot represent all of Unicode.",
            hint="create a database with ENCODING 'UTF8'",
        )


@contextmanager
def _permitted(shown: str) -> Iterator[None]:
    """Report a missing permission to create tables."""
    try:
        yield
    except ProgrammingError as error:
        said = str(error.orig).splitlines()[0]
        raise OsmosisError(
            f"{shown} does not allow the platform to create its tables: {said}.",
            hint="make the user the owner of the database, or GRANT CREATE ON SCHEMA public to the user",
        ) from None
