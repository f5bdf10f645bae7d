"""How commands reach the platform and the user's browser, and how what the platform lists becomes a result."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import Column, ListResult

if TYPE_CHECKING:
    from osmosis_ai.api.capabilities import Capability
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.models.base import Page, WireModel
    from osmosis_ai.services.context import PlatformContext

T = TypeVar("T", bound="WireModel")


@contextmanager
def platform_context(run: str | None = None) -> Iterator[PlatformContext]:
    """Open the context of a command about a workspace; see :func:`osmosis_ai.services.context.open_context`."""
    from osmosis_ai.services.context import open_context

    with open_context(run=run, warn=current().warn) as context:
        yield context


@contextmanager
def platform_anywhere() -> Iterator[tuple[PlatformClient, dict[str, Any]]]:
    """Open a connection for a command that also works outside a workspace directory."""
    from osmosis_ai.services.context import find_checkout_if_any, open_client

    checkout = find_checkout_if_any()
    with open_client(checkout, warn=current().warn) as client:
        yield client, {} if checkout is None else checkout.resource()


@contextmanager
def platform_when_needed() -> Iterator[Callable[[], PlatformClient]]:
    """Yield a function that connects to the platform at its first call, so local runs need no login."""
    with ExitStack() as held:
        opened: list[PlatformClient] = []

        def connect() -> PlatformClient:
            if not opened:
                opened.append(held.enter_context(platform_context()).client)
            return opened[0]

        yield connect


def explain_empty(client: PlatformClient, capability: Capability) -> list[str]:
    """Return hints for an empty list of people; scripts get them as warnings."""
    from osmosis_ai.api.http_errors import unsupported
    from osmosis_ai.services.capabilities import is_offered

    if is_offered(client.offers, capability):
        return []
    note = unsupported(client.platform_url, capability).message
    if current().mode == "rich":
        return [note]
    current().warn(note, code="NOT_OFFERED")
    return []


def list_result(
    listing: Page[T],
    *,
    columns: Sequence[Column],
    item: Callable[[T], Mapping[str, Any]] | None = None,
    extra: Mapping[str, Any] | None = None,
    hints: Sequence[str] = (),
    title: str = "",
) -> ListResult:
    return ListResult(
        items=[item(each) if item is not None else each.printed() for each in listing.items],
        columns=columns,
        total_count=listing.total_count,
        has_more=listing.has_more,
        next_offset=listing.next_offset,
        extra=extra or {},
        hints=hints,
        title=title,
    )


def open_browser(page: str) -> bool:
    """Show a page in the user's browser; False if no browser would open a window of its own."""
    windows = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    if sys.platform.startswith("linux") and not any(os.environ.get(name) for name in windows):
        return False
    import webbrowser

    try:
        return webbrowser.open(page)
    except webbrowser.Error:
        return False
