"""`osmosis env`: the environment file of this directory, and what it may do."""

from __future__ import annotations

import typer

from osmosis_ai.cli.env.allow import allow
from osmosis_ai.cli.env.revoke import revoke
from osmosis_ai.cli.env.status import status

app = typer.Typer(help="See what the .env here may do, and allow it more.")
app.command("status")(status)
app.command("allow")(allow)
app.command("revoke")(revoke)
