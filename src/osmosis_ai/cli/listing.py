"""What every `list` command shares: its two options, and how a listing becomes a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from osmosis_ai.cli.output.results import Column, ListResult

if TYPE_CHECKING:
    from osmosis_ai.services.listing import Listing

T = TypeVar("T")

LimitOption = Annotated[int, typer.Option(min=1, max=50, help="How many at most.")]
AllOption = Annotated[bool, typer.Option("--all", help="Every one, page after page.")]


def list_result(
    listing: Listing[T],
    item: Callable[[T], Mapping[str, Any]],
    *,
    columns: Sequence[Column],
    extra: Mapping[str, Any],
    hints: Sequence[str] = (),
    title: str = "",
) -> ListResult:
    """Return a listing as the command's result.

    Args:
        listing: what the platform has.
        item: returns one as scripts see it.
        columns: what people see of each.
        extra: further keys for scripts.
        hints: closing lines for people.
        title: of one list among several.
    """
    return ListResult(
        items=[item(each) for each in listing.items],
        columns=columns,
        total_count=listing.total_count,
        has_more=listing.has_more,
        next_offset=listing.next_offset,
        extra=extra,
        hints=hints,
        title=title,
    )
