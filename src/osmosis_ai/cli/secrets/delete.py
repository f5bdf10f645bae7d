"""`osmosis secret delete`: forget a secret for good."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.options import YesOption
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult


def delete(
    name: Annotated[str, typer.Argument(help="The secret's name.")],
    scope: Annotated[
        str, typer.Option(metavar="[personal|workspace]", help="Yours, or that of all members.")
    ] = "personal",
    yes: YesOption = False,
) -> OperationResult:
    """Delete a secret. Runs that are under way keep what they were given.

    Examples:
        osmosis secret delete OPENAI_API_KEY
    """
    from osmosis_ai.services import secrets

    output = current()
    secrets.check_name(name)
    chosen = secrets.parse_scope(scope)
    with platform_context() as context:
        with output.status("Looking it up"):
            secrets.require_secret(context.client, name, chosen)
        output.confirm(f'Delete {chosen} secret "{name}"? This cannot be undone.', yes=yes)
        with output.status(f"Deleting {name}"):
            secrets.delete_secret(context.client, name, chosen)
    return OperationResult(
        operation="secret.delete",
        message=f'Secret "{name}" deleted from {chosen} scope.',
        resource={"name": name, "scope": chosen, **context.resource()},
    )
