"""`osmosis platform disconnect`: a repository leaves its workspace."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis_ai.cli.options import YesOption
from osmosis_ai.cli.output.results import OperationResult


def disconnect(
    repository: Annotated[
        str,
        typer.Argument(
            metavar="IDENTITY|URL|PATH",
            help="One of its identities, or what it is cloned from.",
            show_default=False,
        ),
    ],
    yes: YesOption = False,
) -> OperationResult:
    """Disconnect a Git repository; its runs, datasets and models stay, new runs cannot use it.

    Examples:
        osmosis platform disconnect fern/agents --yes
    """
    from osmosis_ai.cli.output import formats
    from osmosis_ai.cli.output.context import current
    from osmosis_ai.cli.platform.local_platform import local_platform
    from osmosis_ai.platform.gitsync.mirror import MirrorStore

    with local_platform() as platform:
        found = platform.workspaces.find_repository(repository)
        waiting = platform.workspaces.waiting_runs(found.id)
        warnings = []
        if waiting:
            counted = "1 pending run" if len(waiting) == 1 else f"{formats.count(len(waiting))} pending runs"
            warnings = [f"{counted} will fail without its code: {', '.join(waiting[:5])}."]
        for warning in warnings:
            current().warn(warning)
        current().confirm(f"Disconnect {found.identity}?", yes=yes, warnings=warnings)
        platform.workspaces.disconnect_repository(found.id)
        MirrorStore(platform.config.git_dir).remove(found)
    return OperationResult(
        operation="platform.disconnect",
        message=f"Disconnected {found.identity}; its runs, datasets and models stay.",
        resource={"id": found.id, "identity": found.identity, "clone_url": found.clone_url},
        next_steps=[f"Connect it again: osmosis platform connect {found.clone_url}"],
    )
