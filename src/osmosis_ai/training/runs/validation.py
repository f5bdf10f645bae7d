"""Validate the current policy on held-out rows, with the metrics of evaluations.

Held-out rows come from their own file or are a share of the dataset, chosen before the first step as a pure function of
the dataset's length and the run's seed. Every validation makes the same attempts with the same seeds, so that
differences come from the policy. Sampling uses the training settings (`rollout_temperature`, `rollout_top_p`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from osmosis_ai.controller.attempt import Attempt, AttemptResults, RunningAttempt, attempt_seeds
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.datasets import DatasetRow, iter_rows, row_digest, sample_rows
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.metrics import RunMetrics, compute_metrics, describe_few_scored
from osmosis_ai.evaluation.results import AttemptTable
from osmosis_ai.redaction import Redactor
from osmosis_ai.statistics.estimates import CONFIDENCE
from osmosis_ai.training.runs.metrics import (
    VALIDATION_PASS_RATE,
    VALIDATION_PLANNED,
    VALIDATION_REWARD,
    VALIDATION_REWARD_HIGH,
    VALIDATION_REWARD_LOW,
    VALIDATION_SCORED,
    finite,
)

if TYPE_CHECKING:
    from osmosis_ai.controller.model_proxy import RolloutUsage
    from osmosis_ai.training.runs.sampler import RolloutSampler


@dataclass(frozen=True)
class ValidationPlan:
    """What to validate on."""

    path: Path | None = None
    fraction: float = 0.05
    max_rows: int = 100
    attempts: int = 1
    pass_threshold: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.fraction < 1:
            raise OsmosisError(
                f"the held-out share must be at least 0 and less than 1, not {self.fraction:g}."
            )
        if self.max_rows < 1 or self.attempts < 1:
            raise OsmosisError("a validation needs at least one row and one attempt.")


@dataclass(frozen=True)
class Validated:
    """What a validation came to, as a step's record has it."""

    metrics: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    rewards: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SplitRows:
    """The rows of a run: those it learns from, and those it is measured on."""

    training: dict[int, DatasetRow]
    held_out: list[DatasetRow]


def split_rows(dataset: Path, plan: ValidationPlan, seed: int) -> SplitRows:
    """Read the dataset and set the held-out rows apart."""
    rows = list(iter_rows(dataset))
    if not rows:
        raise OsmosisError(f"`{dataset}` has no rows to train on.")
    if plan.path is not None:
        return SplitRows(dict(enumerate(rows)), _at_most(list(iter_rows(plan.path)), plan.max_rows, seed))
    fraction = min(plan.fraction, plan.max_rows / len(rows))
    chosen = (
        set(sample_rows(len(rows), fraction=fraction, seed=seed)) if fraction and len(rows) > 1 else set()
    )
    training = {index: row for index, row in enumerate(rows) if index not in chosen}
    return SplitRows(training, [rows[index] for index in sorted(chosen)])


def _at_most(rows: list[DatasetRow], most: int, seed: int) -> list[DatasetRow]:
    if len(rows) <= most:
        return rows
    return [rows[index] for index in sample_rows(len(rows), fraction=most / len(rows), seed=seed)]


@dataclass(frozen=True)
class MeasuredRows:
    """Numbers, the mean reward of each row, and records."""

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
    """Measure the policy on ``rows``; ``finished`` is called with each result."""
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
    """Return a validation as a step's metrics; over scored samples, absent where there are none."""
    reward, passed = evaluation.estimates.reward, evaluation.estimates.pass_rate
    counts = evaluation.estimates.counts
    return finite(
        {
            VALIDATION_REWARD: reward.value if reward else None,
            "eval/validation/reward_stderr": reward.stderr if reward else None,
            VALIDATION_REWARD_LOW: reward.low if reward else None,
            VALIDATION_REWARD_HIGH: reward.high if reward else None,
            VALIDATION_PASS_RATE: passed.value if passed else None,
            VALIDATION_SCORED: counts.scored,
            VALIDATION_PLANNED: counts.planned,
        }
    )


def rewards_by_row(rows: Sequence[DatasetRow], rewards: Sequence[float | None]) -> dict[str, float]:
    """Return the rewards of rows by what the rows are; of copies the mean, of rows without a reward none."""
    found: dict[str, list[float]] = {}
    for row, reward in zip(rows, rewards, strict=True):
        if reward is not None:
            found.setdefault(row_digest(row), []).append(reward)
    return {digest: sum(known) / len(known) for digest, known in found.items()}


def few_scored(evaluation: RunMetrics) -> str | None:
    """Return what to say beside a validation of which too much has no score; None when nearly all of it has."""
    counts = evaluation.estimates.counts
    said = describe_few_scored(counts.scored, counts.finished)
    reasons = ", ".join(f"{count} x {reason}" for reason, count in counts.unscored.items())
    return f"validation: {said}{f' ({reasons})' if reasons else ''}" if said else None


def significant_fall(
    start: Sequence[float | None], now: Sequence[float | None], *, validations: int
) -> str | None:
    """Return by how much a validation is below the one at the start; None if the fall may be chance."""
    from osmosis_ai.decisions.differences import Pairs, mean_difference, scale_of_rewards

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
