"""Read whole lists page by page, even if the server adds items meanwhile or never ends the list."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.models.base import LogPage, Page
from osmosis_ai.api.models.eval_runs import EvalSample, EvalSamplePage
from osmosis_ai.api.resources import LARGEST_LOG_PAGE, LARGEST_PAGE

P = TypeVar("P", bound=Page)
MOST_ITEMS = 1_000_000


def iterate_pages(
    fetch: Callable[[int, int], P], count: Callable[[P], Sequence[object]], *, start: int = 0
) -> Iterator[P]:
    """Yield pages until the last one."""
    offset, seen = start, 0
    while True:
        page = fetch(LARGEST_PAGE, offset)
        items = len(count(page))
        if items:
            yield page
        seen += items
        if page.next_offset is None or not items:
            return
        if page.next_offset <= offset or seen >= MOST_ITEMS:
            raise PlatformError(
                f"the platform's list does not end: after offset {offset} it continues at {page.next_offset}.",
                hint="ask for single pages with `--limit`",
            )
        offset = page.next_offset


def iterate_log_pages(
    fetch: Callable[[int, str | None], LogPage],
    *,
    cursor: str | None = None,
    page_size: int = LARGEST_LOG_PAGE,
) -> Iterator[LogPage]:
    """Yield log pages in the direction of ``fetch`` until there are no more."""
    used: set[str] = set() if cursor is None else {cursor}
    while True:
        page = fetch(page_size, cursor)
        yield page
        cursor = page.next_cursor
        if cursor is None:
            return
        if cursor in used:
            raise PlatformError("the platform's log goes in circles: it gave the same cursor twice.")
        used.add(cursor)


def iterate_samples(fetch: Callable[[str | None], EvalSamplePage]) -> Iterator[EvalSample]:
    """Yield a run's samples; ends at a page without a cursor or with one that repeats."""
    cursor: str | None = None
    seen: set[str | None] = {None}
    while True:
        page = fetch(cursor)
        yield from page.samples
        cursor = page.next_cursor
        if cursor in seen or not page.samples:
            return
        seen.add(cursor)
