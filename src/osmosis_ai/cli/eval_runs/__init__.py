"""`osmosis eval`: agents, evaluated."""

from __future__ import annotations

import typer

from osmosis_ai.cli.agent_loops.eval_classic import eval_classic
from osmosis_ai.cli.eval_runs.compare import compare
from osmosis_ai.cli.eval_runs.delete import delete
from osmosis_ai.cli.eval_runs.download import download
from osmosis_ai.cli.eval_runs.export import export
from osmosis_ai.cli.eval_runs.gate import gate
from osmosis_ai.cli.eval_runs.info import info
from osmosis_ai.cli.eval_runs.list import list_
from osmosis_ai.cli.eval_runs.logs import logs
from osmosis_ai.cli.eval_runs.plan import plan
from osmosis_ai.cli.eval_runs.resubmit import resubmit
from osmosis_ai.cli.eval_runs.retry import retry
from osmosis_ai.cli.eval_runs.run import run
from osmosis_ai.cli.eval_runs.show import show
from osmosis_ai.cli.eval_runs.stop import stop
from osmosis_ai.cli.eval_runs.submit import submit
from osmosis_ai.cli.eval_runs.upload import upload
from osmosis_ai.cli.eval_runs.watch import watch
from osmosis_ai.cli.root import CLASSIC_EVAL
from osmosis_ai.cli.rubric.eval_rubric import rubric

app = typer.Typer(help="Evaluate agents.")
app.command("run")(run)
app.command("rubric")(rubric)
app.command("submit")(submit)
app.command("list")(list_)
app.command("info")(info)
app.command("show")(show)
app.command("compare")(compare)
app.command("gate")(gate)
app.command("plan")(plan)
app.command("watch")(watch)
app.command("logs")(logs)
app.command("stop")(stop)
app.command("download")(download)
app.command("retry")(retry)
app.command("upload")(upload)
app.command("resubmit")(resubmit)
app.command("delete")(delete)
app.command("export")(export)
# What is too much gets a sentence of its own.
app.command(CLASSIC_EVAL, context_settings={"allow_extra_args": True})(eval_classic)
