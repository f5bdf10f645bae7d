"""`osmosis benchmark`: agents on tasks that others can be compared on."""

from __future__ import annotations

import typer

from osmosis_ai.cli.benchmarks.info import info
from osmosis_ai.cli.benchmarks.list import list_
from osmosis_ai.cli.benchmarks.runs import app as runs
from osmosis_ai.cli.benchmarks.submit import submit

app = typer.Typer(help="Run agents on benchmarks.")
app.command("list")(list_)
app.command("info")(info)
app.command("submit")(submit)
app.add_typer(runs, name="runs")
