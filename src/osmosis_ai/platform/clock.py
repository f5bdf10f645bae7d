"""What time it is: asked in one place, so that tests decide it.

``now`` may jump when somebody sets the machine's clock; what measures a duration uses ``monotonic``.
"""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def now(self) -> datetime:
        """Return the moment, in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds since some fixed moment; never runs backwards."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        """Return the moment, in UTC."""
        return datetime.now(timezone.utc)

    def monotonic(self) -> float:
        """Return seconds since some fixed moment; never runs backwards."""
        return time.monotonic()
