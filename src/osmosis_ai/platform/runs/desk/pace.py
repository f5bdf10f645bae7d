"""How often workers say something: as often as a page wants to see it with a few of them, seldom enough with a thousand."""

from __future__ import annotations

import threading
from datetime import timedelta

from osmosis_ai.platform.clock import Clock

SHORTEST_S = 0.25
LONGEST_S = 10.0
_EXCHANGES_PER_S = 100.0
_FORGOTTEN_AFTER = 2
"""Terms."""


class SyncPace:
    """Counts the runs that are heard of.

    Args:
        clock: tells how long ago.
        term: how long a lease lasts: whoever is heard of less often loses it.
    """

    def __init__(self, clock: Clock, term: timedelta) -> None:
        self._clock = clock
        self._term_s = term.total_seconds()
        self._heard: dict[str, float] = {}
        self._lock = threading.Lock()

    def next_s(self, run_id: str | None = None) -> float:
        """Return when to come again, in seconds; ``run_id`` is heard of now."""
        now = self._clock.monotonic()
        with self._lock:
            if run_id is not None:
                # The one that was heard of longest ago is the first.
                self._heard.pop(run_id, None)
                self._heard[run_id] = now
            while self._heard:
                first = next(iter(self._heard))
                if now - self._heard[first] <= _FORGOTTEN_AFTER * self._term_s:
                    break
                del self._heard[first]
            asked = len(self._heard) / _EXCHANGES_PER_S
        return min(max(asked, SHORTEST_S), LONGEST_S, self._term_s / 3)
