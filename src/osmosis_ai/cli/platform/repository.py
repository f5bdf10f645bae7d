"""`osmosis platform repository`: what is connected to a platform's workspaces."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from osmosis_ai.cli.output.results import Column, ListResult


def list_(
    workspace: Annotated[
        str | None, typer.Option("--workspace", "-w", help="Those of this workspace alone.")
    ] = None,
) -> ListResult:
    """List the connected repositories: what they are called, what runs clone, when that last worked.

    Examples:
        osmosis platform repository list --workspace default
    """
    from osmosis_ai.cli.platform.local_platform import iso, local_platform

    with local_platform() as platform:
        named = platform.workspaces.all() if workspace is None else [platform.workspaces.find(workspace)]
        items = [
            {
                "id": repository.id,
                "workspace": home.name,
                "identity": repository.identity,
                "identities": platform.workspaces.identities(repository.id),
                "clone_url": repository.clone_url,
                "default_branch": repository.default_branch,
                "last_synced_sha": repository.last_synced_sha,
                "last_synced_at": iso(repository.last_synced_at),
                "sync_error": repository.sync_error,
                "connected_at": iso(repository.created_at),
            }
            for home in named
            for repository in platform.workspaces.repositories(home.id)
        ]
    return ListResult(
        title="Repositories",
        items=items,
        columns=[
            Column("Identity", "identity", keep=True),
            Column("Workspace", "workspace"),
            Column("Clone URL", "clone_url"),
            Column("Branch", value=lambda item: item["default_branch"] or "(its default)"),
            Column("Last fetched", value=_fetched),
        ],
        hints=[] if items else ["Connect one: osmosis platform connect PATH|URL"],
    )


def _fetched(item: Any) -> str:
    from osmosis_ai.cli.output import formats

    if item["sync_error"]:
        return f"failed: {item['sync_error']}"
    if item["last_synced_sha"] is None:
        return formats.MISSING
    return f"{item['last_synced_sha'][:8]} at {item['last_synced_at']}"
