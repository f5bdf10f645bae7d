"""Convert a step's rollouts to learning inputs and metrics.

Axes: P prompts, G attempts of each. A sample is used for learning if it has an advantage, which requires a score and
a group with unequal scores. A forked rollout is several sequences with one advantage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING

from osmosis_ai.controller.attempt import Attempt, attempt_seeds
from osmosis_ai.training.objective.advantages import GroupStatistics, group_advantages
from osmosis_ai.training.runs.metrics import (
    TRAINING_REWARD,
    TRAINING_REWARD_HIGH,
    TRAINING_REWARD_LOW,
    finite,
)
from osmosis_ai.training.runs.sampler import Sample

if TYPE_CHECKING:
    from osmosis_ai.datasets import DatasetRow
    from osmosis_ai.statistics.estimates import Estimate
    from osmosis_ai.training.objective.sequences import TokenSequence


@dataclass(frozen=True)
class RolloutBatch:
    """The rollouts of a step."""

    step: int
    samples_PG: list[list[Sample]]
    sampling_s: float
    timed_out: int = 0

    @property
    def samples(self) -> list[Sample]:
        """All of them."""
        return [sample for samples_G in self.samples_PG for sample in samples_G]

    @property
    def sampled_tokens(self) -> int:
        """Tokens that the policy sampled."""
        return sum(sample.recorded.sampled_tokens for sample in self.samples)

    def unscored(self) -> dict[str, int]:
        """Count the samples without a reward by reason, the commonest first."""
        reasons = Counter(reason for sample in self.samples if (reason := sample.unscored_because))
        return dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0])))

    def first_failure(self) -> str | None:
        """Return what the first failed sample said, for a person to start from."""
        return next((sample.record.error for sample in self.samples if sample.record.error), None)


@dataclass(frozen=True)
class LearnerBatch:
    """What a step learns from: sequences and, for each, the advantage of its rollout."""

    sequences: list[TokenSequence]
    advantages: list[float]
    statistics: GroupStatistics


def attempts_of_step(step: int, rows: Sequence[DatasetRow], group_size: int, seed: int) -> list[Attempt]:
    """Return ``group_size`` attempts on each of ``rows``, with seeds that no other step has."""
    return [
        Attempt(
            row,
            row.source_row_index,
            index,
            attempt_seeds(seed, row.source_row_index, step * group_size + index),
            name=f"train-{step:06d}-row-{row.source_row_index}-{index}",
        )
        for row in rows
        for index in range(group_size)
    ]


def learner_batch(batch: RolloutBatch, *, normalise: bool) -> LearnerBatch:
    """Compare every sample with its group; what has no advantage is left out."""
    rewards_PG = [[sample.reward for sample in samples_G] for samples_G in batch.samples_PG]
    compared = group_advantages(rewards_PG, normalise=normalise)
    learnable = LearnerBatch([], [], compared.statistics)
    for samples_G, advantages_G in zip(batch.samples_PG, compared.advantages_PG, strict=True):
        for sample, advantage in zip(samples_G, advantages_G, strict=True):
            if advantage is not None:
                learnable.sequences.extend(sample.recorded.sequences)
                learnable.advantages.extend([advantage] * len(sample.recorded.sequences))
    return learnable


def rollout_metrics(batch: RolloutBatch, statistics: GroupStatistics, version: int) -> dict[str, float]:
    """Return the numbers of a step's rollouts."""
    called = [sample.recorded for sample in batch.samples if sample.recorded.calls]
    staleness = [
        version - sampled_by
        for recorded in called
        for sequence in recorded.sequences
        for is_sampled, sampled_by in zip(sequence.mask, sequence.versions, strict=True)
        if is_sampled
    ]
    total_lengths = [sum(len(sequence.ids) for sequence in recorded.sequences) for recorded in called]
    reward = _reward(batch)
    return finite(
        {
            TRAINING_REWARD: statistics.reward_mean,
            TRAINING_REWARD_LOW: reward.low if reward else None,
            TRAINING_REWARD_HIGH: reward.high if reward else None,
            "rollout/reward_std": statistics.reward_std,
            "rollout/reward_min": statistics.reward_min,
            "rollout/reward_max": statistics.reward_max,
            "rollout/zero_variance_fraction": statistics.zero_variance_fraction,
            "rollout/samples": statistics.samples,
            "rollout/unscored": statistics.samples_unscored,
            "rollout/response_lengths": _mean([recorded.sampled_tokens for recorded in called]),
            "rollout/total_lengths": _mean(total_lengths),
            "rollout/truncated_ratio": _mean([recorded.truncated for recorded in called]),
            "rollout/timed_out_ratio": batch.timed_out / len(batch.samples) if batch.samples else None,
            "rollout/forks": sum(recorded.forks for recorded in called),
            "rollout/realigned": sum(recorded.realigned for recorded in called),
            "rollout/staleness": _mean(staleness),
            "rollout/staleness_max": max(staleness, default=None),
            "speed/sampling_tokens_per_s": batch.sampled_tokens / batch.sampling_s
            if batch.sampling_s
            else None,
            "time/sampling_s": batch.sampling_s,
        }
    )


def _reward(batch: RolloutBatch) -> Estimate | None:
    """Estimate the policy's reward on prompts like the batch's: attempts on one prompt are no independent samples."""
    from osmosis_ai.statistics.estimates import estimate_mean

    scored = [
        (prompt, sample.reward)
        for prompt, samples_G in enumerate(batch.samples_PG)
        for sample in samples_G
        if sample.reward is not None and isfinite(sample.reward)
    ]
    rewards = [reward for _, reward in scored]
    found = estimate_mean(rewards, [prompt for prompt, _ in scored])
    if found is None or found.low is None or found.high is None:
        return found
    # No bound lies beyond the rewards observed.
    return replace(found, low=max(found.low, min(rewards)), high=min(found.high, max(rewards)))


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
