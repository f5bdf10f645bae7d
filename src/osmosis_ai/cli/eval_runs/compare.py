"""`osmosis eval compare`: is B better than A?"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis_ai.cli.connection import platform_when_needed
from osmosis_ai.cli.name_completion import complete_run_anywhere
from osmosis_ai.cli.options import (
    MarkdownOption,
    NoTextOption,
    OverwriteReportOption,
    ReportOption,
    RewardRangeOption,
    checked_confidence,
    parse_reward_range,
)
from osmosis_ai.cli.output.decision_files import DecisionFiles
from osmosis_ai.cli.output.formats import one_line
from osmosis_ai.cli.output.report_files import report_file, tell_written
from osmosis_ai.cli.output.results import OperationResult
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.evaluation.comparison.engine import CompareOptions, RunComparison
    from osmosis_ai.services.report_files import ReportFile

_MOST_ROWS = 10_000
_NUMBERS = "numbers, names and settings of the runs, and digests of rows"
_TEXT = "values of the columns that --slice names"


def compare(
    baseline: Annotated[
        str,
        typer.Argument(
            help="The run to compare with: a name, the beginning of one, a directory, @last, git:REF; local:NAME and "
            "platform:NAME say where.",
            show_default=False,
            autocompletion=complete_run_anywhere,
        ),
    ],
    candidates: Annotated[
        list[str],
        typer.Argument(
            help="The runs to compare with it, named alike.",
            show_default=False,
            autocompletion=complete_run_anywhere,
        ),
    ],
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC",
            help="What decides: reward, pass_rate, pass@K, pass^K, unscored, failed, cost_per_row, tokens or latency "
            "(default: pass_rate, of graded rewards reward).",
            show_default=False,
        ),
    ] = None,
    slices: Annotated[
        list[str] | None,
        typer.Option(
            "--slice",
            metavar="COLUMN",
            help="Also by the values of a column of the dataset; may be repeated.",
        ),
    ] = None,
    confidence: Annotated[float, typer.Option(metavar="SHARE", help="Of every interval.")] = 0.95,
    reward_range: RewardRangeOption = None,
    unpaired: Annotated[bool, typer.Option("--unpaired", help="Compare runs on different rows.")] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Also compare runs that are not finished.")
    ] = False,
    allow_different_grader: Annotated[
        bool, typer.Option("--allow-different-grader", help="Also compare runs that were graded differently.")
    ] = False,
    allow_same: Annotated[
        bool, typer.Option("--allow-same", help="Also compare runs of the same seed, model and code.")
    ] = False,
    seed: Annotated[
        int, typer.Option(min=0, help="Of what is drawn at random; the same seed, the same output.")
    ] = 0,
    rows: Annotated[
        int, typer.Option(min=0, max=_MOST_ROWS, help="How many of the most changed rows to list.")
    ] = 10,
    markdown: MarkdownOption = None,
    report: ReportOption = None,
    no_text: NoTextOption = False,
    force: OverwriteReportOption = False,
) -> OperationResult:
    """Compare runs with a baseline, row by row: is it better, worse, or can it not be told? Exits 0 whatever it says.

    Rows are matched by what they are, never by their place. `osmosis eval gate` turns a comparison into an exit code.

    Examples:
        osmosis eval compare amber-otter-42 keen-owl-7
        osmosis eval compare amber-otter-42 keen-owl-7 --report compared.html
    """
    from osmosis_ai.evaluation.comparison.comparability import Allowances
    from osmosis_ai.evaluation.comparison.engine import CompareOptions

    options = CompareOptions(
        metric=None if metric is None else _checked_metric(metric),
        slices=tuple(dict.fromkeys(slices or [])),
        confidence=checked_confidence(confidence),
        reward_range=None if reward_range is None else parse_reward_range(reward_range),
        seed=seed,
        rows_shown=rows,
        allowances=Allowances(
            unpaired=unpaired, partial=partial, different_grader=allow_different_grader, same=allow_same
        ),
    )
    files = DecisionFiles(markdown=markdown).check()
    text = _TEXT if slices else ""
    file = report_file(report, overwrite=force, no_text=no_text, holds={None: (_NUMBERS, text)})
    return _compared(baseline, candidates, options, files, file)


def _compared(
    baseline: str,
    candidates: Sequence[str],
    options: CompareOptions,
    files: DecisionFiles,
    report: ReportFile | None,
) -> OperationResult:
    from osmosis_ai.cli.output.comparison_tables import comparison_blocks, comparison_document
    from osmosis_ai.services.eval_runs.compare import compare as compare_named

    with platform_when_needed() as client:
        found = compare_named(baseline, candidates, options, client=client, report=report)
    files.write(comparison_document(found))
    return OperationResult(
        operation="eval.compare",
        # A name may hold a line break, and CI reads lines as commands.
        message=one_line(found.sentence),
        resource={**found.data(), **tell_written(report)},
        blocks=comparison_blocks(found),
        next_steps=_next_steps(found),
    )


def _next_steps(found: RunComparison) -> list[str]:
    """Return how to find out what would tell runs apart that could not be told apart."""
    config = found.candidates[-1].totals.inputs.config
    # Runs of which every row is the same have no spread to plan with.
    open_ones = [
        each
        for each in found.candidates
        if each.verdict.detectable is not None and (each.rows is None or each.rows.higher or each.rows.lower)
    ]
    if config is None or not open_ones or found.metric not in ("pass_rate", "reward"):
        return []
    pilot, against = (
        run.location if run.place == "file" else run.name for run in (open_ones[0].totals, found.baseline)
    )
    words = ["osmosis", "eval", "plan", config, "--pilot", pilot, "--against", against, "--detect", "0.05"]
    metric = [] if found.metric == "pass_rate" else ["--metric", found.metric]
    return [one_line(f"What would tell: {shlex.join([*words, *metric])}")]


def _checked_metric(metric: str) -> str:
    from osmosis_ai.evaluation.comparison.metric_changes import described

    try:
        described(metric)
    except OsmosisError as error:
        raise typer.BadParameter(
            f"{error.message.rstrip('.')}; {error.hint}", param_hint="'--metric'"
        ) from None
    return metric
