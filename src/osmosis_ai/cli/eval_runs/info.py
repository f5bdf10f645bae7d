"""`osmosis eval info`: one run, its configuration and its results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import DetailResult
from osmosis_ai.cli.runs.details import RunArgument, keep_metrics


def info(
    run: RunArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Directory for the run's metrics.json (default: .osmosis/evals/RUN).",
            show_default=False,
        ),
    ] = None,
) -> DetailResult:
    """Show a run of the platform: how far it is, how it was configured, what came of it."""
    from osmosis_ai.cli.eval_runs import platform_tables
    from osmosis_ai.services.eval_runs.download import save_metrics
    from osmosis_ai.services.eval_runs.info import describe_run

    with platform_context() as context:
        with current().status("Fetching evaluation run"):
            described = describe_run(context.client, run)
            saved = keep_metrics(
                lambda: save_metrics(context.client, described.run, context.workspace, output),
                available=described.metrics is not None,
                asked=output is not None,
            )
        path = saved["output_path"]
        return DetailResult(
            data={**described.data(), **saved, **context.resource()},
            title="Evaluation Run",
            rows=platform_tables.rows(described),
            sections=platform_tables.sections(described),
            blocks=platform_tables.numbers(described) if described.estimates is not None else (),
            hints=[*platform_tables.hints(described), *([f"Metrics: {path}"] if path else [])],
        )
