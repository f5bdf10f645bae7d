"""`osmosis eval info`: one run, its configuration and its results."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis_ai.cli.options import RunAnywhereArgument, SliceOption
from osmosis_ai.cli.output.results import DetailResult


def info(
    run: RunAnywhereArgument,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="Directory for the metrics.json of a run of the platform (default: .osmosis/evals/RUN).",
            show_default=False,
        ),
    ] = None,
    slices: SliceOption = None,
) -> DetailResult:
    """Show a run of this machine or of the platform: how far it is, how it was configured, what came of it.

    Examples:
        osmosis eval info @last
        osmosis eval info amber-otter-42 --slice difficulty
        osmosis eval info platform:amber-otter-42 -o results
    """
    from osmosis_ai.cli.eval_runs.local_view import local_info, of_this_machine_first
    from osmosis_ai.cli.eval_runs.view import VIEW

    return of_this_machine_first(
        run,
        here=lambda directory: local_info(directory, output, slices or ()),
        there=lambda name: VIEW.sliced_info(name, output, slices or ()),
    )
