"""Fetch one page or all of a list, for the `list` commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from osmosis_ai.api.models.base import Page
from osmosis_ai.api.paging import iterate_pages
from osmosis_ai.errors import OsmosisError

P = TypeVar("P", bound=Page[Any])
DEFAULT_LIMIT = 50


def require_one_size(*, limit: int, everything: bool) -> None:
    """Check that ``everything`` is not combined with an explicit ``limit``."""
    if everything and limit != DEFAULT_LIMIT:
        raise OsmosisError("--all and --limit are mutually exclusive.")


def fetch_listing(fetch: Callable[[int, int], P], *, limit: int, everything: bool) -> P:
    """Return the first ``limit`` items (1 to 50), or one page of all; ``fetch`` takes the page size and the offset."""
    require_one_size(limit=limit, everything=everything)
    if not everything:
        page = fetch(limit, 0)
        known = {
            "total_count": max(page.total_count, len(page.items)),
            "has_more": page.has_more or page.next_offset is not None,
        }
        return page.model_copy(update=known)
    pages = list(iterate_pages(fetch))
    items = [item for page in pages for item in page.items]
    whole = {"items": items, "total_count": len(items), "has_more": False, "next_offset": None}
    return pages[-1].model_copy(update=whole)
