"""`osmosis rollout`: the agents that are evaluated and trained."""

from __future__ import annotations

import typer

from osmosis_ai.cli.rollouts import servers
from osmosis_ai.cli.rollouts.init import init
from osmosis_ai.cli.rollouts.list import list_

app = typer.Typer(help="Write the agents that are evaluated and trained.")
app.command("init")(init)
app.command("list")(list_)

served = typer.Typer(help="See and remove the agents that are served elsewhere.")
served.command("list")(servers.list_)
served.command("register")(servers.register)
served.command("probe")(servers.probe)
served.command("remove")(servers.remove)
app.add_typer(served, name="server")
