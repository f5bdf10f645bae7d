"""`osmosis dev server up`: serve the rollout of this directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.options import YesOption
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult


def up(
    no_ttl: Annotated[bool, typer.Option("--no-ttl", help="Serve until `down`.")] = False,
    ttl_hours: Annotated[int, typer.Option(min=1, help="Take it down after so many hours.")] = 24,
    yes: YesOption = False,
) -> OperationResult:
    """Serve the rollout of the current directory, as its last commit has it; the commit must be pushed.

    Examples:
        osmosis dev server up --ttl-hours 2
    """
    from osmosis_ai.services.dev_servers import prepare_dev_server
    from osmosis_ai.services.runs.finite import plain

    output = current()
    with platform_context() as context:
        with output.status("Looking for the commit"):
            prepared = prepare_dev_server(context, Path.cwd(), ttl_hours=None if no_ttl else ttl_hours)
        request = prepared.request
        if prepared.doubt is not None:
            output.warn(prepared.doubt)
        if prepared.dirty:
            output.confirm(
                f"There are changes that are not committed. Serve {request.commit_sha[:8]} without them?",
                yes=yes,
                default=False,
                summary={"Rollout": request.rollout_name, "Commit": request.commit_sha},
            )
        with output.status("Starting the server"):
            started = context.client.dev_servers.up(request)
        reply = plain(started)
        return OperationResult(
            operation="dev.server.up",
            message=f"Development server started: {started.url}",
            resource={**reply, **context.resource()},
            next_steps=_next_steps(reply),
        )


def _next_steps(reply: Mapping[str, Any]) -> list[str]:
    server_id, key, end = reply.get("id"), reply.get("api_key"), reply.get("expires_at")
    known = [(f"API key: {key}", key), (f"Expires: {end}", end)]
    known += [(f"Logs: osmosis dev server logs {server_id}", server_id)]
    known += [(f"End it: osmosis dev server down {server_id}", server_id)]
    return [line for line, value in known if isinstance(value, str) and value]
