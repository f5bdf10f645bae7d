"""`osmosis env revoke`: trust an environment file no longer."""

from __future__ import annotations

from osmosis_ai.cli.env.names import EnvFileArgument
from osmosis_ai.cli.output.results import OperationResult


def revoke(path: EnvFileArgument = None) -> OperationResult:
    """Take back what `osmosis env allow` gave.

    Examples:
        osmosis env revoke
    """
    from osmosis_ai.services.env.files import revoke_env_file

    place, had = revoke_env_file(path)
    return OperationResult(
        operation="env.revoke",
        status="success" if had else "noop",
        message=f"{place} is allowed no longer." if had else f"{place} was not allowed.",
        resource={"path": str(place), "revoked": had},
    )
