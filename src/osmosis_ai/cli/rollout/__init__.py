"""`osmosis rollout`: the agents that are evaluated and trained."""

from __future__ import annotations

import typer

from osmosis_ai.cli.rollout.init import init

app = typer.Typer(help="Write the agents that are evaluated and trained.")


@app.callback()
def _group() -> None:
    """Keep `init` a sub-command while it is the only one."""


app.command("init")(init)
