"""Database engine: many readers, one writer, short transactions.

On SQLite a write takes its lock at the start (``BEGIN IMMEDIATE``), because SQLite fails a transaction at once that
reads first and then waits for a writer. Writers of this process wait for its lock first, since
SQLite's waiting is unordered polling. Between processes the busy timeout waits. Reads never wait, because WAL
gives them a snapshot.

Do not do slow work inside ``with db.transaction()``: no network call, no child process.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import orjson
from sqlalchemy import URL, Connection, Engine, Row, Select, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnectionFree
from sqlalchemy.orm import Session
from typing_extensions import TypeVarTuple, Unpack

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.db.migrations import POSTGRESQL_TEXT, upgrade
from osmosis_ai.sqlite_text import teach_holds

Found = TypeVar("Found")
Columns = TypeVarTuple("Columns")

BUSY_TIMEOUT_S = 30.0
"""How long a write waits for another process."""

# Every thread that serves a request may hold one connection.
_POOL_SIZE = 16
_POOL_OVERFLOW = 64
# After a burst of writes the log file shrinks back to this (64 MiB) instead of keeping its peak.
_WAL_SIZE_LIMIT = 64 * 1024 * 1024
# Few enough that other writers wait for milliseconds only.
_PAGES_AT_ONCE = 200
_MOST_VACUUMS = 5000
_WAIT_OPTION = "osmosis_write_wait_s"
# By default, PostgreSQL gives every statement its own snapshot.
_POSTGRESQL_SNAPSHOT = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
_MODE = "osmosis_mode"
_FORMS = "write it as sqlite:////path/to/platform.db or postgresql://user:password@host/database"
_PATIENCE: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""Parameters of libpq that detect an unreachable server, in seconds; the last one in milliseconds."""

# PostgreSQL's codes for: no connection left, shutting down, crashed, starting.
_TURNED_AWAY = ("53300", "57P01", "57P02", "57P03")
_BROKEN_CLASS = "08"
# A standby, or a server that was made read-only, refuses a transaction that writes in one of these two ways.
_READ_ONLY = "25006"
_IN_RECOVERY = ("0A000", "during recovery")
# Cancelled by a timeout of the operator's or because of a lock; a retry may succeed.
_CANCELLED = ("57014", "55P03", "40001", "40P01")
# The driver gives a failed connection attempt no code, only a text.
_MEANINGS = {
    "too many clients": "has no connection left",
    "connection slots": "has no connection left",
    "too many connections": "has no connection left",
    "password": "refuses the user or the password",
    "authentication failed": "refuses the user or the password",
    "does not exist": "does not exist, or its user does not",
    "translate host": "is at a host that is not found",
    "resolve host": "is at a host that is not found",
    "certificate": "has a certificate that is not trusted",
    "starting up": "is starting",
    "shutting down": "is ending",
    "administrator command": "has ended the connection",
}


class DatabaseBusyError(OsmosisError):
    """Another process held the database for longer than a write waits."""

    default_code = "PLATFORM_ERROR"
    is_infrastructure = True


class DatabaseUnreachableError(DatabaseBusyError):
    """The database's server does not answer, or takes no further connection."""


class StorageFullError(OsmosisError):
    """The disk is full or failing; the write was rolled back."""

    default_code = "PLATFORM_ERROR"
    is_infrastructure = True


class Database:
    """One database, shared by all threads of this process."""

    def __init__(self, url: str, *, named: str = "OSMOSIS_DATABASE_URL") -> None:
        self._url = _parse(url, named)
        self.is_sqlite = self._url.get_backend_name() == "sqlite"
        self._engine = _create_engine(self._url, self.is_sqlite)
        self._writing = threading.Lock()
        self._writer: int | None = None

    @property
    def shown(self) -> str:
        """The database's location for display, without a password."""
        if self.is_sqlite:
            return f"sqlite:///{self._url.database}"
        url = self._url
        user = f"{url.username}@" if url.username else ""
        port = f":{url.port}" if url.port else ""
        shown = f"postgresql://{user}{url.host or ''}{port}/{url.database or ''}"
        # The directory of the server's socket is a parameter.
        directories = url.normalized_query.get("host")
        return f"{shown}?host={directories[0]}" if directories and not url.host else shown

    @property
    def sqlite_path(self) -> Path | None:
        return Path(self._url.database) if self.is_sqlite and self._url.database else None

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Read one consistent snapshot; a write inside fails."""
        with (
            self._translated(writes=False),
            Session(self._engine, expire_on_commit=False, autoflush=False) as session,
        ):
            if not self.is_sqlite:
                session.connection(execution_options=_POSTGRESQL_SNAPSHOT)
            yield session

    def get(self, table: type[Found], key: Any) -> Found | None:
        with self.session() as session:
            return session.get(table, key)

    def scalar(self, query: Select[Found]) -> Found | None:
        """Return the first column of the first row."""
        with self.session() as session:
            return session.scalar(query)

    def scalars(self, query: Select[Found]) -> list[Found]:
        """Return the first column of every row."""
        with self.session() as session:
            return list(session.scalars(query))

    def rows(self, query: Select[Unpack[Columns]]) -> Sequence[Row[Unpack[Columns]]]:
        with self.session() as session:
            return session.execute(query).all()

    @contextmanager
    def transaction(self, *, wait_s: float = BUSY_TIMEOUT_S) -> Iterator[Session]:
        """Commit everything that the block writes, or nothing if it raises."""
        with (
            self._translated(),
            self._turn_to_write(wait_s) as left_s,
            Session(self._engine, expire_on_commit=False) as session,
        ):
            session.connection(execution_options={_WAIT_OPTION: left_s})
            yield session
            session.commit()

    async def read(self, query: Callable[[Session], Found]) -> Found:
        """Return the result of a short ``query``, from a coroutine."""

        def ask() -> Found:
            with self.session() as session:
                return query(session)

        if self.is_sqlite:
            return ask()
        from anyio.to_thread import run_sync

        return await run_sync(ask)

    def migrate(self) -> None:
        """Bring the schema up to this release; safe when several processes do so at once."""
        with self._translated():
            upgrade(self._url, self.sqlite_path, self.shown)

    def reclaim_space(self) -> None:
        """Return free pages of SQLite's file to the file system, some in each transaction."""
        if not self.is_sqlite:
            return
        for _ in range(_MOST_VACUUMS):
            with self.transaction() as session:
                if not (free := session.scalar(text("PRAGMA freelist_count"))):
                    return
                connection = session.connection()
                for _ in range(min(free, _PAGES_AT_ONCE)):
                    # The driver executes one step of this statement, which frees one page.
                    connection.exec_driver_sql("PRAGMA incremental_vacuum(1)")

    def dispose(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _turn_to_write(self, wait_s: float) -> Iterator[float]:
        """Wait for this process's other writers; yield the seconds left to wait for other processes."""
        if not self.is_sqlite:
            yield wait_s
            return
        if self._writer == threading.get_ident():
            raise RuntimeError("a nested transaction would wait for itself")
        deadline = time.monotonic() + wait_s
        if not self._writing.acquire(timeout=wait_s):
            raise _busy()
        self._writer = threading.get_ident()
        try:
            yield max(0.0, deadline - time.monotonic())
        finally:
            self._writer = None
            self._writing.release()

    @contextmanager
    def _translated(self, *, writes: bool = True) -> Iterator[None]:
        """Translate temporary failures and those that an operator can fix."""
        try:
            yield
        except NoConnectionFree:
            raise DatabaseBusyError(
                f"the platform's {_POOL_SIZE + _POOL_OVERFLOW} connections to its database are all in use.",
                hint="try again; the database may be slow",
            ) from None
        except (DBAPIError, sqlite3.OperationalError) as error:
            does = None
            if not self.is_sqlite and isinstance(error, DBAPIError):
                does = _connection_failure(error, writes=writes)
            if does is not None:
                raise DatabaseUnreachableError(
                    f"the database {self.shown} {does}.",
                    hint="check that its server runs and accepts this connection, then try again",
                ) from None
            text = str(error.orig if isinstance(error, DBAPIError) else error).lower()
            if "database is locked" in text or "database table is locked" in text:
                raise _busy() from error
            # A quota or a file-size limit shows as a failed write rather than as a full disk.
            if "disk is full" in text or "disk i/o error" in text or "no space left" in text:
                raise StorageFullError(
                    "the platform's disk is full or failing: nothing was saved.",
                    hint=f"make room for {self.sqlite_path or 'the database'}, then try again",
                ) from error
            raise


@contextmanager
def opened_database(url: str) -> Iterator[Database]:
    database = Database(url)
    try:
        yield database
    finally:
        database.dispose()


def _busy() -> DatabaseBusyError:
    return DatabaseBusyError(
        "the platform's database is busy: another process has been writing to it for too long.",
        hint="try again; end other programs that have the database open",
    )


def _connection_failure(error: DBAPIError, *, writes: bool) -> str | None:
    """Describe a connection failure (``has no connection left``); None if a retry would not help."""
    state = getattr(error.orig, "sqlstate", None)
    in_recovery = state == _IN_RECOVERY[0] and _IN_RECOVERY[1] in str(error.orig)
    if writes and (state == _READ_ONLY or in_recovery):
        return "takes no writes: it is a standby, or was made read-only"
    if state in _CANCELLED:
        return "cancelled a query that was blocked or took too long"
    not_made = isinstance(error, OperationalError) and state is None
    broken = error.connection_invalidated or str(state)[:2] == _BROKEN_CLASS
    if not (not_made or broken or state in _TURNED_AWAY):
        return None
    said = str(error.orig).lower()
    return next((meaning for sign, meaning in _MEANINGS.items() if sign in said), "does not answer")


def _parse(url: str, named: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # The text may contain a password.
        raise OsmosisError(f"{named} is not a database URL.", hint=_FORMS) from None
    backend = parsed.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise OsmosisError(
            f"the platform runs on SQLite and PostgreSQL, not on '{backend}'.",
            hint="a URL of PostgreSQL begins with postgresql://" if backend == "postgres" else _FORMS,
        )
    return parsed.set(drivername="postgresql+psycopg") if parsed.drivername == "postgresql" else parsed


def _create_engine(url: URL, is_sqlite: bool) -> Engine:
    patience = {name: value for name, value in _PATIENCE.items() if name not in url.query}
    try:
        engine = create_engine(
            url,
            connect_args={} if is_sqlite else {**patience, **POSTGRESQL_TEXT},
            pool_size=_POOL_SIZE,
            max_overflow=_POOL_OVERFLOW,
            pool_timeout=BUSY_TIMEOUT_S,
            pool_pre_ping=not is_sqlite,
            # Keeps the contents of rows out of exceptions, and so out of logs.
            hide_parameters=True,
            # Faster, for lists that read the JSON of every run.
            json_deserializer=orjson.loads,
            # orjson could not read NaN again.
            json_serializer=partial(json.dumps, allow_nan=False),
        )
    except (ImportError, NoSuchModuleError) as error:
        from osmosis_ai.errors import MissingExtraError

        raise MissingExtraError("postgres", "psycopg") from error
    except SQLAlchemyError as error:
        raise OsmosisError(f"the database cannot be opened: {error}") from error
    if is_sqlite:
        event.listen(engine, "connect", _on_sqlite_connect)
        event.listen(engine, "begin", _on_sqlite_begin)
    return engine


def _on_sqlite_connect(connection: sqlite3.Connection, _record: object) -> None:
    # `_on_sqlite_begin` begins transactions, not the driver.
    connection.isolation_level = None
    # A commit survives a crash of the process; a power cut may undo whole recent commits.
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute(f"PRAGMA journal_size_limit={_WAL_SIZE_LIMIT}")
    teach_holds(connection)


def _on_sqlite_begin(connection: Connection) -> None:
    wait_s = connection.get_execution_options().get(_WAIT_OPTION)
    driver: Any = connection.connection.driver_connection
    mode = (int((BUSY_TIMEOUT_S if wait_s is None else wait_s) * 1000), "ON" if wait_s is None else "OFF")
    # Most connections are used the same way again.
    if connection.info.get(_MODE) != mode:
        driver.execute(f"PRAGMA busy_timeout={mode[0]}")
        driver.execute(f"PRAGMA query_only={mode[1]}")
        connection.info[_MODE] = mode
    driver.execute("BEGIN" if wait_s is None else "BEGIN IMMEDIATE")
