"""Follow a growing log and return every line once, independent of the cursor format.

Cursors lead only to older lines. Each poll therefore reads back from the newest line to the last known ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.models.base import LogEntry, LogPage
from osmosis_ai.ui.numbers import amount

FIRST_LINES = 50
_PAGE = 200
_REMEMBERED = 200
LEVELS = ("debug", "info", "warning", "error", "critical")
"""In ascending order of severity."""
_OTHER_WORDS = {"trace": "debug", "notice": "info", "warn": "warning", "err": "error", "fatal": "critical"}
"""Aliases of levels."""
_MOST_PAGES = 50


def at_level(entry: LogEntry, level: str | None) -> bool:
    """Whether a line has at least ``level``; lines without a known level count as ``info``."""
    if level is None:
        return True
    own = _OTHER_WORDS.get(word := (entry.level or "").lower(), word)
    return (LEVELS.index(own) if own in LEVELS else LEVELS.index("info")) >= LEVELS.index(level)


def none_of_level(level: str, looked_through: int) -> str:
    """Return the message that none of the lines has the level or a higher one."""
    return f"No line of level {level} or above: {amount(looked_through, 'line')} looked through."


def page_of_level(
    fetch: Callable[[int, str | None], LogPage], *, limit: int, cursor: str | None, level: str | None
) -> tuple[LogPage, int]:
    """Return at most ``limit`` lines of at least a level, older than ``cursor``, and how many lines were searched.

    ``fetch`` returns a page of older lines, given the page size and the cursor. Up to 50 pages are searched.
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
    """Polls a log for new lines; ``fetch`` returns a page of older ones, given the page size and the cursor."""

    def __init__(self, fetch: Callable[[int, str | None], LogPage], *, first: int = FIRST_LINES) -> None:
        self._fetch = fetch
        self._first: int | None = first
        self.recent: list[LogEntry] = []

    def news(self) -> list[LogEntry]:
        """Return the lines since the last call, oldest first."""
        if self._first is not None:
            new = self._fetch(self._first, None).logs
            self._first = None
        else:
            new = self._since_last_look()
        self.recent = [*self.recent, *new][-_REMEMBERED:]
        return new

    def _since_last_look(self) -> list[LogEntry]:
        found: list[LogEntry] = []
        cursor: str | None = None
        used: set[str] = set()
        while True:
            page = self._fetch(_PAGE, cursor)
            found = [*page.logs, *found]
            start = _end_of_known(found, self.recent)
            if start is not None:
                return found[start:]
            cursor = page.next_cursor
            if cursor is None:
                return found
            if cursor in used:
                raise PlatformError("The platform returned the same cursor of the log twice.")
            used.add(cursor)


def _end_of_known(found: list[LogEntry], known: list[LogEntry]) -> int | None:
    """Return where new lines begin in ``found``, after ``known``; None if the two do not overlap."""
    for end in range(len(found), 0, -1):
        length = min(end, len(known))
        if length and found[end - length : end] == known[-length:]:
            return end
    return None


def follow_log(
    follower: LogFollower, *, ended: Callable[[], bool], pause: Callable[[], None]
) -> Iterator[LogEntry]:
    """Yield new lines until the log's owner has ``ended`` and its last line has been yielded."""
    while True:
        # Check before reading, so that the last read includes everything that was written before the end.
        last = ended()
        yield from follower.news()
        if last:
            return
        pause()
