"""Read whole lists page by page, even if the server adds items meanwhile or never ends the list."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.models.base import Page
from osmosis_ai.api.models.eval_runs import EvalSample, EvalSamplePage

P = TypeVar("P", bound=Page)
T = TypeVar("T")
LARGEST_PAGE = 50
MOST_ITEMS = 1_000_000


def iterate_items(fetch: Callable[[int, int], P], items_of: Callable[[P], Sequence[T]]) -> Iterator[T]:
    """Yield the items of all pages; ``fetch`` takes the page size and the offset."""
    offset = seen = 0
    while True:
        page = fetch(LARGEST_PAGE, offset)
        items = items_of(page)
        yield from items
        seen += len(items)
        if page.next_offset is None or not items:
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
