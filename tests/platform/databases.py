"""The database of a test's platform: SQLite in its own directory, or one of its own on a PostgreSQL server.

``OSMOSIS_TEST_POSTGRES_URL`` names the server, such as ``postgresql://postgres@127.0.0.1:5432/postgres``: a user
with the right to create databases, and a database to connect to. Then every platform of these tests uses it. Otherwise
the tests that need PostgreSQL start their own server.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.pool import NullPool

import osmosis_ai.platform.db.engine as engine_module
from osmosis_ai.platform.db.engine import Database
from tests.platform.postgres_server import own_server

Fill = Callable[[Database], None]

POSTGRES_URL = os.environ.get("OSMOSIS_TEST_POSTGRES_URL", "")


@contextmanager
def postgres_database(options: str = "") -> Iterator[str]:
    """Make an empty database, with ``options`` of ``CREATE DATABASE``, give its URL, and drop it."""
    server = make_url(POSTGRES_URL or own_server())
    name = f"osmosis_test_{secrets.token_hex(8)}"
    engine = create_engine(
        server.set(drivername="postgresql+psycopg"), poolclass=NullPool, isolation_level="AUTOCOMMIT"
    )
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name} {options}"))
    try:
        yield server.set(database=name).render_as_string(hide_password=False)
    finally:
        with engine.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


@contextmanager
def statements_compiled_once() -> Iterator[None]:
    """Let the platforms of all tests share what their statements are in SQLite's SQL.

    SQLAlchemy remembers it for one engine, and every test has an engine of its own.
    """
    first: list[Engine] = []

    def sharing(url: Any, **options: Any) -> Engine:
        made = create_engine(url, **options)
        if made.dialect.name == "sqlite":
            if not first:
                first.append(made)
            made.dialect, made._compiled_cache = first[0].dialect, first[0]._compiled_cache
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "create_engine", sharing)
        yield


def put_migrated_database(home: Path, fill: Fill | None = None) -> None:
    """Begin a platform's home with a database of this release: a copy, which saves the steps to it.

    Args:
        home: which there is not yet.
        fill: puts rows into the database that is copied; without, it is empty.
    """
    home.mkdir(mode=0o700)
    (home / "platform.db").write_bytes(_migrated_database(fill))


@cache
def _migrated_database(fill: Fill | None) -> bytes:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "platform.db"
        database = Database(f"sqlite:///{path}")
        database.migrate()
        if fill is not None:
            fill(database)
        database.dispose()  # the last connection moves what is in the log into the file
        return path.read_bytes()


@contextmanager
def platform_database(home: Path, fill: Fill | None = None) -> Iterator[str]:
    """Give the URL of a platform's database; "" is SQLite in its home, with what ``fill`` put in."""
    if not POSTGRES_URL:
        put_migrated_database(home, fill)
        yield ""
        return
    with postgres_database() as url:
        yield url
