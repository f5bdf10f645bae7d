"""`osmosis rollout list`: what the platform has read from the repository."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis_ai.cli.connection import list_result, platform_context
from osmosis_ai.cli.options import AllOption, LimitOption
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import Column, ListResult, Timestamp


def list_(
    limit: LimitOption = 50,
    everything: AllOption = False,
    branch: Annotated[
        str | None, typer.Option(help="Of this branch instead of the default one.", show_default=False)
    ] = None,
) -> ListResult:
    """List the rollouts that the platform has read from the connected repository.

    Examples:
        osmosis rollout list --branch main
    """
    from osmosis_ai.services.rollouts import list_rollouts, rollout_item

    with platform_context() as context, current().status("Fetching rollouts"):
        found = list_rollouts(context.client, branch=branch, limit=limit, everything=everything)
    if found.sync_error is not None:
        current().warn(f"the rollouts may be out of date: {found.sync_error}", "GIT_SYNC_FAILED")
    return list_result(
        found.listing,
        rollout_item,
        columns=_columns(),
        extra={
            **context.resource(),
            **({"branch": branch} if branch is not None else {}),
            **({"sync_error": found.sync_error} if found.sync_error is not None else {}),
        },
    )


def _columns() -> tuple[Column, ...]:
    return (
        Column("Name", "name", keep=True),
        Column("Active", "is_active"),
        Column("Commit", value=lambda item: (item["last_synced_commit_sha"] or "")[:8] or None),
        Column("Created", value=lambda item: Timestamp(item["created_at"])),
    )
