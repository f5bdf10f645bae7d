"""`osmosis env status`: what commands here take from the environment file."""

from __future__ import annotations

from osmosis_ai.cli.env.names import EnvFileArgument, names_table
from osmosis_ai.cli.output.results import OperationResult


def status(path: EnvFileArgument = None) -> OperationResult:
    """Show which names of the .env count here, and why others do not. Values are never shown.

    Examples:
        osmosis env status
    """
    from osmosis_ai.services.env.files import env_file_status

    found = env_file_status(path)
    if found.classified is None:
        message = found.refusal or f"There is no {found.path}."
        return OperationResult(
            operation="env.status",
            message=message,
            resource=found.resource(),
            next_steps=[f"To mend that: {found.remedy}"] if found.remedy else [],
        )
    waiting = found.classified.names("needs_permission")
    said = "You have allowed this file." if found.classified.allowed else "You have not allowed this file."
    return OperationResult(
        operation="env.status",
        message=said,
        resource=found.resource(),
        blocks=[names_table(found)],
        next_steps=[f"If you trust its addresses and its token: osmosis env allow {found.path}"]
        if waiting
        else [],
    )
