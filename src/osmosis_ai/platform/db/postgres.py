"""PostgreSQL: connection settings, requirements, and messages for its failures that contain nothing secret."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError

from osmosis_ai.errors import OsmosisError

TEXT = {"client_encoding": "utf8"}
"""Makes the server send text even if its own encoding is none, so that :func:`require_unicode` can refuse it."""
PATIENCE: dict[str, Any] = {
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


def connection_failure(error: DBAPIError, *, writes: bool) -> str | None:
    """Describe a connection failure (``has no connection left``); None if a retry would not help."""
    state = getattr(error.orig, "sqlstate", None)
    in_recovery = state == _IN_RECOVERY[0] and _IN_RECOVERY[1] in str(error.orig)
    if writes and (state == _READ_ONLY or in_recovery):
        return "takes no writes: it is a standby, or was made read-only"
    if state in _CANCELLED:
        return "gave up what it was asked: others hold what it needs, or it takes too long"
    not_made = isinstance(error, OperationalError) and state is None
    broken = error.connection_invalidated or str(state)[:2] == _BROKEN_CLASS
    if not (not_made or broken or state in _TURNED_AWAY):
        return None
    said = str(error.orig).lower()
    return next((meaning for sign, meaning in _MEANINGS.items() if sign in said), "does not answer")


def require_unicode(connection: Connection, shown: str) -> None:
    """Refuse a database that cannot store every text."""
    encoding = connection.scalar(text("SHOW server_encoding"))
    if encoding != "UTF8":
        raise OsmosisError(
            f"{shown} stores text as {encoding}, which cannot represent all of Unicode.",
            hint="create a database with ENCODING 'UTF8'",
        )


@contextmanager
def permitted(shown: str) -> Iterator[None]:
    """Report a missing permission to create tables."""
    try:
        yield
    except ProgrammingError as error:
        said = str(error.orig).splitlines()[0]
        raise OsmosisError(
            f"{shown} does not allow the platform to create its tables: {said}.",
            hint="make the user the owner of the database, or GRANT CREATE ON SCHEMA public to the user",
        ) from None
