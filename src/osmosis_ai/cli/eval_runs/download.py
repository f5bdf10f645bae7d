"""`osmosis eval download`: a run's files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osmosis_ai.cli.options import RunArgument
from osmosis_ai.cli.output.results import OperationResult
from osmosis_ai.cli.runs.download import DownloadYesOption, OverwriteOption, download_run


def download(
    run: RunArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The run's directory (default: .osmosis/evals/RUN).", show_default=False
        ),
    ] = None,
    types: Annotated[
        str,
        typer.Option(
            "--type",
            help="Of metrics, trajectories, artifacts, logs; or all. And journal: what was recorded of each attempt, where the platform has it.",
        ),
    ] = "metrics,trajectories",
    rows: Annotated[
        str | None, typer.Option(help='Of these dataset rows only: "3,7,10-20".', show_default=False)
    ] = None,
    overwrite: OverwriteOption = False,
    yes: DownloadYesOption = False,
) -> OperationResult:
    """Download the files of a run. What is there already is not fetched again.

    Examples:
        osmosis eval download amber-otter-42
        osmosis eval download amber-otter-42 --type metrics --rows 0-9
    """
    from osmosis_ai.services.runs.files import EVAL_FILES, check_rows

    return download_run(
        EVAL_FILES,
        lambda client: client.eval_runs.get(run).eval_run,
        operation="eval.download",
        types=types,
        rows=check_rows(rows),
        output=output,
        overwrite=overwrite,
        yes=yes,
    )
