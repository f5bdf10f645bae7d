"""`osmosis train info`: one run, its configuration, its metrics and what it has saved."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis_ai.cli.options import RunArgument
from osmosis_ai.cli.output.results import DetailResult


def info(
    run: RunArgument,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help="File or directory for the run's metrics (default: .osmosis/metrics).",
            show_default=False,
        ),
    ] = None,
) -> DetailResult:
    """Show a training run: how far it is, how it was configured, how its metrics went.

    Examples:
        osmosis train info keen-owl-2
        osmosis train info keen-owl-2 -o metrics.json
    """
    from osmosis_ai.cli.training_runs.view import VIEW

    return VIEW.info(run, output)
