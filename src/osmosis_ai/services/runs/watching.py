"""A run of the platform, looked at until it has ended; a platform that is away for a while is waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from osmosis_ai.api.http_errors import PlatformError

PATIENCE_S = 300.0
"""How long a platform may be away while a run of its own is watched."""


class Seen(Protocol):
    """A run at one moment."""

    @property
    def ended(self) -> bool:
        """Whether the run will not change any more."""
        ...


SeenT = TypeVar("SeenT", bound=Seen)


def watch(
    look: Callable[[], SeenT],
    *,
    pause: Callable[[], None],
    tell: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[SeenT]:
    """Yield how a run stands until it has ended.

    Args:
        look: asks the platform how the run stands.
        pause: waits between two looks.
        tell: told, once, when the platform does not answer and is waited for.
        clock: seconds.

    Raises:
        PlatformError: what ``look`` raised, when waiting does not help or :data:`PATIENCE_S` were not enough.
    """
    answered = clock()
    waiting = False
    while True:
        try:
            seen = look()
        except PlatformError as error:
            if not is_away(error) or clock() - answered > PATIENCE_S:
                raise
            if not waiting:
                tell(f"{error.message}; waiting for the platform to come back")
            waiting = True
        else:
            answered, waiting = clock(), False
            yield seen
            if seen.ended:
                return
        pause()


def is_away(error: PlatformError) -> bool:
    """Tell whether the same call may well succeed a while later."""
    return error.status is None or error.status >= 500 or error.status == 429
