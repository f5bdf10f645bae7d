"""`osmosis train info`: one run, its configuration, its metrics and what it has saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_ai.cli.options import NoTextOption, OverwriteReportOption, ReportOption, RunArgument
from osmosis_ai.cli.output.report_files import TRAINING_HOLDS, report_file, tell_written
from osmosis_ai.cli.output.results import DetailResult

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from osmosis_ai.cli.output.results import Block, Row
    from osmosis_ai.services.training_runs.info import DescribedTraining
    from osmosis_ai.services.training_runs.local_runs import LocalTraining


def info(
    run: RunArgument,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help="File or directory for the metrics of a run of the platform (default: .osmosis/metrics).",
            show_default=False,
        ),
    ] = None,
    report: ReportOption = None,
    no_text: NoTextOption = False,
    force: OverwriteReportOption = False,
) -> DetailResult:
    """Show a training run: how far it is, how it was configured, how its metrics went.

    RUN may also be a training directory of this machine, which needs no platform.

    Examples:
        osmosis train info keen-owl-2
        osmosis train info keen-owl-2 -o metrics.json
        osmosis train info keen-owl-2 --report keen-owl-2.html
    """
    from osmosis_ai.cli.training_runs.view import VIEW
    from osmosis_ai.services.training_runs.local_runs import training_directory

    file = report_file(report, overwrite=force, no_text=no_text, holds={"training": TRAINING_HOLDS})

    def also(found: LocalTraining | DescribedTraining) -> dict[str, Any]:
        if file is not None:
            from osmosis_ai.services.training_runs.report import report_training

            report_training(found, file)
        return tell_written(file)

    directory = training_directory(run)
    if directory is not None:
        return _local_info(directory, output, also)
    return VIEW.info(run, output, also=also)


def _local_info(
    directory: Path, output: str | None, also: Callable[[LocalTraining], dict[str, Any]]
) -> DetailResult:
    """Return a training directory in full."""
    from shlex import quote

    from osmosis_ai.cli.output import formats
    from osmosis_ai.cli.output.context import current
    from osmosis_ai.cli.output.results import Section, Status, Styled, Table, Text, Timestamp
    from osmosis_ai.cli.training_runs import tables
    from osmosis_ai.errors import OsmosisError
    from osmosis_ai.services.training_runs.local_runs import describe_training

    if output is not None:
        raise OsmosisError(
            f"{formats.shown_path(directory)} is a directory of this machine: its metrics are in its metrics.jsonl.",
            hint="leave out --output",
        )
    found = describe_training(directory)
    entry, metrics = found.detail.summary, found.metrics
    saved = [
        (adapter.name, adapter.step, formats.compact(adapter.reward)) for adapter in found.curves.checkpoints
    ]
    started = entry.started_at
    rows: list[Row] = [
        ("Name", entry.name),
        ("Status", Status(entry.status)),
        *(("Problem", Styled(problem, "bad")) for problem in found.detail.problems),
        ("Started", Timestamp(started.isoformat()) if started is not None else None),
        ("Reward", formats.compact(entry.reward)),
        *(found.validation.facts() if found.validation is not None else ()),
    ]
    trends = tables.is_wide_terminal(current())
    blocks: list[Block] = [
        *tables.reward_chart(metrics),
        *(
            [tables.metrics_table(metrics, metrics.overview.metric_summaries, trends=trends)]
            if metrics.metrics
            else []
        ),
        *(
            [Table(("Checkpoint", "Step", "Reward"), saved, title="Checkpoints", in_plain=True)]
            if saved
            else []
        ),
    ]
    if found.detail.config_written is not None:
        blocks.append(Text(found.detail.config_written, title="Config, as it was written"))
    return DetailResult(
        data={**found.data(), **also(found)},
        title="Training Run of This Machine",
        rows=rows,
        sections=[Section("Facts", list(found.detail.facts))],
        blocks=blocks,
        hints=[f"Look at it: osmosis view {quote(formats.shown_path(directory))}"],
    )
