"""`osmosis rollout`: the agents that are evaluated and trained."""

from __future__ import annotations

import typer

from osmosis_ai.cli.rollouts.init import init
from osmosis_ai.cli.rollouts.list import list_

app = typer.Typer(help="Write the agents that are evaluated and trained.")
app.command("init")(init)
app.command("list")(list_)
