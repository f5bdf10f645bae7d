"""`osmosis train show`: what was said in a validation."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis_ai.cli.options import RunArgument
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
    run: RunArgument,
    row: RowOption = None,
    attempt: AttemptOption = None,
    step: Annotated[
        int | None,
        typer.Option(min=0, help="Only if the validation after this step is still kept.", show_default=False),
    ] = None,
    failed: FailedOption = False,
    passed: PassedOption = False,
    unscored: UnscoredOption = False,
    finish: FinishOption = None,
    search: SearchOption = "",
    limit: ShownOption = 5,
) -> DetailResult:
    """Print conversations of a run's newest validation: without a score first, then the worst.

    RUN may also be a training directory of this machine, which needs no platform. Rows are numbered as they are held out.

    Examples:
        osmosis train show keen-owl-2 --failed
        osmosis train show trained/keen-owl-2 --row 12 --attempt 0
    """
    from osmosis_ai.cli.output.conversations import shown_validation
    from osmosis_ai.services.training_runs.show import show_validation

    wanted = wanted_samples(
        row, attempt, search, limit, failed=failed, passed=passed, unscored=unscored, finish=finish
    )
    with reading_conversations() as client:
        return shown_validation(show_validation(run, wanted, step=step, client=client), wanted)
