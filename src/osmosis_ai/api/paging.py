"""Read whole lists page by page, even if the server adds items meanwhile or never ends the list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.models.base import Page
from osmosis_ai.api.models.eval_runs import EvalSample, EvalSamplePage

P = TypeVar("P", bound=Page[Any])
LARGEST_PAGE = 50
MOST_ITEMS = 1_000_000


def iterate_pages(fetch: Callable[[int, int], P]) -> Iterator[P]:
    """Yield all pages; ``fetch`` takes the page size and the offset."""
    offset = seen = 0
    while True:
        page = fetch(LARGEST_PAGE, offset)
        yield page
        seen += len(page.items)
        if page.next_offset is None or not page.items:
            return
        if page.next_offset <= offset or seen >= MOST_ITEMS:
            raise PlatformError(
                f"List of the platform does not end (offset {offset} continues at {page.next_offset}).",
                hint="use --limit",
            )
        offset = page.next_offset


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
