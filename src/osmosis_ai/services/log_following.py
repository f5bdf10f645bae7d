"""A log that grows, read from its end: every line once, whatever the platform's cursors are made of.

A cursor says where to go on towards older lines; nothing says what is new. So each look reads back from the
newest line until it meets the lines seen last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from osmosis_ai.api.wire.base import LogEntry, LogPage

FIRST_LINES = 50
_PAGE = 200
_REMEMBERED = 200


class LogFollower:
    """Reads one log again and again.

    Args:
        fetch: returns a page towards older lines; called with the page size and the cursor.
        first: how many lines the first look gives.
    """

    def __init__(self, fetch: Callable[[int, str | None], LogPage], *, first: int = FIRST_LINES) -> None:
        self._fetch = fetch
        self._first: int | None = first
        self.recent: list[LogEntry] = []

    def news(self) -> list[LogEntry]:
        """Return the lines that no look has given yet, the oldest first.

        Raises:
            PlatformError: as every call; also when the log goes in circles.
        """
        if self._first is not None:
            new = self._fetch(self._first, None).logs
            self._first = None
        else:
            new = self._since_last_look()
        self.recent = [*self.recent, *new][-_REMEMBERED:]
        return new

    def _since_last_look(self) -> list[LogEntry]:
        from osmosis_ai.api.paging import iterate_log_pages

        found: list[LogEntry] = []
        for page in iterate_log_pages(self._fetch, page_size=_PAGE):
            found = [*page.logs, *found]
            start = _end_of_known(found, self.recent)
            if start is not None:
                return found[start:]
        return found


def _end_of_known(found: list[LogEntry], known: list[LogEntry]) -> int | None:
    """Return where in ``found`` the lines begin that follow ``known``; None when the two do not meet."""
    for end in range(len(found), 0, -1):
        length = min(end, len(known))
        if length and found[end - length : end] == known[-length:]:
            return end
    return None


def follow_log(
    follower: LogFollower, *, ended: Callable[[], bool], pause: Callable[[], None]
) -> Iterator[LogEntry]:
    """Yield lines as they come, until the log's owner has ``ended`` and its last line is out."""
    while True:
        # Asked first: what is written before the end is then in the lines read after it.
        last = ended()
        yield from follower.news()
        if last:
            return
        pause()
