"""`osmosis eval info`: one run, its configuration and its results."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis_ai.cli.options import RunArgument, SliceOption
from osmosis_ai.cli.output.results import DetailResult


def info(
    run: RunArgument,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="Directory for the run's metrics.json (default: .osmosis/evals/RUN).",
            show_default=False,
        ),
    ] = None,
    slices: SliceOption = None,
) -> DetailResult:
    """Show a run of the platform: how far it is, how it was configured, what came of it.

    Examples:
        osmosis eval info amber-otter-42
        osmosis eval info amber-otter-42 -o results.json
        osmosis eval info amber-otter-42 --slice difficulty
    """
    from osmosis_ai.cli.eval_runs.view import VIEW
    from osmosis_ai.services.eval_runs.local_runs import pointing_to_local_runs

    with pointing_to_local_runs(run):
        return VIEW.sliced_info(run, output, slices or ())
