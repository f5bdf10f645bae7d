"""Training runs, as people see them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.results import Block, Cell, Column, Moment, Row, Section, Status, Table
from osmosis_ai.cli.output.sparkline import sparkline
from osmosis_ai.cli.runs.details import configuration_rows, standing_rows

if TYPE_CHECKING:
    from osmosis_ai.api.wire.training_runs import Checkpoint, MetricSeries, MetricSummary, TrainingMetrics
    from osmosis_ai.cli.output.context import OutputContext
    from osmosis_ai.services.training_runs.info import DescribedTraining

WIDE = 100
"""Columns of a terminal from which on trends are drawn."""
TREND_WIDTH = 20
_SECTIONS = ("training", "sampling", "checkpoints", "advanced")


def columns() -> tuple[Column, ...]:
    """Return what a list shows of each run."""
    return (
        Column("Name", value=lambda item: item["name"] or "(unnamed)", keep=True),
        Column("Status", value=lambda item: Status(item["status"]), keep=True),
        Column("Base Model", "model_name"),
        Column("Rollout", "rollout_name"),
        Column("Reward", value=lambda item: number(item["summary"].get("reward")), right=True),
        Column("Submitted", value=lambda item: Moment(item["created_at"])),
        Column("Submitted By", "creator_name"),
    )


def checkpoint_columns(*, with_id: bool = False) -> tuple[Column, ...]:
    """Return what a list shows of each checkpoint."""
    return (
        Column("Checkpoint", value=lambda item: item["checkpoint_name"] or "(unnamed)", keep=True),
        Column("Step", "checkpoint_step", right=True),
        Column("Status", value=lambda item: Status(item["status"]) if item["status"] else None),
        Column("Saved", value=lambda item: Moment(item["created_at"])),
        *((Column("ID", value=lambda item: item["id"][:8]),) if with_id else ()),
    )


def rows(described: DescribedTraining) -> list[Row]:
    """Return the main facts of a run."""
    return list(_rows(described))


def sections(described: DescribedTraining) -> list[Section]:
    """Return how the run was configured."""
    detail = described.detail
    configured = list(configuration_rows(detail, _settings(detail.config or {})))
    return [Section("Configuration", configured)] if configured else []


def blocks(described: DescribedTraining, *, trends: bool) -> list[Block]:
    """Return the run's metrics and checkpoints.

    Args:
        described: the run.
        trends: draw each metric's curve beside its numbers.
    """
    found: list[Block] = []
    metrics = described.metrics
    if metrics is not None and metrics.overview.metric_summaries:
        found.append(metrics_table(metrics, metrics.overview.metric_summaries, trends=trends))
    return [*found, *checkpoint_tables(described)]


def checkpoint_tables(described: DescribedTraining) -> list[Block]:
    """Return what the run has saved; nothing when it has saved nothing."""
    from osmosis_ai.services.training_runs.info import checkpoint_item

    if not described.checkpoints:
        return []
    shown = checkpoint_columns(with_id=described.detail.is_internal_user)
    items = [checkpoint_item(checkpoint) for checkpoint in described.checkpoints]
    cells = [[column.cell(item) for column in shown] for item in items]
    return [Table(shown, cells, title="Checkpoints", in_plain=True)]


def hints(described: DescribedTraining, *, more: bool = False) -> list[str]:
    """Return where to look next.

    Args:
        described: the run.
        more: whether `osmosis train info` has more to show.
    """
    run = described.run
    name = run.name or run.id
    said = [f"View: {run.platform_url}"] if run.platform_url else []
    if more:
        said.append(f"Every metric: osmosis train info {name}")
    if run.status in ("failed", "crashed"):
        said.append(f"See logs with: osmosis train logs {name}")
    if run.resumable:
        said.append(f"Resume with: osmosis train resume {name}")
    if not described.ended:
        said.append(f"Follow with: osmosis train watch {name}")
        said.append(f"Stop with: osmosis train stop {name}")
    return [*said, *deploy_hint(described.checkpoints)]


def deploy_hint(checkpoints: Sequence[Checkpoint]) -> list[str]:
    """Return how the last checkpoint gets served."""
    named = [checkpoint.checkpoint_name for checkpoint in checkpoints if checkpoint.checkpoint_name]
    return [f"Deploy with: osmosis model deploy {named[-1]}"] if named else []


def is_wide_terminal(output: OutputContext) -> bool:
    """Tell whether people look at a terminal with room for trends."""
    on_terminal = output.mode == "rich" and output.stdout.isatty()
    return on_terminal and shutil.get_terminal_size().columns >= WIDE


def metrics_table(metrics: TrainingMetrics, summaries: Sequence[MetricSummary], *, trends: bool) -> Table:
    """Return metrics, one a row.

    Args:
        metrics: of the run.
        summaries: those to show.
        trends: draw each one's curve beside its numbers.
    """
    headings = [Column("Metric", keep=True)]
    headings += [Column(name, right=True) for name in ("First", "Latest", "Change", "Least", "Greatest")]
    curves = {series.metric_key: series for series in metrics.metrics}
    cells: list[list[Cell]] = []
    for summary in summaries:
        values = (summary.initial, summary.latest, summary.delta, summary.min, summary.max)
        row: list[Cell] = [summary.title, *map(number, values)]
        if trends:
            row.append(_trend(curves.get(summary.key)))
        cells.append(row)
    return Table([*headings, *(["Trend"] if trends else [])], cells, title="Metrics", in_plain=True)


def number(value: Any) -> str:
    """Return a number with as many digits as tell it from others."""
    if not isinstance(value, (int, float)):
        return formats.MISSING
    return f"{value:.3f}" if 0.001 <= abs(value) < 1000 or not value else f"{value:.3g}"


def _rows(described: DescribedTraining) -> Iterator[Row]:
    from osmosis_ai.services.training_runs.info import WAITING, run_summary

    run, detail = described.run, described.detail
    summary = run_summary(run)
    yield from standing_rows(
        run,
        with_id=detail.is_internal_user,
        waiting=run.status in WAITING,
        progress=summary.get("progress"),
    )
    if "reward" in summary:
        yield "Reward", number(summary["reward"])
    if described.validation is not None:
        yield from described.validation.facts()
    duration_ms = described.duration_ms
    yield "Duration", formats.duration(duration_ms / 1000 if duration_ms is not None else None)
    yield "Examples Processed", formats.count(run.examples_processed_count)
    yield "Submitted", Moment(run.created_at, seconds=True)
    yield "Submitted By", run.creator_name
    yield "Dataset", detail.dataset.name if detail.dataset else None
    yield "Base Model", detail.model.name if detail.model else None
    yield "Rollout", detail.rollout.name if detail.rollout else None
    yield "Started", Moment(run.started_at, seconds=True)
    yield "Completed", Moment(run.completed_at, seconds=True)
    if run.notes:
        yield "Notes", run.notes
    if described.metrics is None:
        yield "Metrics", f"Not available: {described.metrics_error}"
    elif described.in_progress:
        yield "Note", "The run is under way: the metrics are a snapshot."


def _settings(config: Mapping[str, Any]) -> str:
    """Return every setting on one line, under the section it was written in."""
    others = [name for name in config if name not in _SECTIONS]
    found = []
    for name in (*_SECTIONS, *others):
        section = config.get(name)
        if isinstance(section, Mapping):
            found += [f"{name}.{key}={value}" for key, value in section.items() if value is not None]
        elif section is not None:
            found.append(f"{name}={section}")
    return ", ".join(found)


def _trend(series: MetricSeries | None) -> str:
    points = series.data_points if series is not None else []
    return sparkline([point.value for point in points if point.value is not None], width=TREND_WIDTH)
