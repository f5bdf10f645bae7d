"""`osmosis template`: agents to begin with."""

from __future__ import annotations

import typer

from osmosis_ai.cli.templates.apply import apply
from osmosis_ai.cli.templates.list import list_

app = typer.Typer(help="Begin with an agent that works.")
app.command("list")(list_)
app.command("apply")(apply)
