"""Fetch one page or all of a list, for the `list` commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.api.models.base import Page

    P = TypeVar("P", bound=Page)
else:
    P = TypeVar("P")
T = TypeVar("T")
DEFAULT_LIMIT = 50


@dataclass(frozen=True)
class Listing(Generic[T]):
    """Items and their position in the whole list.

    Attributes:
        items: in the platform's order.
        total_count: length of the whole list.
        has_more: whether more items follow, starting at ``next_offset``.
    """

    items: tuple[T, ...]
    total_count: int
    has_more: bool = False
    next_offset: int | None = None


def require_one_size(*, limit: int, everything: bool) -> None:
    """Check that ``everything`` is not combined with an explicit ``limit``.

    Raises:
        OsmosisError: both are given.
    """
    if everything and limit != DEFAULT_LIMIT:
        raise OsmosisError("--all and --limit are mutually exclusive.")


def fetch_listing(
    fetch: Callable[[int, int], P],
    items_of: Callable[[P], Sequence[T]],
    *,
    limit: int = DEFAULT_LIMIT,
    everything: bool = False,
) -> Listing[T]:
    """Return the first ``limit`` items, or all.

    Args:
        fetch: called with page size and offset.
        items_of: returns the items of a page.
        limit: maximum number of items, 1 to 50.
        everything: fetch all pages; excludes an explicit ``limit``.

    Raises:
        OsmosisError: both are given.
        PlatformError: the request failed, or the platform's list does not end.
    """
    require_one_size(limit=limit, everything=everything)
    if everything:
        from osmosis_ai.api.paging import iterate_pages

        items = tuple(item for page in iterate_pages(fetch, items_of) for item in items_of(page))
        return Listing(items, len(items))
    page = fetch(limit, 0)
    items = tuple(items_of(page))
    return Listing(
        items,
        total_count=max(page.total_count, len(items)),
        has_more=page.has_more or page.next_offset is not None,
        next_offset=page.next_offset,
    )
