"""`osmosis train compare`: what two training runs did differently, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.chart import sparkline
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import Block, Chart, Column, Curve, DetailResult, Row, Status, Table

if TYPE_CHECKING:
    from osmosis_ai.services.training_runs.compare import TrainingComparison
    from osmosis_ai.services.training_runs.info import DescribedTraining


def compare(
    a: Annotated[str, typer.Argument(help="Name or id of a run.", show_default=False)],
    b: Annotated[str, typer.Argument(help="The run to compare it with.", show_default=False)],
) -> DetailResult:
    """Compare two training runs: which is better, settings that differ, curves, differences with intervals.

    Examples:
        osmosis train compare keen-owl-2 bold-elm-3
    """
    from osmosis_ai.services.training_runs.compare import compare_runs
    from osmosis_ai.services.training_runs.local_runs import require_run_of_platform

    for run in (a, b):
        require_run_of_platform(
            run,
            "osmosis train compare",
            lambda directory: (
                f"osmosis view {quote(formats.shown_path(directory.parent))} compares those that it holds, in a browser"
            ),
        )
    with platform_context() as context:
        with current().status("Fetching both runs"):
            found = compare_runs(context.client, a, b)
        return DetailResult(
            data={**found.data(), **context.resource()},
            title="Training runs",
            rows=[
                ("Verdict", found.sentence),
                *_rows("A", found.a),
                *_rows("B", found.b),
            ],
            blocks=list(_blocks(found)),
        )


def _rows(letter: str, run: DescribedTraining) -> Iterator[Row]:
    yield letter, _name(run)
    yield f"{letter} status", Status(run.run.status)
    if run.metrics_error:
        yield f"{letter} metrics", f"Not available: {run.metrics_error}"


def _blocks(found: TrainingComparison) -> Iterator[Block]:
    from osmosis_ai.cli.training_runs.tables import is_wide_terminal

    columns = (Column("Setting", keep=True), "A", "B")
    differing = [
        (setting.key, _shown(setting.a), _shown(setting.b)) for setting in found.differences.settings
    ]
    yield Table(
        columns,
        differing or [("all settings", "same", "same")],
        title="Configured differently",
        in_plain=True,
    )
    yield from _charts(found)
    if found.differences.metrics:
        yield _metrics(found, trends=is_wide_terminal(current()))


def _charts(found: TrainingComparison) -> Iterator[Chart]:
    from osmosis_ai.cli.training_runs.tables import REWARD, VALIDATION
    from osmosis_ai.services.training_runs.watch import points

    for key, title in ((REWARD, "Training reward"), (VALIDATION, "Validation reward")):
        curves = (
            Curve(f"A {_name(found.a)}", points(found.a.metrics, key), "accent"),
            Curve(f"B {_name(found.b)}", points(found.b.metrics, key), "warn"),
        )
        if all(len(curve.points) > 1 for curve in curves):
            yield Chart(curves, title=title, x_label="step", in_plain=True)


def _metrics(found: TrainingComparison, *, trends: bool) -> Table:
    headings = ("A, last", "B, last", "B - A", "95 % interval")
    columns = [Column("Metric"), *(Column(name, right=True, keep=True) for name in headings)]
    if trends:
        columns += [Column("A"), Column("B")]
    rows = [
        [*row, *(_trends(found, metric.key) if trends else ())]
        for metric, row in zip(found.differences.metrics, found.differences.metric_rows(), strict=True)
    ]
    return Table(columns, rows, title="Metrics", note=found.differences.note, in_plain=True)


def _trends(found: TrainingComparison, key: str) -> Iterator[str]:
    from osmosis_ai.cli.training_runs.tables import TREND_WIDTH
    from osmosis_ai.services.training_runs.watch import points

    for run in (found.a, found.b):
        yield sparkline([value for _, value in points(run.metrics, key)], width=TREND_WIDTH // 2)


def _shown(value: object) -> str:
    return formats.MISSING if value is None else str(value)


def _name(run: DescribedTraining) -> str:
    return run.run.name or run.run.id
