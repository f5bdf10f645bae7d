"""`osmosis secret`: what runs find in their environment and nobody else sees."""

from __future__ import annotations

import typer

from osmosis_ai.cli.secrets.audit import audit
from osmosis_ai.cli.secrets.delete import delete
from osmosis_ai.cli.secrets.list import list_
from osmosis_ai.cli.secrets.set import CONTEXT_SETTINGS, set_

app = typer.Typer(help="Keep the keys that runs need.")
app.command("list")(list_)
app.command("set", context_settings=CONTEXT_SETTINGS)(set_)
app.command("delete")(delete)
app.command("audit")(audit)
