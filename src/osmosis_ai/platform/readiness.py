"""Readiness checks: the database, its schema and the file store.

Answers come within seconds even if a store or database hangs, and results are cached. The reasons are public and
contain no locations; the log has the details.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.migrations import newest_revision

logger = logging.getLogger(__name__)

FRESH_S = 10.0
"""How long a result is cached."""
ANSWER_WITHIN_S = 3.0
"""How long a request waits for an unresponsive check."""
_FAILURES = (OsmosisError, SQLAlchemyError, OSError)


@dataclass
class _Look:
    """One round of checks, filled in while it runs."""

    found: dict[str, str] = field(default_factory=dict)
    ended: threading.Event = field(default_factory=threading.Event)
    ended_at_s: float = 0.0


class Readiness:
    """Looks whether a platform can do its work."""

    def __init__(self, db: Database, blobs: BlobStore, clock: Clock) -> None:
        self._db = db
        self._blobs = blobs
        self._clock = clock
        self._checks: Mapping[str, Callable[[], str]] = {
            "database": self._database,
            "migrations": self._migrations,
            "blobs": self._stored_files,
        }
        self._choosing = threading.Lock()
        self._look: _Look | None = None
        self._told: dict[str, str] = {}

    def problems(self, *, within_s: float = ANSWER_WITHIN_S) -> dict[str, str]:
        """Return what is wrong by what was checked, empty where nothing is."""
        look = self._newest()
        look.ended.wait(within_s)
        return {name: look.found.get(name, "it does not answer") for name in self._checks}

    def _newest(self) -> _Look:
        with self._choosing:
            look = self._look
            if look is None or (look.ended.is_set() and self._clock.monotonic() - look.ended_at_s >= FRESH_S):
                look = self._look = _Look()
                threading.Thread(target=self._do, args=(look,), name="osmosis-readiness", daemon=True).start()
            return look

    def _do(self, look: _Look) -> None:
        try:
            for name, check in self._checks.items():
                look.found[name] = self._outcome(name, check)
        finally:
            look.ended_at_s = self._clock.monotonic()
            look.ended.set()

    def _outcome(self, name: str, check: Callable[[], str]) -> str:
        try:
            problem, details = check(), ""
        except _FAILURES as error:
            problem = "they cannot be kept" if name == "blobs" else "it cannot be read"
            details = error.message if isinstance(error, OsmosisError) else f"{type(error).__name__}: {error}"
        if problem != self._told.get(name, ""):
            if problem:
                logger.warning("not ready, %s: %s%s", name, problem, f" ({details})" if details else "")
            else:
                logger.warning("ready again: %s", name)
            self._told[name] = problem
        return problem

    def _database(self) -> str:
        with self._db.session() as session:
            is_standby = not self._db.is_sqlite and session.scalar(text("SELECT pg_is_in_recovery()"))
            session.execute(text("SELECT 1"))
        return "it takes no writes" if is_standby else ""

    def _migrations(self) -> str:
        with self._db.session() as session:
            found = session.scalar(text("SELECT version_num FROM alembic_version"))
        wanted = newest_revision()
        return "" if found == wanted else f"its schema is {found}, and this release works with {wanted}"

    def _stored_files(self) -> str:
        self._blobs.check()
        return ""
