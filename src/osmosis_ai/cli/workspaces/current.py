"""`osmosis workspace current`: what commands in this directory are about."""

from __future__ import annotations

from osmosis_ai.cli.output.context import current as output_context
from osmosis_ai.cli.output.results import DetailResult, Timestamp


def current() -> DetailResult:
    """Show the workspace that the repository you are in belongs to.

    Examples:
        osmosis workspace current
    """
    from osmosis_ai.services.workspaces import current_workspace

    output = output_context()
    with output.status("Asking the platform"):
        found = current_workspace(warn=output.warn)
    return DetailResult(
        data=found.data(),
        title="Workspace",
        rows=[
            ("Workspace", found.membership.name),
            ("Role", found.membership.role),
            ("User", found.user.email),
            ("Expires", Timestamp(found.expires_at, seconds=True)),
            ("Platform", found.platform_url),
            ("Repository", found.checkout.git.identity),
            ("Directory", str(found.checkout.workspace.root)),
        ],
    )
