"""`osmosis platform member`: who belongs to a workspace."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from osmosis_ai.cli.options import YesOption
from osmosis_ai.cli.output.results import OperationResult


class RoleName(str, Enum):
    """What a member may do."""

    owner = "owner"
    admin = "admin"
    member = "member"


def add(
    workspace: Annotated[str, typer.Argument(help="The workspace's name.")],
    email: Annotated[str, typer.Argument(help="The user's address.")],
    role: Annotated[RoleName, typer.Option(help="What they may do.")] = RoleName.member,
) -> OperationResult:
    """Let a user into a workspace, or change their role there.

    Examples:
        osmosis platform member add team-agents grace@example.org
    """
    from osmosis_ai.cli.platform.local_platform import local_platform

    with local_platform() as platform:
        home, user = platform.workspaces.find(workspace), platform.accounts.find_user(email)
        platform.workspaces.add_member(home.id, user.id, role.value)
    article = "a" if role is RoleName.member else "an"
    return OperationResult(
        operation="platform.member.add",
        message=f"{user.email} is {article} {role.value} of {home.name}.",
        resource={"workspace": home.name, "email": user.email, "role": role.value},
    )


def remove(
    workspace: Annotated[str, typer.Argument(help="The workspace's name.")],
    email: Annotated[str, typer.Argument(help="The user's address.")],
    yes: YesOption = False,
) -> OperationResult:
    """Take a user out of a workspace; what they made there stays.

    Examples:
        osmosis platform member remove team-agents grace@example.org
    """
    from osmosis_ai.cli.output.context import current
    from osmosis_ai.cli.platform.local_platform import local_platform

    with local_platform() as platform:
        home, user = platform.workspaces.find(workspace), platform.accounts.find_user(email)
        current().confirm(f"Take {user.email} out of {home.name}?", yes=yes)
        platform.workspaces.remove_member(home.id, user.id)
    return OperationResult(
        operation="platform.member.remove",
        message=f"{user.email} is no longer in {home.name}.",
        resource={"workspace": home.name, "email": user.email},
    )
