"""`osmosis env allow`: trust an environment file with addresses and a token."""

from __future__ import annotations

from osmosis_ai.cli.env.names import EnvFileArgument, names_table
from osmosis_ai.cli.output.results import OperationResult


def allow(path: EnvFileArgument = None) -> OperationResult:
    """Let the .env, as it is now, send your keys to its addresses and set OSMOSIS_TOKEN. A change of it asks again.

    Examples:
        osmosis env allow
    """
    from osmosis_ai.services.env.files import allow_env_file

    allowed = allow_env_file(path)
    return OperationResult(
        operation="env.allow",
        message=f"Allowed {allowed.path} as it is now.",
        resource=allowed.resource(),
        blocks=[names_table(allowed)],
        next_steps=[f"Take that back: osmosis env revoke {allowed.path}"],
    )
