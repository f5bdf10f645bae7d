"""`osmosis train`: agents, trained."""

from __future__ import annotations

import typer

from osmosis_ai.cli.training_runs.checkpoints import checkpoints
from osmosis_ai.cli.training_runs.compare import compare
from osmosis_ai.cli.training_runs.delete import delete
from osmosis_ai.cli.training_runs.estimate import estimate
from osmosis_ai.cli.training_runs.info import info
from osmosis_ai.cli.training_runs.list import list_
from osmosis_ai.cli.training_runs.logs import logs
from osmosis_ai.cli.training_runs.resubmit import resubmit
from osmosis_ai.cli.training_runs.resume import resume
from osmosis_ai.cli.training_runs.show import show
from osmosis_ai.cli.training_runs.stop import stop
from osmosis_ai.cli.training_runs.submit import submit
from osmosis_ai.cli.training_runs.watch import watch

app = typer.Typer(help="Train agents.")
app.command("estimate")(estimate)
app.command("submit")(submit)
app.command("list")(list_)
app.command("info")(info)
app.command("show")(show)
app.command("watch")(watch)
app.command("logs")(logs)
app.command("compare")(compare)
app.command("checkpoints")(checkpoints)
app.command("stop")(stop)
app.command("resume")(resume)
app.command("resubmit")(resubmit)
app.command("delete")(delete)
