"""A database that took nothing for a while: no lease could be kept meanwhile, so none is to expire for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError

from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import DatabaseBusyError, StorageFullError
from osmosis_ai.platform.runs.leases import Leases

LONG_S = 10.0
"""Of a silence after which every owner is given a whole term."""
_TURN_WITHIN_S = 5.0
"""How long other threads wait for the one that renews the leases."""
_FAILURES = (DatabaseBusyError, StorageFullError, DBAPIError)


class DatabaseSilence:
    """Notices from what is asked of a database whether it takes anything."""

    def __init__(self, clock: Clock, leases: Leases) -> None:
        self._clock = clock
        self._leases = leases
        self._since: float | None = None
        self._noting = threading.Lock()
        self._renewing = threading.Lock()

    @contextmanager
    def noticed(self) -> Iterator[None]:
        """Write something; the first that is taken after a long silence gives owners their new term first."""
        with self.noticed_by_reading():
            self._give_terms()
            yield
        with self._noting:
            self._since = None

    @contextmanager
    def noticed_by_reading(self) -> Iterator[None]:
        """Read something, which tells when a silence began and never that it is over: what is read may be written by nobody."""
        asked_at = self._clock.monotonic()
        try:
            yield
        except _FAILURES:
            with self._noting:
                self._since = asked_at if self._since is None else min(self._since, asked_at)
            raise

    def _give_terms(self) -> None:
        if not self._was_long():
            return
        if not self._renewing.acquire(timeout=_TURN_WITHIN_S):
            raise DatabaseBusyError("the platform's database does not answer; ask again in a moment.")
        try:
            if self._was_long():
                self._leases.renew_all()
                with self._noting:
                    self._since = None
        finally:
            self._renewing.release()

    def _was_long(self) -> bool:
        with self._noting:
            return self._since is not None and self._clock.monotonic() - self._since >= LONG_S
