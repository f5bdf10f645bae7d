"""`osmosis dev server`: an agent's code of a commit, served by the hosted platform while one works on it."""

from __future__ import annotations

import typer

from osmosis_ai.cli.dev_servers.down import down
from osmosis_ai.cli.dev_servers.list import list_
from osmosis_ai.cli.dev_servers.logs import logs
from osmosis_ai.cli.dev_servers.up import up

server = typer.Typer(help="Have the hosted platform serve a rollout for development.")
server.command("up")(up)
server.command("down")(down)
server.command("logs")(logs)
server.command("list")(list_)

app = typer.Typer(help="Develop rollouts.")
app.add_typer(server, name="server")
