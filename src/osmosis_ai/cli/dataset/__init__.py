"""`osmosis dataset`: the files that agents are evaluated and trained on."""

from __future__ import annotations

import typer

from osmosis_ai.cli.dataset.validate import validate

app = typer.Typer(help="Check dataset files.")


@app.callback()
def _group() -> None:
    """Keep `validate` a sub-command while it is the only one."""


app.command("validate")(validate)
