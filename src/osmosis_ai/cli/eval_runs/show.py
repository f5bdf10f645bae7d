"""`osmosis eval show`: what was said."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis_ai.cli.name_completion import complete_run_anywhere
from osmosis_ai.cli.output.results import DetailResult
from osmosis_ai.cli.runs.showing import (
    AttemptOption,
    FailedOption,
    FinishOption,
    PassedOption,
    RowOption,
    SearchOption,
    ShownOption,
    UnscoredOption,
    reading_conversations,
    wanted_samples,
)


def show(
    run: Annotated[
        str,
        typer.Argument(
            help="A run of this machine or of the platform: a name, the beginning of one, a directory, @last.",
            show_default=False,
            autocompletion=complete_run_anywhere,
        ),
    ],
    row: RowOption = None,
    attempt: AttemptOption = None,
    failed: FailedOption = False,
    passed: PassedOption = False,
    flaky: Annotated[bool, typer.Option("--flaky", help="Of rows that pass now and then.")] = False,
    unscored: UnscoredOption = False,
    finish: FinishOption = None,
    search: SearchOption = "",
    limit: ShownOption = 5,
    side_by_side: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Beside each the same row in another run.",
            show_default=False,
            autocompletion=complete_run_anywhere,
        ),
    ] = None,
) -> DetailResult:
    """Print conversations of a run, by row and attempt. `osmosis view` shows them in a browser.

    Examples:
        osmosis eval show amber-otter-42 --failed
        osmosis eval show @last --row 12 --side-by-side amber-otter-42
    """
    from osmosis_ai.cli.output.conversations import shown_run
    from osmosis_ai.services.eval_runs.show import show as show_named

    wanted = wanted_samples(
        row,
        attempt,
        search,
        limit,
        failed=failed,
        passed=passed,
        flaky=flaky,
        unscored=unscored,
        finish=finish,
    )
    with reading_conversations() as client:
        return shown_run(show_named(run, wanted, client=client, beside=side_by_side), wanted)
