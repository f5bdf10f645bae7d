"""What a training run has measured and saved, as people see it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.chart import sparkline
from osmosis_ai.cli.output.results import Block, Cell, Chart, Column, Curve, Status, Table, Timestamp

if TYPE_CHECKING:
    from osmosis_ai.api.wire.training_runs import Checkpoint, MetricSeries, MetricSummary, TrainingMetrics
    from osmosis_ai.cli.output.context import OutputContext
    from osmosis_ai.services.training_runs.info import DescribedTraining

WIDE = 100
"""Columns of a terminal from which on trends are drawn."""
TREND_WIDTH = 20
REWARD, VALIDATION = "rollout/raw_reward", "eval/validation/reward"


def checkpoint_columns(*, with_id: bool = False) -> tuple[Column, ...]:
    """Return what a list shows of each checkpoint."""
    return (
        Column("Checkpoint", value=lambda item: item["checkpoint_name"] or "(unnamed)", keep=True),
        Column("Step", "checkpoint_step", right=True),
        Column("Status", value=lambda item: Status(item["status"]) if item["status"] else None),
        Column("Saved", value=lambda item: Timestamp(item["created_at"])),
        *((Column("ID", value=lambda item: item["id"][:8]),) if with_id else ()),
    )


def checkpoint_tables(described: DescribedTraining) -> list[Block]:
    """Return what the run has saved; nothing when it has saved nothing."""
    from osmosis_ai.services.training_runs.info import checkpoint_item

    if not described.checkpoints:
        return []
    shown = checkpoint_columns(with_id=described.detail.is_internal_user)
    items = [checkpoint_item(checkpoint) for checkpoint in described.checkpoints]
    cells = [[column.cell(item) for column in shown] for item in items]
    return [Table(shown, cells, title="Checkpoints", in_plain=True)]


def deploy_hint(checkpoints: Sequence[Checkpoint]) -> list[str]:
    """Return how the last checkpoint gets served."""
    named = [checkpoint.checkpoint_name for checkpoint in checkpoints if checkpoint.checkpoint_name]
    return [f"Deploy with: osmosis model deploy {named[-1]}"] if named else []


def is_wide_terminal(output: OutputContext) -> bool:
    """Tell whether people look at a terminal with room for trends."""
    on_terminal = output.mode == "rich" and output.stdout.isatty()
    return on_terminal and shutil.get_terminal_size().columns >= WIDE


def reward_chart(metrics: TrainingMetrics) -> Iterator[Block]:
    """Yield the chart of the reward in training and in validation, once there is a line to draw."""
    from osmosis_ai.services.training_runs.watch import points

    training = points(metrics, REWARD)
    if len(training) < 2:
        return
    curves = [Curve("training", training, "accent")]
    validation = points(metrics, VALIDATION)
    if validation:
        curves.append(Curve("validation", validation, "good"))
    yield Chart(curves, title="Reward", x_label="step")


def metrics_table(metrics: TrainingMetrics, summaries: Sequence[MetricSummary], *, trends: bool) -> Table:
    """Return metrics, one a row."""
    headings = [Column("Metric", keep=True)]
    headings += [Column(name, right=True) for name in ("First", "Latest", "Change", "Least", "Greatest")]
    curves = {series.metric_key: series for series in metrics.metrics}
    cells: list[list[Cell]] = []
    for summary in summaries:
        values = (summary.initial, summary.latest, summary.delta, summary.min, summary.max)
        row: list[Cell] = [summary.title, *map(formats.compact, values)]
        if trends:
            row.append(_trend(curves.get(summary.key)))
        cells.append(row)
    return Table([*headings, *(["Trend"] if trends else [])], cells, title="Metrics", in_plain=True)


def _trend(series: MetricSeries | None) -> str:
    points = series.data_points if series is not None else []
    return sparkline([point.value for point in points if point.value is not None], width=TREND_WIDTH)
