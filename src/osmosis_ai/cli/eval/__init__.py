"""`osmosis eval`: agents, evaluated."""

from __future__ import annotations

import typer

from osmosis_ai.cli.eval.download import download
from osmosis_ai.cli.eval.gate import gate
from osmosis_ai.cli.eval.info import info
from osmosis_ai.cli.eval.list import list_
from osmosis_ai.cli.eval.logs import logs
from osmosis_ai.cli.eval.rubric import rubric
from osmosis_ai.cli.eval.run import run
from osmosis_ai.cli.eval.stop import stop
from osmosis_ai.cli.eval.submit import submit
from osmosis_ai.cli.eval.watch import watch

app = typer.Typer(help="Evaluate agents.")
app.command("run")(run)
app.command("rubric")(rubric)
app.command("submit")(submit)
app.command("list")(list_)
app.command("info")(info)
app.command("gate")(gate)
app.command("watch")(watch)
app.command("logs")(logs)
app.command("stop")(stop)
app.command("download")(download)
