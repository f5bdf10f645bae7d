"""Bearer tokens: random strings stored as SHA-256, with a prefix for their kind.

256 random bits need no slow hash. Prefixes separate users from workers before any lookup.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta

from sqlalchemy import update

from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database, DatabaseBusyError, StorageFullError
from osmosis_ai.platform.db.tables import DbToken, DbWorkerToken

USER_PREFIX = "osm_"
WORKER_TOKEN_PREFIX = "osmw_"
TICKET_PREFIX = "osmt_"
WORKER_PREFIXES = (WORKER_TOKEN_PREFIX, TICKET_PREFIX)
# More often would make every read of a busy client a write.
_USE_NOTED_EVERY = timedelta(minutes=1)


def new_bearer(prefix: str) -> str:
    """Return a fresh token of 256 random bits."""
    return prefix + secrets.token_urlsafe(32)


def bearer_hash(plain: str) -> str:
    """Return what is kept of a token."""
    return hashlib.sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()


def should_note_use(clock: Clock, token: DbToken | DbWorkerToken) -> bool:
    """Return whether :func:`note_use` would write."""
    noted = token.last_used_at
    return noted is None or abs(clock.now() - noted) >= _USE_NOTED_EVERY


def note_use(db: Database, clock: Clock, token: DbToken | DbWorkerToken) -> None:
    """Record that ``token`` was used, at most once a minute, and never at the price of the request."""
    if not should_note_use(clock, token):
        return
    table = type(token)
    try:
        with db.transaction(wait_s=0) as session:
            session.execute(update(table).where(table.id == token.id).values(last_used_at=clock.now()))
    except (DatabaseBusyError, StorageFullError):
        return
