"""How training runs are listed, shown and compared."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from osmosis_ai.api.models.training_runs import Checkpoint, MetricSummary, TrainingMetrics
from osmosis_ai.cli.output import formats, results
from osmosis_ai.cli.output.context import OutputContext, current
from osmosis_ai.cli.output.formats import sparkline
from osmosis_ai.cli.runs.view import RunStanding, RunView
from osmosis_ai.services import training_runs
from osmosis_ai.services.training_runs import (
    DescribedTraining,
    TrainingLook,
    checkpoint_item,
    points,
    save_metrics,
)

_SECTIONS = ("training", "sampling", "checkpoints", "advanced")
_SPARKLINE = 24
_NOTICEABLE_S = 0.05
WIDE = 100
"""Columns of a terminal from which on trends are drawn."""
TREND_WIDTH = 20
REWARD, VALIDATION = "rollout/raw_reward", "eval/validation/reward"
_PHASES = {
    "time/sampling_s": "sampling",
    "time/learning_s": "learning",
    "time/publishing_s": "publishing",
    "time/validation_s": "validation",
    "time/checkpoint_s": "checkpoint",
}
_HEADLINE = (
    *(REWARD, VALIDATION, "eval/validation/pass_rate", "rollout/zero_variance_fraction"),
    *("train/entropy_loss", "train/kl_base", "rollout/response_lengths", "time/step_s"),
)


def _standing(seen: DescribedTraining) -> RunStanding:
    run = seen.detail.training_run
    return RunStanding(
        name=run.name or "Training",
        status=run.status,
        completed=run.current_step,
        total=run.total_steps,
        unit="steps",
        note=" · ".join(_facts(seen)),
        below=tuple(_lines(seen)),
        waits=seen.detail.waits or "",
        waits_for=seen.detail.waits_for,
    )


def _results(described: DescribedTraining) -> Iterator[results.Row]:
    if "reward" in described.summary:
        yield "Reward", formats.compact(described.summary["reward"])
    if described.validation is not None:
        yield from described.validation.facts()
    yield "Examples Processed", formats.count(described.run.examples_processed_count)
    if described.run.notes:
        yield "Notes", described.run.notes


def _settings(config: Mapping[str, Any]) -> Iterable[str]:
    """Yield every setting under the section it was written in."""
    for name in (*_SECTIONS, *(name for name in config if name not in _SECTIONS)):
        section = config.get(name)
        if isinstance(section, Mapping):
            yield from (f"{name}.{key}={value}" for key, value in section.items() if value is not None)
        elif section is not None:
            yield f"{name}={section}"


def _numbers(described: DescribedTraining) -> Iterator[results.Block]:
    metrics = described.metrics
    if metrics is not None:
        yield from reward_chart(metrics)
        if summaries := metrics.overview.metric_summaries:
            trends = is_wide_terminal(current())
            yield metrics_table(metrics, summaries, trends=trends)
    yield from checkpoint_tables(described)


def _headline(described: DescribedTraining) -> Iterator[results.Block]:
    """Yield the curve of the reward, the numbers one looks at first, and the checkpoints."""
    metrics = described.metrics
    if metrics is not None:
        yield from reward_chart(metrics)
        summaries = {summary.key: summary for summary in metrics.overview.metric_summaries}
        if shown := [summaries[key] for key in _HEADLINE if key in summaries]:
            yield metrics_table(metrics, shown, trends=False)
    for name, words in described.validation.facts() if described.validation is not None else ():
        yield results.Text(f"{name}: {words}", in_plain=True)
    yield from checkpoint_tables(described)


def _hints(described: DescribedTraining, followed: bool) -> Iterator[str]:
    run, name = described.run, described.name
    if followed:
        # Why it ended before its last step, perhaps.
        if run.notes:
            yield f"Notes: {run.notes}"
        yield f"Every metric: osmosis train info {name}"
    if run.resumable:
        yield f"Resume with: osmosis train resume {name}"
    yield from deploy_hint(described.checkpoints)


def _facts(seen: DescribedTraining) -> Iterator[str]:
    """Yield what one line says of the last step."""
    reward = seen.latest(REWARD)
    if reward is None:
        reward = seen.detail.training_run.reward
    if reward is not None:
        yield f"reward {reward:.3f}"
    validated = seen.latest(VALIDATION)
    if validated is not None:
        yield f"validation {validated:.3f}"
    step_s = seen.latest("time/step_s")
    if step_s is not None:
        phases = ", ".join(_phases(seen))
        yield f"{_seconds(step_s)}/step" + (f" ({phases})" if phases else "")
    rate = _sampled_per_s(seen)
    if rate:
        yield rate


def _lines(seen: DescribedTraining) -> Iterator[str]:
    """Yield the same under a bar, with the curve of the reward."""
    rewards = seen.values(REWARD)
    if not rewards:
        return
    line = f"  reward  {sparkline(rewards, width=_SPARKLINE)}  {rewards[0]:.3f} → {rewards[-1]:.3f}"
    validated = seen.values(VALIDATION)
    yield line + (f"   validation {validated[0]:.3f} → {validated[-1]:.3f}" if validated else "")
    step_s = seen.latest("time/step_s")
    told = [_sampled_per_s(seen)]
    told.append(f"{_seconds(step_s)} a step: {', '.join(_phases(seen))}" if step_s is not None else "")
    if any(told):
        yield "  " + " · ".join(filter(None, told))


def _phases(seen: DescribedTraining) -> Iterator[str]:
    """Yield what the last step spent a noticeable time with; validations come every so many steps only."""
    for key, word in _PHASES.items():
        value = seen.of_last_step(key)
        if value is not None and value >= _NOTICEABLE_S:
            yield f"{word} {_seconds(value)}"


def _sampled_per_s(seen: DescribedTraining) -> str:
    rate = seen.latest("speed/sampling_tokens_per_s")
    return f"{formats.count(round(rate))} tokens/s" if rate is not None else ""


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 60 else formats.duration(value)


def checkpoint_columns(*, with_id: bool = False) -> tuple[results.Column, ...]:
    return (
        results.Column("Checkpoint", value=lambda item: item["checkpoint_name"] or "(unnamed)", keep=True),
        results.Column("Step", "checkpoint_step", right=True),
        results.Column(
            "Status", value=lambda item: results.Status(item["status"]) if item["status"] else None
        ),
        results.Column("Saved", value=lambda item: results.Timestamp(item["created_at"])),
        *((results.Column("ID", value=lambda item: item["id"][:8]),) if with_id else ()),
    )


def checkpoint_tables(described: DescribedTraining) -> list[results.Block]:
    if not described.checkpoints:
        return []
    shown = checkpoint_columns(with_id=described.detail.is_internal_user)
    items = [checkpoint_item(checkpoint) for checkpoint in described.checkpoints]
    cells = [[column.cell(item) for column in shown] for item in items]
    return [results.Table(shown, cells, title="Checkpoints", in_plain=True)]


def deploy_hint(checkpoints: Sequence[Checkpoint]) -> list[str]:
    named = [checkpoint.checkpoint_name for checkpoint in checkpoints if checkpoint.checkpoint_name]
    return [f"Deploy with: osmosis model deploy {named[-1]}"] if named else []


def is_wide_terminal(output: OutputContext) -> bool:
    """Tell whether people look at a terminal with room for trends."""
    on_terminal = output.mode == "rich" and output.stdout.isatty()
    return on_terminal and shutil.get_terminal_size().columns >= WIDE


def reward_chart(metrics: TrainingMetrics) -> Iterator[results.Block]:
    training = points(metrics, REWARD)
    if len(training) < 2:
        return
    curves = [results.Curve("training", training, "accent")]
    validation = points(metrics, VALIDATION)
    if validation:
        curves.append(results.Curve("validation", validation, "good"))
    yield results.Chart(curves, title="Reward", x_label="step")


def metrics_table(
    metrics: TrainingMetrics, summaries: Sequence[MetricSummary], *, trends: bool
) -> results.Table:
    headings = [results.Column("Metric", keep=True)]
    headings += [
        results.Column(name, right=True) for name in ("First", "Latest", "Change", "Least", "Greatest")
    ]
    curves = {series.metric_key: series for series in metrics.metrics}
    cells: list[list[results.Cell]] = []
    for summary in summaries:
        values = (summary.initial, summary.latest, summary.delta, summary.min, summary.max)
        row: list[results.Cell] = [summary.title, *map(formats.compact, values)]
        if trends:
            series = curves.get(summary.key)
            known = [point.value for point in series.data_points if point.value is not None] if series else []
            row.append(sparkline(known, width=TREND_WIDTH))
        cells.append(row)
    return results.Table([*headings, *(["Trend"] if trends else [])], cells, title="Metrics", in_plain=True)


def _details(described: DescribedTraining) -> results.DetailResult:
    return results.DetailResult(
        data={},
        title="Training Run",
        rows=list(VIEW.rows(described)),
        sections=list(VIEW.configuration(described)),
        blocks=list(_numbers(described)),
        hints=list(VIEW.next_hints(described, followed=False)),
    )


VIEW = RunView(
    kind="train",
    model_heading="Base Model",
    shows_submitter=True,
    columns=(
        results.Column("Base Model", "model_name"),
        results.Column("Rollout", "rollout_name"),
        results.Column(
            "Reward", value=lambda item: formats.compact(item["summary"].get("reward")), right=True
        ),
    ),
    fetch=training_runs.list_runs,
    item=training_runs.run_item,
    describe=training_runs.describe_run,
    look=TrainingLook,
    standing=_standing,
    save=lambda context, described, output: save_metrics(described, context.workspace, output),
    results=_results,
    settings=_settings,
    details=_details,
    headline=_headline,
    hints=_hints,
)
