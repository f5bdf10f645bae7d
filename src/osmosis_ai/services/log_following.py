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


LEVELS = ("debug", "info", "warning", "error", "critical")
"""By rising weight."""
_OTHER_WORDS = {"trace": "debug", "notice": "info", "warn": "warning", "err": "error", "fatal": "critical"}
"""What others call these levels."""
_MOST_PAGES = 50


def at_level(entry: LogEntry, level: str | None) -> bool:
    """Tell whether a line is of ``level`` or above; one without a level that we know is of ``info``."""
    if level is None:
        return True
    own = _OTHER_WORDS.get(word := (entry.level or "").lower(), word)
    return (LEVELS.index(own) if own in LEVELS else LEVELS.index("info")) >= LEVELS.index(level)


def none_of_level(level: str, looked_through: int) -> str:
    """Return the sentence about a log that has no line of a level, nor one above, among so many."""
    from osmosis_ai.evaluation.result_words import amount

    return f"No line of level {level} or above: {amount(looked_through, 'line')} looked through."


def page_of_level(
    fetch: Callable[[int, str | None], LogPage], *, limit: int, cursor: str | None, level: str | None
) -> tuple[LogPage, int]:
    """Return a page with lines of a level and above, for which up to 50 pages are looked through.

    Args:
        fetch: returns a page towards older lines; called with the page size and the cursor.
        limit: lines at most.
        cursor: where to begin; None for the newest lines.
        level: the least; None for all lines.

    Returns:
        The page, and how many lines were looked through for it.
    """
    page = fetch(limit, cursor)
    looked_through = len(page.logs)
    if level is None:
        return page, looked_through
    found = [entry for entry in page.logs if at_level(entry, level)]
    following = page.next_cursor
    for _ in range(_MOST_PAGES - 1):
        if following is None:
            break
        page = fetch(limit, following)
        looked_through += len(page.logs)
        older = [entry for entry in page.logs if at_level(entry, level)]
        if len(found) + len(older) > limit:
            break
        found, following = older + found, page.next_cursor
    return page.model_copy(update={"logs": found, "next_cursor": following}), looked_through


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
