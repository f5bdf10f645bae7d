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
"""Between two rounds, unless something else is said."""


class Maintenance:
    """Does chores in a thread of its own: all at once, and again when some time has passed."""

    def __init__(self, chores: Mapping[str, Callable[[], None]], *, every_s: float = EVERY_S) -> None:
        self._chores = dict(chores)
        self._every_s = every_s
        self._said: dict[str, str] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._work, name="osmosis-maintenance", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End; a chore under way is waited for."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while not self._stopping.is_set():
            for name, chore in self._chores.items():
                if not self._stopping.is_set():
                    self._do(name, chore)
            self._stopping.wait(self._every_s)

    def _do(self, name: str, chore: Callable[[], None]) -> None:
        said = self._said.pop(name, None)
        try:
            chore()
        except (BlobStoreError, DatabaseBusyError, StorageFullError, OSError) as error:
            self._said[name] = str(error)
            if str(error) != said:
                logger.error("%s could not be tidied up now: %s", name, error)
        except Exception:
            # The edge of this thread, which the next round needs.
            logger.exception("%s could not be tidied up now", name)
