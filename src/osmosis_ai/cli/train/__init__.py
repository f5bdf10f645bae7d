"""`osmosis train`: agents, trained."""

from __future__ import annotations

import typer

from osmosis_ai.cli.train.checkpoints import checkpoints
from osmosis_ai.cli.train.compare import compare
from osmosis_ai.cli.train.estimate import estimate
from osmosis_ai.cli.train.info import info
from osmosis_ai.cli.train.list import list_
from osmosis_ai.cli.train.logs import logs
from osmosis_ai.cli.train.resume import resume
from osmosis_ai.cli.train.stop import stop
from osmosis_ai.cli.train.submit import submit
from osmosis_ai.cli.train.watch import watch

app = typer.Typer(help="Train agents.")
app.command("estimate")(estimate)
app.command("submit")(submit)
app.command("list")(list_)
app.command("info")(info)
app.command("watch")(watch)
app.command("logs")(logs)
app.command("compare")(compare)
app.command("checkpoints")(checkpoints)
app.command("stop")(stop)
app.command("resume")(resume)
