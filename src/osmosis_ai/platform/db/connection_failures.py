"""What it means when a PostgreSQL server gives no connection, or ends one, in words that hold nothing secret."""

from __future__ import annotations

from typing import Any

from sqlalchemy.exc import DBAPIError, OperationalError

TEXT = {"client_encoding": "utf8"}
"""What a server sends is text, whatever it says of its own: one without an encoding is then refused in a sentence."""
PATIENCE: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""How a server that is cut off is noticed (libpq, "Parameter Key Words"): seconds; milliseconds for what was sent."""

# PostgreSQL's codes of a server that has no connection left, is ending, has crashed, or is not there yet.
_TURNED_AWAY = frozenset({"53300", "57P01", "57P02", "57P03"})
_BROKEN_CLASS = "08"
# The driver gives a connection that was not made no code, so its text is all there is.
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


def connection_failure(error: DBAPIError) -> str | None:
    """Return what a database does not do (``has no connection left``); None where it is no matter of connections."""
    state = getattr(error.orig, "sqlstate", None)
    not_made = isinstance(error, OperationalError) and state is None
    broken = error.connection_invalidated or str(state)[:2] == _BROKEN_CLASS
    if not (not_made or broken or state in _TURNED_AWAY):
        return None
    text = str(error.orig).lower()
    return next((words for sign, words in _MEANINGS.items() if sign in text), "does not answer")
