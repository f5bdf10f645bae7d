"""Fetch one page or all of a list, for the `list` commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from osmosis_ai.api.models.base import Page
from osmosis_ai.api.paging import iterate_items
from osmosis_ai.errors import OsmosisError

P = TypeVar("P", bound=Page)
T = TypeVar("T")
DEFAULT_LIMIT = 50


@dataclass(frozen=True)
class Listing(Generic[T]):
    """Items in the platform's order, the length of the whole list, and whether and where it continues."""

    items: tuple[T, ...]
    total_count: int
    has_more: bool = False
    next_offset: int | None = None


def require_one_size(*, limit: int, everything: bool) -> None:
    """Check that ``everything`` is not combined with an explicit ``limit``."""
    if everything and limit != DEFAULT_LIMIT:
        raise OsmosisError("--all and --limit are mutually exclusive.")


def fetch_listing(
    fetch: Callable[[int, int], P],
    items_of: Callable[[P], Sequence[T]],
    *,
    limit: int = DEFAULT_LIMIT,
    everything: bool = False,
    inspect: Callable[[P], object] = lambda _page: None,
) -> Listing[T]:
    """Return the first ``limit`` items (1 to 50), or all.

    Args:
        fetch: called with page size and offset.
        items_of: returns the items of a page.
        inspect: called with each page.
    """
    require_one_size(limit=limit, everything=everything)

    def fetch_page(size: int, offset: int) -> P:
        page = fetch(size, offset)
        inspect(page)
        return page

    if everything:
        items = tuple(iterate_items(fetch_page, items_of))
        return Listing(items, len(items))
    page = fetch_page(limit, 0)
    items = tuple(items_of(page))
    return Listing(
        items,
        total_count=max(page.total_count, len(items)),
        has_more=page.has_more or page.next_offset is not None,
        next_offset=page.next_offset,
    )
