"""`osmosis train info`: one run, its configuration, its metrics and what it has saved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import Block, DetailResult
from osmosis_ai.cli.runs.details import RunArgument, keep_metrics

if TYPE_CHECKING:
    from osmosis_ai.services.training_runs.info import DescribedTraining


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
    """Show a training run: how far it is, how it was configured, how its metrics went."""
    from osmosis_ai.cli.training_runs import tables
    from osmosis_ai.services.training_runs.info import describe_run
    from osmosis_ai.services.training_runs.metrics_export import save_metrics

    with platform_context() as context:
        with current().status("Fetching training run"):
            described = describe_run(context.client, run)
        saved = keep_metrics(
            lambda: save_metrics(described, context.workspace, output),
            available=described.metrics is not None,
            asked=output is not None,
        )
        path = saved["output_path"]
        return DetailResult(
            data={**described.data(), **saved, **context.resource()},
            title="Training Run",
            rows=tables.rows(described),
            sections=tables.sections(described),
            blocks=[*_chart(described), *tables.blocks(described, trends=tables.is_wide_terminal(current()))],
            hints=[*tables.hints(described), *([f"Metrics: {path}"] if path else [])],
        )


def _chart(described: DescribedTraining) -> Iterator[Block]:
    from osmosis_ai.cli.training_runs.following import reward_chart

    if described.metrics is not None:
        yield from reward_chart(described.metrics)
