"""`osmosis model`: models, and serving those that were trained."""

from __future__ import annotations

import typer

from osmosis_ai.cli.models.deploy import deploy
from osmosis_ai.cli.models.download import download
from osmosis_ai.cli.models.info import info
from osmosis_ai.cli.models.list import list_
from osmosis_ai.cli.models.undeploy import undeploy

app = typer.Typer(help="See models, and serve trained ones.")
app.command("list")(list_)
app.command("info")(info)
app.command("deploy")(deploy)
app.command("undeploy")(undeploy)
app.command("download")(download)
