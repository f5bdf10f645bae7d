"""`osmosis upgrade`: the command that upgrades this installation."""

from __future__ import annotations

from osmosis_ai.cli.output.results import OperationResult


def upgrade() -> OperationResult:
    """Print the command that upgrades Osmosis.

    The command takes the newer version from where this installation came: a checkout, a directory or a Git repository.

    Examples:
        osmosis upgrade
    """
    from osmosis_ai._version import __version__
    from osmosis_ai.services.upgrade import upgrade_command

    found = upgrade_command()
    return OperationResult(
        operation="upgrade",
        message=found.command,
        resource={
            "installed_version": __version__,
            "latest_version": None,
            "method": found.method,
            "command": found.command,
        },
    )
