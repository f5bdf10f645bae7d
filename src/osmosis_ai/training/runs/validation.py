"""Validate the current policy on held-out rows, with the metrics of evaluations.

Every validation makes the same attempts with the same seeds, so that differences come from the policy. Sampling uses the
training settings (`rollout_temperature`, `rollout_top_p`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from osmosis_ai.controller.attempt import Attempt, AttemptResults, RunningAttempt, attempt_seeds
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.datasets import DatasetRow, row_digest
from osmosis_ai.evaluation.metrics import RunMetrics, compute_metrics, describe_few_scored
from osmosis_ai.evaluation.results import AttemptTable
from osmosis_ai.evaluation.statistics import CONFIDENCE
from osmosis_ai.redaction import Redactor
from osmosis_ai.training.runs.metrics import (
    VALIDATION_PASS_RATE,
    VALIDATION_PLANNED,
    VALIDATION_REWARD,
    VALIDATION_REWARD_HIGH,
    VALIDATION_REWARD_LOW,
    VALIDATION_SCORED,
    VALIDATION_STDERR,
    finite,
)

if TYPE_CHECKING:
    from osmosis_ai.controller.model_proxy import RolloutUsage
    from osmosis_ai.training.runs.rollouts import RolloutSampler
    from osmosis_ai.training.runs.spec import ValidationPlan


@dataclass(frozen=True)
class Validated:
    metrics: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    rewards: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class MeasuredRows:
    """Metrics, the mean reward of each row, and records of a validation."""

    metrics: RunMetrics
    rewards: list[float | None]
    records: list[TerminalRecord]


async def validate(
    sampler: RolloutSampler,
    rows: Sequence[DatasetRow],
    plan: ValidationPlan,
    *,
    seed: int,
    step: int,
    finished: Callable[[TerminalRecord], None],
    redact: Redactor | None = None,
) -> MeasuredRows:
    attempts = []
    for position, row in enumerate(rows):
        for run in range(plan.attempts):
            seeds = attempt_seeds(seed, row.source_row_index, run)
            name = f"valid-{step:06d}-row-{row.source_row_index}-{run}"
            attempts.append(Attempt(row, position, run, seeds, name))
    rewards: list[list[float]] = [[] for _ in rows]
    table = AttemptTable(len(rows), plan.attempts)
    table.set_row_digests(map(row_digest, rows))
    records: list[TerminalRecord] = []

    class Recorder(AttemptResults):
        previews = True

        async def record(self, record: TerminalRecord, running: RunningAttempt) -> None:
            if record.reward is not None:
                rewards[record.row_index].append(record.reward)
            table.set_result(record)
            records.append(record)
            sampler.bridge.discard(record.rollout_id)
            finished(record)

        def unrecorded(self, rollout_id: str, usage: RolloutUsage) -> None:
            sampler.bridge.discard(rollout_id)

    recorder = Recorder()
    recorder.redact = redact or Redactor()
    await sampler.runner.run_all(attempts, recorder)
    metrics = compute_metrics(table, pass_threshold=plan.pass_threshold)
    return MeasuredRows(metrics, [fmean(known) if known else None for known in rewards], records)


def validation_metrics(evaluation: RunMetrics) -> dict[str, float]:
    """Return a validation as a step's metrics, which cover scored samples only."""
    reward, passed = evaluation.estimates.reward, evaluation.estimates.pass_rate
    counts = evaluation.estimates.counts
    return finite(
        {
            VALIDATION_REWARD: reward.value if reward else None,
            VALIDATION_STDERR: reward.stderr if reward else None,
            VALIDATION_REWARD_LOW: reward.low if reward else None,
            VALIDATION_REWARD_HIGH: reward.high if reward else None,
            VALIDATION_PASS_RATE: passed.value if passed else None,
            VALIDATION_SCORED: counts.scored,
            VALIDATION_PLANNED: counts.planned,
        }
    )


def rewards_by_row(rows: Sequence[DatasetRow], rewards: Sequence[float | None]) -> dict[str, float]:
    """Return rewards by the digests of rows; duplicates have their mean."""
    found: dict[str, list[float]] = {}
    for row, reward in zip(rows, rewards, strict=True):
        if reward is not None:
            found.setdefault(row_digest(row), []).append(reward)
    return {digest: sum(known) / len(known) for digest, known in found.items()}


def few_scored(evaluation: RunMetrics) -> str | None:
    counts = evaluation.estimates.counts
    said = describe_few_scored(counts.scored, counts.finished)
    reasons = ", ".join(f"{count} x {reason}" for reason, count in counts.unscored.items())
    return f"validation: {said}{f' ({reasons})' if reasons else ''}" if said else None


def significant_fall(
    start: Sequence[float | None], now: Sequence[float | None], *, validations: int
) -> str | None:
    """Describe by how much a validation is below the first one; None if that may be chance."""
    from osmosis_ai.evaluation.comparison.differences import Pairs, mean_difference, scale_of_rewards

    known = [
        [(row, value) for row, value in enumerate(rewards) if value is not None] for rewards in (now, start)
    ]
    if not all(known):
        return None
    (rows_now, values_now), (rows_start, values_start) = (zip(*pairs, strict=True) for pairs in known)
    pairs = Pairs.of(
        values_start, rows_start, values_now, rows_now, scale=scale_of_rewards(values_start, values_now)
    )
    if pairs is None:
        return None
    found = mean_difference(pairs, confidence=1 - (1 - CONFIDENCE) / validations)
    if found.high is None or found.low is None or found.high >= 0:
        return None
    adjusted = f", adjusted for {validations} validations" if validations > 1 else ""
    return (
        f"the validation reward fell {-found.value:.3g} below its initial value (95 % interval {-found.high:.3g} to "
        f"{-found.low:.3g}{adjusted}, row by row)"
    )
