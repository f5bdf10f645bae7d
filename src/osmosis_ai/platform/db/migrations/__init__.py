"""The schema's history: every database gets from any earlier release to this one by the same steps.

A step is a file in ``versions/``; ``tables.py`` is where the steps arrive (a test holds them together).
A new step is drafted by ``python -m osmosis_ai.platform.db.migrations "what changes"`` and then read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, Connection, create_engine, event, inspect, text
from sqlalchemy.pool import NullPool

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.db.connection_failures import TEXT
from osmosis_ai.platform.db.postgres_demands import permitted, require_unicode

if TYPE_CHECKING:
    from alembic.config import Config

HERE = Path(__file__).parent
_LOCK_TIMEOUT_S = 300.0
# Any number will do, as long as every release asks PostgreSQL for the same.
_ADVISORY_LOCK = 7_023_641_190


def upgrade(url: URL, sqlite_path: Path | None, shown: str) -> None:
    """Bring the database at ``url``, which people call ``shown``, to the newest step, while no other process does.

    Raises:
        OsmosisError: when the database knows steps that this release does not, or takes no tables or not every text.
    """
    with _locked(url, sqlite_path, shown) as connection:
        # Mostly there is nothing to do, which Alembic takes longer to import than to find out.
        if _version(connection) == newest_step():
            return
        from alembic import command
        from alembic.util import CommandError

        try:
            command.upgrade(alembic_config(connection), "head")
        except CommandError as error:
            raise OsmosisError(
                "the platform's database was written by a newer release of Osmosis.",
                hint="upgrade this installation, or restore a backup that it wrote",
            ) from error


def newest_step() -> str:
    """Return the revision of the newest step: what its file's name begins with."""
    return max(path.name.partition("_")[0] for path in (HERE / "versions").glob("[0-9]*.py"))


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    version: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return version


def alembic_config(connection: Connection) -> Config:
    """Return Alembic's configuration for the steps of this package on an open connection."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(HERE).replace("%", "%%"))
    config.set_main_option("file_template", "%%(rev)s_%%(slug)s")
    config.attributes["connection"] = connection
    return config


@contextmanager
def _locked(url: URL, sqlite_path: Path | None, shown: str) -> Iterator[Connection]:
    if sqlite_path is None:
        engine = create_engine(url, poolclass=NullPool, hide_parameters=True, connect_args=TEXT)
        with permitted(shown), engine.begin() as connection:
            require_unicode(connection, shown)
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
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA foreign_keys=OFF")

    event.listen(engine, "connect", on_connect)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    with engine.begin() as connection:
        yield connection
