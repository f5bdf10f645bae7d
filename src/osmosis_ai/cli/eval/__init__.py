"""`osmosis eval`: agents, evaluated."""

from __future__ import annotations

import typer

from osmosis_ai.cli.eval.run import run
from osmosis_ai.cli.eval.watch import watch

app = typer.Typer(help="Evaluate agents.")
app.command("run")(run)
app.command("watch")(watch)
