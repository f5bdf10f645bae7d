"""`osmosis benchmark runs`: the runs of agents on benchmarks."""

from __future__ import annotations

import typer

from osmosis_ai.cli.benchmarks.runs.download import download
from osmosis_ai.cli.benchmarks.runs.info import info
from osmosis_ai.cli.benchmarks.runs.list import list_
from osmosis_ai.cli.benchmarks.runs.logs import logs
from osmosis_ai.cli.benchmarks.runs.stop import stop

app = typer.Typer(help="See, stop and fetch benchmark runs.")
app.command("list")(list_)
app.command("info")(info)
app.command("logs")(logs)
app.command("stop")(stop)
app.command("download")(download)
