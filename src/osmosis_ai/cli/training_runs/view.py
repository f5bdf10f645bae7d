"""Training runs of the platform, as people see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.chart import sparkline
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import Block, Column, Row, Text
from osmosis_ai.cli.runs.following import RunStanding
from osmosis_ai.cli.runs.view import RunView
from osmosis_ai.cli.training_runs import tables
from osmosis_ai.cli.training_runs.tables import REWARD, VALIDATION
from osmosis_ai.services.training_runs import info
from osmosis_ai.services.training_runs.info import DescribedTraining
from osmosis_ai.services.training_runs.watch import SeenTraining, TrainingLook

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.services.context import PlatformContext
    from osmosis_ai.services.listing import Listing

_SECTIONS = ("training", "sampling", "checkpoints", "advanced")
_SPARKLINE = 24
_NOTICEABLE_S = 0.05
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


class TrainingRunView(RunView[DescribedTraining, SeenTraining]):
    """Steps, curves and checkpoints."""

    kind = "train"
    model_heading = "Base Model"

    def fetch(
        self, client: PlatformClient, *, limit: int, everything: bool
    ) -> tuple[Listing[Any], Callable[[Any], Mapping[str, Any]]]:
        return info.list_runs(client, limit=limit, everything=everything), info.run_item

    def describe(self, client: PlatformClient, name: str) -> DescribedTraining:
        return info.describe_run(client, name)

    def look(self, client: PlatformClient, name: str) -> TrainingLook:
        return TrainingLook(client, name)

    def standing(self, seen: SeenTraining) -> RunStanding:
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

    def save(
        self, context: PlatformContext, described: DescribedTraining, output: str | None
    ) -> tuple[Path | None, str | None]:
        from osmosis_ai.services.training_runs.info import save_metrics

        return save_metrics(described, context.workspace, output)

    def own_columns(self) -> Sequence[Column]:
        return (
            Column("Base Model", "model_name"),
            Column("Rollout", "rollout_name"),
            Column("Reward", value=lambda item: formats.compact(item["summary"].get("reward")), right=True),
        )

    def results(self, described: DescribedTraining) -> Iterator[Row]:
        if "reward" in described.summary:
            yield "Reward", formats.compact(described.summary["reward"])
        if described.validation is not None:
            yield from described.validation.facts()
        yield "Examples Processed", formats.count(described.run.examples_processed_count)
        if described.run.notes:
            yield "Notes", described.run.notes

    def settings(self, config: Mapping[str, Any]) -> Iterable[str]:
        """Yield every setting under the section it was written in."""
        for name in (*_SECTIONS, *(name for name in config if name not in _SECTIONS)):
            section = config.get(name)
            if isinstance(section, Mapping):
                yield from (f"{name}.{key}={value}" for key, value in section.items() if value is not None)
            elif section is not None:
                yield f"{name}={section}"

    def numbers(self, described: DescribedTraining) -> Iterator[Block]:
        metrics = described.metrics
        if metrics is not None:
            yield from tables.reward_chart(metrics)
            if summaries := metrics.overview.metric_summaries:
                trends = tables.is_wide_terminal(current())
                yield tables.metrics_table(metrics, summaries, trends=trends)
        yield from tables.checkpoint_tables(described)

    def headline(self, described: DescribedTraining) -> Iterator[Block]:
        """Yield the curve of the reward, the numbers one looks at first, and the checkpoints."""
        metrics = described.metrics
        if metrics is not None:
            yield from tables.reward_chart(metrics)
            summaries = {summary.key: summary for summary in metrics.overview.metric_summaries}
            if shown := [summaries[key] for key in _HEADLINE if key in summaries]:
                yield tables.metrics_table(metrics, shown, trends=False)
        for name, words in described.validation.facts() if described.validation is not None else ():
            yield Text(f"{name}: {words}", in_plain=True)
        yield from tables.checkpoint_tables(described)

    def own_hints(self, described: DescribedTraining, *, followed: bool) -> Iterator[str]:
        run = described.run
        name = run.name or run.id
        if followed:
            # Why it ended before its last step, perhaps.
            if run.notes:
                yield f"Notes: {run.notes}"
            yield f"Every metric: osmosis train info {name}"
        if run.resumable:
            yield f"Resume with: osmosis train resume {name}"
        yield from tables.deploy_hint(described.checkpoints)


VIEW = TrainingRunView()


def _facts(seen: SeenTraining) -> Iterator[str]:
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


def _lines(seen: SeenTraining) -> Iterator[str]:
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


def _phases(seen: SeenTraining) -> Iterator[str]:
    """Yield what the last step spent a noticeable time with; validations come every so many steps only."""
    for key, word in _PHASES.items():
        value = seen.of_last_step(key)
        if value is not None and value >= _NOTICEABLE_S:
            yield f"{word} {_seconds(value)}"


def _sampled_per_s(seen: SeenTraining) -> str:
    rate = seen.latest("speed/sampling_tokens_per_s")
    return f"{formats.count(round(rate))} tokens/s" if rate is not None else ""


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 60 else formats.duration(value)
