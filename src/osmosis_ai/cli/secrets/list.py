"""`osmosis secret list`: which secrets there are; their values are never shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import Cell, Column, ListResult, Timestamp


def list_(
    scope: Annotated[
        str, typer.Option(metavar="[all|workspace|personal]", help="Whose secrets to list.")
    ] = "all",
    limit: Annotated[int, typer.Option(min=1, max=50, help="How many to show.")] = 50,
    everything: Annotated[bool, typer.Option("--all", help="Show every one.")] = False,
) -> ListResult:
    """List the names of secrets. A personal secret wins over one of the workspace in your runs.

    Examples:
        osmosis secret list --scope personal
    """
    from osmosis_ai.services import secrets

    wanted = None if scope == "all" else secrets.parse_scope(scope)
    with platform_context() as context, current().status("Fetching secrets"):
        listing, page = secrets.list_secrets(context.client, wanted, limit=limit, everything=everything)
    return ListResult(
        title="Secrets",
        items=[secrets.secret_item(secret) for secret in listing.items],
        columns=[
            Column("Name", "name", keep=True),
            Column("Scope", value=_scope),
            Column("Updated", value=lambda item: Timestamp(item["updated_at"])),
            Column("Updated By", value=lambda item: item["updater_name"] or item["creator_name"]),
        ],
        total_count=listing.total_count,
        has_more=listing.has_more,
        next_offset=listing.next_offset,
        extra={**context.resource(), **({"platform_url": page} if page else {})},
        hints=[f"View secrets: {page}"] if page else [],
    )


def _scope(item: Mapping[str, Any]) -> Cell:
    return str(item["scope"] or formats.MISSING).capitalize()
