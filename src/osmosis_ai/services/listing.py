"""One page of a list, or all of it: what every `list` command asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.api.wire.base import Page

    P = TypeVar("P", bound=Page)
else:
    P = TypeVar("P")
T = TypeVar("T")
DEFAULT_LIMIT = 50


@dataclass(frozen=True)
class Listing(Generic[T]):
    """Items, and where they stand in the whole.

    Attributes:
        items: in the platform's order.
        total_count: of the whole list.
        has_more: whether items follow these; ``next_offset`` is where.
    """

    items: tuple[T, ...]
    total_count: int
    has_more: bool = False
    next_offset: int | None = None


def require_one_size(*, limit: int, everything: bool) -> None:
    """Check that ``everything`` is not asked for beside a ``limit`` of one's own.

    Raises:
        OsmosisError: it is.
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
    """Return the first ``limit`` items, or ``everything``.

    Args:
        fetch: called with the page size and the offset.
        items_of: returns a page's items.
        limit: items at most, 1 to 50.
        everything: all pages; excludes a ``limit`` of one's own.

    Raises:
        OsmosisError: when both are asked for.
        PlatformError: as every call; also when the platform's list does not end.
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
