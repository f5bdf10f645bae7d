"""`osmosis dev server down`: end a server."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult

ServerArgument = Annotated[
    str, typer.Argument(metavar="SERVER_ID", help="Id of a server, as the list shows it.", show_default=False)
]


def down(server_id: ServerArgument) -> OperationResult:
    """End a development server.

    Examples:
        osmosis dev server down ds_42
    """
    from osmosis_ai.services.runs.finite import plain

    with platform_context() as context, current().status("Ending the server"):
        reply = plain(context.client.dev_servers.down(server_id))
        return OperationResult(
            operation="dev.server.down",
            message=f"Development server ended: {server_id}",
            resource={**reply, **context.resource()},
        )
