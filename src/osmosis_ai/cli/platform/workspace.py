"""`osmosis platform workspace`: the tenants of a platform."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis_ai.cli.output.results import Column, ListResult, OperationResult


def add(
    name: Annotated[str, typer.Argument(help="Letters, digits, `-`, `_` and `.`.")],
    owner: Annotated[
        str | None, typer.Option(metavar="EMAIL", help="Who owns it; not needed while there is one user.")
    ] = None,
) -> OperationResult:
    """Add a workspace.

    Examples:
        osmosis platform workspace add team-agents --owner ada@example.org
    """
    from osmosis_ai.cli.platform.local_platform import local_platform

    with local_platform() as platform:
        from osmosis_ai.platform.isolation import require_one_workspace

        user = platform.user(owner)
        require_one_workspace(platform.config, len(platform.workspaces.all()))
        workspace = platform.workspaces.create(name)
        platform.workspaces.add_member(workspace.id, user.id, "owner")
    return OperationResult(
        operation="platform.workspace.add",
        message=f"Added the workspace {workspace.name}, owned by {user.email}.",
        resource={"id": workspace.id, "name": workspace.name, "owner": user.email},
        next_steps=[f"Connect its repository: osmosis platform connect URL --workspace {workspace.name}"],
    )


def list_() -> ListResult:
    """List the workspaces with their members and repositories.

    Examples:
        osmosis platform workspace list
    """
    from osmosis_ai.cli.output import formats
    from osmosis_ai.cli.platform.local_platform import iso, local_platform

    with local_platform() as platform:
        items = [
            {
                "id": workspace.id,
                "name": workspace.name,
                "members": [
                    {"email": user.email, "role": role}
                    for user, role in platform.workspaces.members(workspace.id)
                ],
                "repositories": [
                    {"identity": repository.identity, "clone_url": repository.clone_url}
                    for repository in platform.workspaces.repositories(workspace.id)
                ],
                "created_at": iso(workspace.created_at),
            }
            for workspace in platform.workspaces.all()
        ]
    return ListResult(
        title="Workspaces",
        items=items,
        columns=[
            Column("Name", "name", keep=True),
            Column(
                "Members",
                value=lambda item: (
                    ", ".join(f"{member['email']} ({member['role']})" for member in item["members"])
                    or formats.MISSING
                ),
            ),
            Column(
                "Repositories",
                value=lambda item: (
                    ", ".join(repository["identity"] for repository in item["repositories"])
                    or formats.MISSING
                ),
            ),
        ],
    )
