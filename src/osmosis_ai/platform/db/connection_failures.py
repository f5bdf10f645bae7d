"""What it means when a PostgreSQL server gives no connection, ends one or takes nothing, in words that hold nothing secret."""

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
# A server that is a standby, or was made read-only, refuses a transaction that writes in one of these two ways.
_READ_ONLY = "25006"
_IN_RECOVERY = ("0A000", "during recovery")
# It gave up what it was asked, by a rule of its operator's or to let somebody else go on: asked again, it may do it.
_GIVEN_UP = frozenset({"57014", "55P03", "40001", "40P01"})
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


def connection_failure(error: DBAPIError, *, writes: bool) -> str | None:
    """Describe a connection failure (``has no connection left``); None if a retry would not help."""
    state = getattr(error.orig, "sqlstate", None)
    in_recovery = state == _IN_RECOVERY[0] and _IN_RECOVERY[1] in str(error.orig)
    if writes and (state == _READ_ONLY or in_recovery):
        return "takes no writes: it is a standby, or was made read-only"
    if state in _GIVEN_UP:
        return "gave up what it was asked: others hold what it needs, or it takes too long"
    not_made = isinstance(error, OperationalError) and state is None
    broken = error.connection_invalidated or str(state)[:2] == _BROKEN_CLASS
    if not (not_made or broken or state in _TURNED_AWAY):
        return None
    text = str(error.orig).lower()
    return next((words for sign, words in _MEANINGS.items() if sign in text), "does not answer")
