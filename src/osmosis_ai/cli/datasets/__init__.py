"""`osmosis dataset`: the files that agents are evaluated and trained on."""

from __future__ import annotations

import typer

from osmosis_ai.cli.datasets.delete import delete
from osmosis_ai.cli.datasets.download import download
from osmosis_ai.cli.datasets.import_ import import_
from osmosis_ai.cli.datasets.info import info
from osmosis_ai.cli.datasets.list import list_
from osmosis_ai.cli.datasets.logs import logs
from osmosis_ai.cli.datasets.preview import preview
from osmosis_ai.cli.datasets.upload import upload
from osmosis_ai.cli.datasets.validate import validate

app = typer.Typer(help="Check, upload and fetch datasets.")
app.command("validate")(validate)
app.command("import")(import_)
app.command("upload")(upload)
app.command("list")(list_)
app.command("info")(info)
app.command("preview")(preview)
app.command("logs")(logs)
app.command("download")(download)
app.command("delete")(delete)
