"""Retries for calls that are safe to repeat, with fixed waits that the server may extend; implemented by stamina."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from osmosis_ai.errors import OsmosisError

# stamina logs every scheduled retry; without a handler, Python prints these records to stderr.
logging.getLogger("stamina").addHandler(logging.NullHandler())

T = TypeVar("T")
LONGEST_REQUESTED_WAIT_S = 60.0
AT_LEAST_S = 20.0
"""The minimum time limit for a body that delays other requests, in seconds."""
SLOWEST_BYTES_S = 64 << 10
"""The minimum average rate for large bodies, in bytes per second: 8 MiB may take two and a half minutes in all."""


def longest_transfer_s(size: int) -> float:
    """Return the time limit for ``size`` bytes on a slow line, in seconds. Silence has the connection's own timeout."""
    return AT_LEAST_S + size / SLOWEST_BYTES_S


class Transient(Exception):
    """A failure that a retry may fix; ``error`` is raised if no attempt is left."""

    def __init__(self, error: OsmosisError, *, retry_after_s: float | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Waits:
    """The seconds between attempts; there is one attempt more than there are waits."""

    seconds: tuple[float, ...] = ()
    lasting_s: float = 0.0

    def lasting(self, seconds: float) -> Waits:
        """Return these waits with the last one repeated until ``seconds`` (monotonic clock) have passed."""
        return replace(self, lasting_s=seconds)

    def run(self, attempt: Callable[[], T]) -> T:
        """Call ``attempt`` until it returns, raises anything but :class:`Transient`, or no attempt is left."""
        import stamina

        left, until = iter(self.seconds), time.monotonic() + self.lasting_s

        def wait_after(failure: Exception) -> float | bool:
            wait_s = next(left, None)
            if wait_s is None and self.seconds and time.monotonic() < until:
                wait_s = self.seconds[-1]
            if not isinstance(failure, Transient) or wait_s is None:
                return False
            requested_s = failure.retry_after_s or 0.0
            return requested_s <= LONGEST_REQUESTED_WAIT_S and max(wait_s, requested_s)

        try:
            for trial in stamina.retry_context(on=wait_after, attempts=None, timeout=None):
                with trial:
                    return attempt()
        except Transient as failure:
            raise failure.error from None
        raise AssertionError("stamina yields at least one attempt")


@dataclass(frozen=True)
class Retry:
    """The failures after which a REST API call may be repeated."""

    waits: Waits
    statuses: frozenset[int] = frozenset()
    after_timeouts: bool = False
    after_nonsense: bool = False


_BUSY_OR_BROKEN = frozenset({429, *range(500, 600)})
NEVER = Retry(Waits())
READING = Retry(Waits((0.2, 0.8)), frozenset({429, 502, 503, 504}))
REPEATING = READING
"""For idempotent calls, which set a state instead of triggering an action."""
COMPLETING = Retry(Waits((1.0, 2.0, 4.0, 8.0)), _BUSY_OR_BROKEN, after_timeouts=True, after_nonsense=True)
SIGNING = Retry(Waits((0.5, 1.0)), _BUSY_OR_BROKEN, after_timeouts=True, after_nonsense=True)
