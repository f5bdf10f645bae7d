"""`osmosis workspace`: the tenants of a platform, found by the repository one is in."""

from __future__ import annotations

import typer

from osmosis_ai.cli.workspaces.current import current
from osmosis_ai.cli.workspaces.list import list_
from osmosis_ai.cli.workspaces.switch import switch

app = typer.Typer(help="See your workspaces, and find their directories.")
app.command("list")(list_)
app.command("current")(current)
app.command("switch")(switch)
