"""Periodic maintenance chores. A failing chore does not delay the others and is retried in the next round.

A failure is logged once, and again when its reason changes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from osmosis_ai.platform.blobs.store import BlobStoreError
from osmosis_ai.platform.db.engine import DatabaseBusyError, StorageFullError

logger = logging.getLogger("osmosis_ai.platform.maintenance")

EVERY_S = 600.0
"""The time between two rounds."""


class Maintenance:
    """Runs all maintenance tasks in a thread, every :data:`EVERY_S` seconds."""

    def __init__(self, chores: Mapping[str, Callable[[], None]]) -> None:
        self._chores = chores
        self._logged: dict[str, str] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._work, name="osmosis-maintenance", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop after the current task."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while not self._stopping.is_set():
            for name, chore in self._chores.items():
                if not self._stopping.is_set():
                    self._do(name, chore)
            self._stopping.wait(EVERY_S)

    def _do(self, name: str, chore: Callable[[], None]) -> None:
        logged = self._logged.pop(name, None)
        try:
            chore()
        except (BlobStoreError, DatabaseBusyError, StorageFullError, OSError) as error:
            self._logged[name] = str(error)
            if str(error) != logged:
                logger.error("%s could not be tidied up now: %s", name, error)
        except Exception:
            # A bug in one chore must not end the thread.
            logger.exception("%s could not be tidied up now", name)
