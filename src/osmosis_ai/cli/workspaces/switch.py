"""`osmosis workspace switch`: the way to another workspace's directory."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult


def switch(
    name: Annotated[str, typer.Argument(help="A workspace, as `osmosis workspace list` shows it.")],
) -> OperationResult:
    """Find the directory to go to for working in another workspace.

    Commands are about the workspace whose repository they run in, so nothing is remembered as "the
    current one": this tells where on this machine NAME is checked out, as far as commands have run
    there. In a script: cd "$(osmosis workspace switch NAME --json | jq -r .resource.workspace_directory)"

    Examples:
        osmosis workspace switch team-agents
    """
    import shlex

    from osmosis_ai.services.workspaces import find_workspace_directory

    output = current()
    with output.status("Fetching workspaces"):
        member = find_workspace_directory(name, warn=output.warn)
    known_as = member.workspace.name
    if member.current:
        return OperationResult(
            operation="workspace.switch",
            status="noop",
            message=f"This directory is a checkout of the workspace {known_as} already.",
            resource=member.item(),
        )
    go = f"cd {shlex.quote(str(member.directory))}"
    return OperationResult(
        operation="workspace.switch",
        message=f"The workspace {known_as} is checked out in {member.directory}.",
        resource=member.item(),
        next_steps=[f"Commands are about it when they run there: {go}"],
        next_steps_structured=[{"action": "change_directory", "path": str(member.directory)}],
    )
