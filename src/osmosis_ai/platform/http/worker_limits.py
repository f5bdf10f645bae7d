"""Limits on waiting workers and on claims per token; a refused worker gets a retry delay."""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable

COME_AGAIN_S = 10.0
"""Retry delay for workers that cannot wait."""
_MOST_KNOWN = 4096


class WorkerLimits:
    """Counts the waits of one application, and the claims of each token."""

    def __init__(
        self,
        *,
        most_waiting: int = 2048,
        most_of_token: int = 512,
        claims_per_s: float = 50.0,
        claims_at_once: int = 500,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.most_waiting = most_waiting
        self.most_of_token = most_of_token
        self.claims_per_s = claims_per_s
        self.claims_at_once = claims_at_once
        self._monotonic = monotonic
        self._waiting: Counter[str] = Counter()
        # When each token would have claimed its last one, had it never claimed faster than in the long run.
        self._claimed: OrderedDict[str, float] = OrderedDict()

    def claim_too_soon_s(self, token: str) -> float:
        """Count a claim, and return 0; or in how many seconds it may be made."""
        now = self._monotonic()
        burst_s = self.claims_at_once / self.claims_per_s
        due = max(self._claimed.get(token, -math.inf), now - burst_s) + 1 / self.claims_per_s
        if due > now:
            return due - now
        self._claimed[token] = due
        self._claimed.move_to_end(token)
        if len(self._claimed) > _MOST_KNOWN:
            self._claimed.popitem(last=False)
        return 0.0

    def may_wait(self, token: str | None = None) -> bool:
        """Tell whether one more exchange may wait; ``token``: whose claim it is."""
        if token is not None and self._waiting[token] >= self.most_of_token:
            return False
        return self._waiting.total() < self.most_waiting

    def waits(self, token: str) -> None:
        """Count an exchange that waits from now on."""
        self._waiting[token] += 1

    def waits_no_more(self, token: str) -> None:
        """Count it no more."""
        self._waiting[token] -= 1
        if self._waiting[token] <= 0:
            del self._waiting[token]
