"""How many requests a platform has answered, and how fast: by words of a few values each, none of a client's choice."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter

BUCKETS_S = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)
"""Upper bounds of the histogram of how long a reply took to begin."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestCounts:
    """Requests since the start of the platform; a reply counts when it begins."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_status: Counter[tuple[str, str]] = Counter()
        self._by_bucket = [0] * (len(BUCKETS_S) + 1)
        self._sum_s = 0.0
        self.under_way = 0

    def begun(self) -> None:
        """Count a request that is under way from now on."""
        with self._lock:
            self.under_way += 1

    def ended(self) -> None:
        """Count it no more."""
        with self._lock:
            self.under_way -= 1

    def replied(self, method: str, status: int, seconds: float) -> None:
        """Count a reply that begins ``seconds`` after its request."""
        with self._lock:
            self._by_status[method if method in _METHODS else "other", f"{status // 100}xx"] += 1
            self._by_bucket[bisect_left(BUCKETS_S, seconds)] += 1
            self._sum_s += seconds

    def totals(self) -> dict[tuple[str, str], int]:
        """Return how many replies there were by method and class of status (``2xx``)."""
        with self._lock:
            return dict(self._by_status)

    def durations(self) -> tuple[list[int], float]:
        """Return how many replies took at most each of :data:`BUCKETS_S`, then how many there are; and all seconds."""
        with self._lock:
            running, cumulative = 0, []
            for count in self._by_bucket:
                running += count
                cumulative.append(running)
            return cumulative, self._sum_s
