"""Clock, replaceable in tests.

``now`` may jump when the machine's clock is set; durations use ``monotonic``.
"""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """Return the moment, in UTC."""

    def monotonic(self) -> float:
        """Return seconds since some fixed moment; never runs backwards."""


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(timezone.utc)

    def monotonic(self) -> float:
        return time.monotonic()
