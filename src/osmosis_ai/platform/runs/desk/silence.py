"""A database that did not answer for a while: no lease could be kept meanwhile, so none is to expire for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError

from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import DatabaseBusyError
from osmosis_ai.platform.runs.leases import Leases

LONG_S = 10.0
"""Of a silence after which every owner is given a whole term."""


class DatabaseSilence:
    """Notices from what is asked of a database whether it answers.

    Args:
        clock: measures, by its monotonic seconds.
        leases: given a new term after a long silence, before anything else is answered.
    """

    def __init__(self, clock: Clock, leases: Leases) -> None:
        self._clock = clock
        self._leases = leases
        self._since: float | None = None
        self._lock = threading.Lock()

    @contextmanager
    def noticed(self) -> Iterator[None]:
        """Ask something of the database; the first that is answered after a long silence gives owners their new term first."""
        try:
            self._break()
            yield
        except (DatabaseBusyError, DBAPIError):
            with self._lock:
                if self._since is None:
                    self._since = self._clock.monotonic()
            raise

    def _break(self) -> None:
        with self._lock:
            if self._since is None:
                return
            if self._clock.monotonic() - self._since >= LONG_S:
                self._leases.renew_all()
            self._since = None
