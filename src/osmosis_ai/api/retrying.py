"""Trying again, where that is safe: the waits are fixed, the server may ask for longer ones, stamina does it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from osmosis_ai.errors import OsmosisError

# stamina reports every scheduled retry to its logger; without a handler Python prints it to stderr.
logging.getLogger("stamina").addHandler(logging.NullHandler())

T = TypeVar("T")
LONGEST_REQUESTED_WAIT_S = 60.0
AT_LEAST_S = 20.0
"""How long any body may take, where somebody waits behind it."""
SLOWEST_BYTES_S = 64 << 10
"""How much of a large one comes in each second at least, on the whole: 8 MiB in two and a half minutes."""


def longest_transfer_s(size: int) -> float:
    """Return how long ``size`` bytes may take on a slow line, in seconds; silence alone is a connection's own timeout."""
    return AT_LEAST_S + size / SLOWEST_BYTES_S


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
    lasting_s: float = 0.0

    def lasting(self, seconds: float) -> Waits:
        """Return the same waits, the last one repeated for so long, by this machine's monotonic clock."""
        return replace(self, lasting_s=seconds)

    def run(self, attempt: Callable[[], T]) -> T:
        """Call ``attempt`` until it returns, raises anything but :class:`Transient`, or was tried often
        enough."""
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
    """When a call of the REST API may be sent again."""

    waits: Waits
    statuses: frozenset[int] = frozenset()
    after_timeouts: bool = False
    after_nonsense: bool = False


_BUSY_OR_BROKEN = frozenset({429, *range(500, 600)})
NEVER = Retry(Waits())
READING = Retry(Waits((0.2, 0.8)), frozenset({429, 502, 503, 504}))
REPEATING = READING
"""For what says how something is to be, and not what is to happen: the second time changes nothing."""
COMPLETING = Retry(Waits((1.0, 2.0, 4.0, 8.0)), _BUSY_OR_BROKEN, after_timeouts=True, after_nonsense=True)
SIGNING = Retry(Waits((0.5, 1.0)), _BUSY_OR_BROKEN, after_timeouts=True, after_nonsense=True)
