"""Limit concurrent store requests, and stop sending them while the store is unresponsive.

Each request holds one of the platform's few threads until it is answered. After an unanswered request, others are
refused for a while, except for one probe. A thread that reads a blob while writing another uses its existing slot.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from osmosis_ai.platform.blobs.store import BlobError, BlobStoreBusy, BlobStoreSilent

AT_ONCE = 16
"""Requests under way: half of the threads that serve (``platform/app.py``)."""
AGAIN_AFTER_S = 5.0
"""How long a store that did not answer is left alone."""
_TURN_WITHIN_S = 5.0


class _OwnTurn(threading.local):
    """Whether this thread has a turn."""

    is_taken = False


class StoreGate:
    """Lets requests through to one store."""

    def __init__(self, shown: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._shown = shown
        self._clock = clock
        self._turns = threading.BoundedSemaphore(AT_ONCE)
        self._own = _OwnTurn()
        self._deciding = threading.Lock()
        self._silent: BlobStoreSilent | None = None
        self._ask_at_s = 0.0

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Let one request through, and see how it ends."""
        if self._own.is_taken:
            # Refused here, the one that finds out would never ask, nor anybody else.
            with self._hearing():
                yield
            return
        self._require_voice()
        if not self._turns.acquire(timeout=_TURN_WITHIN_S):
            raise BlobStoreBusy(
                f"{self._shown} is slow to answer, and too many wait for it; ask again later."
            )
        self._own.is_taken = True
        try:
            with self._hearing():
                yield
        finally:
            self._own.is_taken = False
            self._turns.release()

    @contextmanager
    def _hearing(self) -> Iterator[None]:
        try:
            yield
        except BlobStoreSilent as error:
            self._heard(error)
            raise
        except BlobError:
            # It answers, whatever it says.
            self._heard(None)
            raise
        else:
            self._heard(None)

    def _require_voice(self) -> None:
        with self._deciding:
            if self._silent is None:
                return
            now_s = self._clock()
            if now_s < self._ask_at_s:
                raise BlobStoreSilent(self._silent.message)
            # This one finds out, the others go on waiting.
            self._ask_at_s = now_s + AGAIN_AFTER_S

    def _heard(self, silent: BlobStoreSilent | None) -> None:
        with self._deciding:
            self._silent, self._ask_at_s = silent, self._clock() + AGAIN_AFTER_S
