"""A training run of the platform, shown while it goes on, and what there is to say of it when it has ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.results import Block, Chart, Curve, Text
from osmosis_ai.cli.output.sparkline import sparkline
from osmosis_ai.cli.runs import following
from osmosis_ai.cli.training_runs import tables

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.wire.training_runs import TrainingMetrics
    from osmosis_ai.services.training_runs.info import DescribedTraining
    from osmosis_ai.services.training_runs.watch import SeenTraining

REWARD, VALIDATION = "rollout/raw_reward", "eval/validation/reward"
_SPARKLINE = 24
_NOTICEABLE_S = 0.05
_PHASES = {
    "time/sampling_s": "sampling",
    "time/learning_s": "learning",
    "time/publishing_s": "publishing",
    "time/validation_s": "validation",
    "time/checkpoint_s": "checkpoint",
}
_NUMBERS = (
    *(REWARD, VALIDATION, "eval/validation/pass_rate", "rollout/zero_variance_fraction"),
    *("train/entropy_loss", "train/kl_base", "rollout/response_lengths", "time/step_s"),
)


def follow(client: PlatformClient, name: str) -> following.Ending:
    """Show how far a run is until it has ended, and return what came of it."""
    from osmosis_ai.services.training_runs.info import describe_run
    from osmosis_ai.services.training_runs.watch import TrainingLook

    following.show_to_the_end(TrainingLook(client, name), _moment, kind="train", name=name)
    described = describe_run(client, name)
    data = described.data()
    outcome = {
        "status": described.run.status,
        "error": described.run.error,
        "commit_sha": described.detail.commit_sha,
        **{key: data[key] for key in ("summary", "validation", "checkpoints", "metrics", "metrics_error")},
    }
    return following.Ending(
        kind="train",
        run=described.run,
        outcome=outcome,
        blocks=_numbers(described),
        hints=[*_said(described), *tables.hints(described, more=True)],
    )


def _said(described: DescribedTraining) -> list[str]:
    """Return what the platform says of the run beside its status: why it ended before its last step."""
    return [f"Notes: {described.run.notes}"] if described.run.notes else []


def _numbers(described: DescribedTraining) -> list[Block]:
    """Return the curve of the reward, the numbers one looks at first, and the checkpoints."""
    blocks: list[Block] = []
    if described.metrics is not None:
        blocks = [*reward_chart(described.metrics)]
        summaries = {summary.key: summary for summary in described.metrics.overview.metric_summaries}
        shown = [summaries[key] for key in _NUMBERS if key in summaries]
        if shown:
            blocks.append(tables.metrics_table(described.metrics, shown, trends=False))
    if described.validation is not None:
        blocks += [Text(f"{name}: {words}", in_plain=True) for name, words in described.validation.facts()]
    return [*blocks, *tables.checkpoint_tables(described)]


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


def _moment(seen: SeenTraining) -> following.Moment:
    run = seen.detail.training_run
    return following.Moment(
        name=run.name or "Training",
        status=run.status,
        completed=run.current_step,
        total=run.total_steps,
        unit="steps",
        note=" · ".join(_facts(seen)),
        below=tuple(_lines(seen)),
    )


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
