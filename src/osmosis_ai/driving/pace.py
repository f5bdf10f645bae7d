"""How many rollouts this machine can have in flight: fewer while it is late, more again when it is not.

An agent's client gives up on its own clock, however late the event loops between it and the model
are. So a machine that is late gets less to do before its rollouts fail, and nobody has to know
beforehand how many it can take.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from osmosis_ai.event_loop import LATE_S

SUSTAINED_S = 2.0
"""How long a machine is late, or is not, before that counts, in seconds."""

CUT = 0.75
GROWTH = 0.1

LEAST = 8
"""A machine that is late with this few in flight, or a quarter of the ceiling, is kept busy by others: fewer
would make the run crawl and the machine no quicker."""


class Pace:
    """The number of rollouts that may be in flight, between :data:`LEAST` and a ceiling.

    Args:
        ceiling: what the user and the rollout's server allow.
        clock: seconds, monotonic.
    """

    def __init__(self, ceiling: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.ceiling = ceiling
        self.allowed = ceiling
        self._least = max(1, min(LEAST, ceiling // 4))
        self._clock = clock
        self._late = False
        self._since = clock()

    @property
    def narrowed(self) -> bool:
        """Whether the machine holds the run back."""
        return self.allowed < self.ceiling

    def observe(self, lag_s: float) -> bool:
        """Take note of how late the machine is now; return whether :attr:`allowed` has changed."""
        now, before = self._clock(), self.allowed
        late = lag_s >= LATE_S
        if late is not self._late:
            self._late, self._since = late, now
        elif now - self._since >= SUSTAINED_S:
            self._since = now
            if late:
                self.allowed = max(self._least, math.floor(self.allowed * CUT))
            else:
                self.allowed = min(self.ceiling, self.allowed + max(1, math.floor(self.allowed * GROWTH)))
        return self.allowed != before
