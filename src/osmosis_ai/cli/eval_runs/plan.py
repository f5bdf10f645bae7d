"""`osmosis eval plan`: how much has to be run before a difference shows?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from osmosis_ai.cli.connection import platform_context, platform_when_needed
from osmosis_ai.cli.name_completion import complete_run_anywhere
from osmosis_ai.cli.options import EvalConfigArgument, MarkdownOption
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult, Text
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.evaluation.comparison.run_samples import ComparedInputs, RunSamples
    from osmosis_ai.services.eval_runs.plan import PlannedEval
    from osmosis_ai.services.eval_runs.plan_request import PlanRequest

GOAL, LIMITS, SPREAD = "What to see", "Limits", "How far rows and attempts lie apart"


def plan(
    config: EvalConfigArgument,
    pilot: Annotated[
        str | None,
        typer.Option(
            help="A run, best of 30 rows or more with n >= 2, that tells the spread and the cost.",
            metavar="RUN",
            rich_help_panel=SPREAD,
            autocompletion=complete_run_anywhere,
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="A second run on the same rows: the spread is that of the difference.",
            metavar="RUN",
            rich_help_panel=SPREAD,
            autocompletion=complete_run_anywhere,
        ),
    ] = None,
    pass_rate: Annotated[
        float | None,
        typer.Option(help="Without a run: the pass rate to expect (default: 0.5).", rich_help_panel=SPREAD),
    ] = None,
    icc: Annotated[
        float | None,
        typer.Option(
            help="Without a run: the share of the spread that is between rows (default: 0.3).",
            rich_help_panel=SPREAD,
        ),
    ] = None,
    detect: Annotated[
        float | None,
        typer.Option(
            help="The difference to be seen: three points of a pass rate are 0.03.", rich_help_panel=GOAL
        ),
    ] = None,
    power: Annotated[float, typer.Option(help="In how many of all cases.", rich_help_panel=GOAL)] = 0.8,
    confidence: Annotated[
        float | None,
        typer.Option(help="Of the interval that has to leave out no difference.", rich_help_panel=GOAL),
    ] = None,
    metric: Annotated[
        Literal["pass_rate", "reward"], typer.Option(help="What is compared.", rich_help_panel=GOAL)
    ] = "pass_rate",
    max_cost: Annotated[
        float | None, typer.Option(help="US dollars for one run.", rich_help_panel=LIMITS)
    ] = None,
    rows_at_most: Annotated[
        int | None, typer.Option(help="Rows there can be (default: the dataset's).", rich_help_panel=LIMITS)
    ] = None,
    row_cost: Annotated[
        float,
        typer.Option(help="US dollars to make one more row, besides its attempts.", rich_help_panel=LIMITS),
    ] = 0.0,
    markdown: MarkdownOption = None,
) -> OperationResult:
    """Say how many rows and attempts it takes to see a difference, what they cost, and what a config's own see.

    A run that has been made tells how far rows and attempts lie apart; without one they are assumed. Nothing is run.

    Examples:
        osmosis eval plan configs/eval/multiply.toml --pilot amber-otter-42 --detect 0.03
        osmosis eval plan configs/eval/multiply.toml --pass-rate 0.6 --icc 0.3 --rows-at-most 200
    """
    from osmosis_ai.cli.eval_runs import plan_tables
    from osmosis_ai.cli.output.decision_files import DecisionFiles
    from osmosis_ai.services.eval_runs.plan_request import PlanRequest

    request = PlanRequest(
        config=config,
        metric=metric,
        pilot=pilot,
        against=against,
        detect=detect,
        power=power,
        confidence=confidence,
        max_cost=max_cost,
        rows_at_most=rows_at_most,
        row_cost=row_cost,
        pass_rate=pass_rate,
        icc=icc,
    )
    files = DecisionFiles(markdown=markdown).check()
    planned = _planned(request)
    verdict, *further = plan_tables.sentences(planned)
    shown = plan_tables.table(planned)
    files.write(plan_tables.document(planned, shown))
    return OperationResult(
        operation="eval.plan",
        message=verdict,
        resource={**planned.data(), "sentences": [verdict, *further]},
        blocks=[
            *(Text(sentence, in_plain=True) for sentence in further),
            shown,
            *(Text(f"Note: {note}", tone="dim", in_plain=True) for note in planned.notes),
        ],
    )


def _planned(request: PlanRequest) -> PlannedEval:
    from osmosis_ai.services.eval_runs.plan import plan_eval
    from osmosis_ai.services.eval_runs.plan_request import PlanUsageError

    try:
        return plan_eval(request, _find, _rows_on_the_platform)
    except PlanUsageError as error:
        raise typer.BadParameter(error.message) from None


def _find(reference: str, like: ComparedInputs) -> RunSamples:
    from osmosis_ai.services.eval_runs.resolver import find_run_samples

    with platform_when_needed() as client:
        return find_run_samples(reference, client=client, like=like)


def _rows_on_the_platform(dataset: str) -> int | None:
    """Return the rows of a dataset that is on the platform alone; None where nobody can be asked."""
    try:
        with platform_context() as context, current().status("Fetching dataset"):
            return context.client.datasets.get(dataset).row_count
    except OsmosisError:
        return None
