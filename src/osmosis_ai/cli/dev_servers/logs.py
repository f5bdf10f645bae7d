"""`osmosis dev server logs`: what a server said, and what it says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.dev_servers.down import ServerArgument
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import Column, StreamResult, Timestamp


def logs(
    server_id: ServerArgument,
    follow: Annotated[
        bool | None,
        typer.Option(
            "--follow/--no-follow",
            "-f",
            help="Go on showing lines as they come (default: for people, not in --plain and --json).",
            show_default=False,
        ),
    ] = None,
    tail: Annotated[
        int, typer.Option("--tail", "-n", min=1, max=200, help="How many lines to begin with.")
    ] = 100,
) -> StreamResult:
    """Show the log of a development server. With --json each line is a JSON object of its own.

    Examples:
        osmosis dev server logs ds_42 --tail 20
    """
    following = current().mode == "rich" if follow is None else follow
    return StreamResult(
        items=_lines(server_id, tail, following=following),
        columns=(
            Column("Time", value=lambda item: Timestamp(item["timestamp"], seconds=True)),
            Column("Message", "message"),
        ),
    )


def _lines(server_id: str, tail: int, *, following: bool) -> Iterator[Mapping[str, Any]]:
    from osmosis_ai.services.dev_servers import follow_lines, last_lines

    with platform_context() as context:
        lines = (
            follow_lines(context.client, server_id, tail=tail, tell=current().note)
            if following
            else last_lines(context.client, server_id, tail=tail)
        )
        for timestamp, message in lines:
            yield {"timestamp": timestamp, "message": message}
