"""`osmosis dev server`: a rollout's last commit, served by the hosted platform."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from osmosis_ai.cli.connection import explain_empty, list_result, platform_context
from osmosis_ai.cli.options import AllOption, LimitOption, YesOption
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import Column, ListResult, OperationResult, StreamResult, Timestamp

app = typer.Typer()
server = typer.Typer(help="Serve a rollout on the hosted platform.")
app.add_typer(server, name="server")

ServerArgument = Annotated[str, typer.Argument(metavar="SERVER_ID", help="Id of a server.")]
_SERVERS = (
    Column("ID", "id", keep=True),
    Column("Rollout", "name"),
    Column("URL", "url"),
    Column("Expires At", "expires_at"),
    Column("Status", "status"),
)
_LINES = (
    Column("Time", value=lambda item: Timestamp(item["timestamp"], seconds=True)),
    Column("Message", "message"),
)


@server.command()
def up(
    no_ttl: Annotated[bool, typer.Option("--no-ttl", help="Serve until `down`.")] = False,
    ttl_hours: Annotated[int, typer.Option(min=1, help="Hours until the server stops.")] = 24,
    yes: YesOption = False,
) -> OperationResult:
    """Serve the rollout of the current directory.

    The platform serves the last commit, which must be pushed.

    Examples:
        osmosis dev server up --ttl-hours 2
    """
    from osmosis_ai.services import dev_servers

    output = current()
    with platform_context() as context:
        with output.status("Looking for the commit"):
            body, is_dirty, doubt = dev_servers.prepare_dev_server(
                context, Path.cwd(), ttl_hours=None if no_ttl else ttl_hours
            )
        if doubt is not None:
            output.warn(doubt)
        commit = body["commit_sha"]
        if is_dirty:
            output.confirm(
                f"There are uncommitted changes. Serve {commit[:8]} without them?",
                yes=yes,
                default=False,
                summary={"Rollout": body["rollout_name"], "Commit": commit},
            )
        with output.status("Starting the server"):
            reply = dev_servers.start_dev_server(context.client, body)
        labels = {"api_key": "API key", "expires_at": "Expires"}
        steps = [f"{label}: {reply[key]}" for key, label in labels.items() if isinstance(reply.get(key), str)]
        if isinstance(reply.get("id"), str):
            steps += [f"{verb}: osmosis dev server {verb.lower()} {reply['id']}" for verb in ("Logs", "Down")]
        return OperationResult(
            operation="dev.server.up",
            message=f"Development server started: {reply['url']}",
            resource={**reply, **context.resource()},
            next_steps=steps,
        )


@server.command()
def down(server_id: ServerArgument) -> OperationResult:
    """Stop a development server.

    Examples:
        osmosis dev server down ds_42
    """
    from osmosis_ai.services import dev_servers

    with platform_context() as context, current().status("Ending the server"):
        reply = dev_servers.end_dev_server(context.client, server_id)
        return OperationResult(
            operation="dev.server.down",
            message=f"Development server ended: {server_id}",
            resource={**reply, **context.resource()},
        )


@server.command()
def logs(
    server_id: ServerArgument,
    follow: Annotated[
        bool | None,
        typer.Option(
            "--follow/--no-follow", "-f", help="Show new lines as they arrive (default: in a terminal)."
        ),
    ] = None,
    tail: Annotated[
        int, typer.Option("--tail", "-n", min=1, max=200, help="Number of earlier lines to show first.")
    ] = 100,
) -> StreamResult:
    """Show the log of a development server.

    With --json, each line is a JSON object.

    Examples:
        osmosis dev server logs ds_42 --tail 20
    """
    following = current().mode == "rich" if follow is None else follow
    return StreamResult(items=_lines(server_id, tail, following), columns=_LINES)


@server.command("list")
def list_(limit: LimitOption = 50, everything: AllOption = False) -> ListResult:
    """List the development servers of the workspace.

    Examples:
        osmosis dev server list
    """
    from osmosis_ai.api.capabilities import Capability
    from osmosis_ai.services import dev_servers

    with platform_context() as context, current().status("Fetching development servers"):
        return list_result(
            dev_servers.list_dev_servers(context.client, limit=limit, everything=everything),
            columns=_SERVERS,
            extra=context.resource(),
            hints=explain_empty(context.client, Capability.DEV_SERVERS),
        )


def _lines(server_id: str, tail: int, follow: bool) -> Iterator[Mapping[str, Any]]:
    from osmosis_ai.services import dev_servers

    with platform_context() as context:
        yield from dev_servers.log_lines(context.client, server_id, tail=tail, follow=follow)
