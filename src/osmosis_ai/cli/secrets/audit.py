"""`osmosis secret audit`: which machines were handed which secrets, and when."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import Column, ListResult, Timestamp


def audit(
    limit: Annotated[int, typer.Option(min=1, max=50, help="How many to show.")] = 50,
    everything: Annotated[bool, typer.Option("--all", help="Show every one.")] = False,
) -> ListResult:
    """List which runs were handed which secrets, by their names, and on which machine; the newest first.

    Examples:
        osmosis secret audit --limit 10
    """
    from osmosis_ai.services import secrets

    with platform_context() as context, current().status("Fetching the audit"):
        listing, page = secrets.list_handouts(context.client, limit=limit, everything=everything)
    return ListResult(
        title="Secrets handed out",
        items=[secrets.handout_item(handout) for handout in listing.items],
        columns=[
            Column("Handed Out", value=lambda item: Timestamp(item["handed_at"])),
            Column("Secrets", value=lambda item: ", ".join(item["names"]), keep=True),
            Column("Run", "run_name", keep=True),
            Column("Attempt", "attempt"),
            Column("Machine", "machine"),
            Column("Pool", "pool"),
        ],
        total_count=listing.total_count,
        has_more=listing.has_more,
        next_offset=listing.next_offset,
        extra={**context.resource(), **({"platform_url": page} if page else {})},
        hints=[f"View the audit: {page}"] if page else [],
    )
