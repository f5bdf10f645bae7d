"""Choose the sync interval of workers: short with a few of them, longer with many.

The number of active runs gives the interval for one exchange per round. The measured load extends it: a round of
a young run takes three exchanges, and a platform with less than a core is slow with any.
"""

from __future__ import annotations

import threading
from datetime import timedelta

from osmosis_ai.platform.clock import Clock

SHORTEST_S = 0.5
LONGEST_S = 10.0
EXCHANGES_PER_S = 100.0
"""How many are served in the long run, of all workers together."""
LATE_S = 0.25
"""How long an exchange waits for a thread when the platform has as much to do as it can, in seconds."""
_WINDOW_S = 2.0
_MOST_STRETCH = 40.0
_FORGOTTEN_AFTER = 2
"""Terms."""


class SyncPace:
    """Counts active runs and exchanges, and measures their delay."""

    def __init__(self, clock: Clock, term: timedelta) -> None:
        self._clock = clock
        self._term_s = term.total_seconds()
        self._heard: dict[str, float] = {}
        self._lock = threading.Lock()
        self._stretch = 1.0
        self._since = clock.monotonic()
        self._served = 0
        self._waited_s = 0.0

    def note_wait(self, seconds: float) -> None:
        """Take note of how long an exchange that is served now has waited for that."""
        now = self._clock.monotonic()
        with self._lock:
            self._served += 1
            self._waited_s += max(0.0, seconds)
            if now - self._since >= _WINDOW_S:
                self._follow(now)

    def next_s(self, run_id: str | None = None) -> float:
        """Return the seconds until the next sync; ``run_id`` has just been seen."""
        now = self._clock.monotonic()
        with self._lock:
            if run_id is not None:
                # The first entry is the run seen least recently.
                self._heard.pop(run_id, None)
                self._heard[run_id] = now
            while self._heard:
                first = next(iter(self._heard))
                if now - self._heard[first] <= _FORGOTTEN_AFTER * self._term_s:
                    break
                del self._heard[first]
            asked = self._stretch * max(len(self._heard) / EXCHANGES_PER_S, SHORTEST_S)
        return min(asked, LONGEST_S, self._term_s / 3)

    def _follow(self, now: float) -> None:
        """Stretch the pace where more was served than is meant to be, or late; let go of that where less was."""
        rate = self._served / (now - self._since)
        load = max(rate / EXCHANGES_PER_S, self._waited_s / self._served / LATE_S)
        self._stretch = min(max(self._stretch * min(max(load, 0.8), 2.0), 1.0), _MOST_STRETCH)
        self._since, self._served, self._waited_s = now, 0, 0.0
