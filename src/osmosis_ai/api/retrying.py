"""Trying again, where that is safe: the waits are fixed, the server may ask for longer ones.

What a call does on failure is its own business; here is only how often and after how long. An attempt says
"try me again" by raising :class:`Transient` around the error that ends the call when no attempt is left.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import TypeVar

from osmosis_ai.errors import OsmosisError

T = TypeVar("T")
Sleep = Callable[[float], None]
LONGEST_REQUESTED_WAIT_S = 60.0


class Transient(Exception):
    """A failure that may be gone at the next attempt; ``error`` is what to raise when there is none."""

    def __init__(self, error: OsmosisError, *, retry_after_s: float | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Waits:
    """The seconds between attempts; one attempt more than there are waits."""

    seconds: tuple[float, ...] = ()

    def run(self, attempt: Callable[[], T], *, sleep: Sleep = time.sleep) -> T:
        """Call ``attempt`` until it returns, raises anything but :class:`Transient`, or was tried often enough.

        Raises:
            OsmosisError: the error of the last attempt; at once when the server asks for a longer wait
                than a person would sit through.
        """
        for wait in self.seconds:
            try:
                return attempt()
            except Transient as failure:
                requested = failure.retry_after_s or 0.0
                if requested > LONGEST_REQUESTED_WAIT_S:
                    raise failure.error from None
                sleep(max(wait, requested))
        try:
            return attempt()
        except Transient as failure:
            raise failure.error from None


@dataclass(frozen=True)
class Retry:
    """When a call of the REST API may be sent again.

    Args:
        waits: the pauses; none means one attempt.
        statuses: the HTTP statuses after which to try again.
        after_timeouts: whether also when no reply came in time.
        after_nonsense: whether also when a success reply could not be read.
    """

    waits: Waits
    statuses: frozenset[int] = frozenset()
    after_timeouts: bool = False
    after_nonsense: bool = False


_BUSY_OR_BROKEN = frozenset({429, *range(500, 600)})
NEVER = Retry(Waits())
READING = Retry(Waits((0.2, 0.8)), frozenset({429, 502, 503, 504}))
COMPLETING = Retry(Waits((1.0, 2.0, 4.0, 8.0)), _BUSY_OR_BROKEN, after_timeouts=True, after_nonsense=True)
SIGNING = Retry(Waits((0.5, 1.0)), _BUSY_OR_BROKEN, after_timeouts=True, after_nonsense=True)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the wait in seconds that ``Retry-After`` asks for, given as seconds or as a date."""
    value = headers.get("retry-after", "").strip()
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(value) - datetime.now(timezone.utc)).total_seconds()
        except (TypeError, ValueError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
