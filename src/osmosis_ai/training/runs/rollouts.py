"""Rollouts of a step: sample them with their tokens, apply the truncation rules, convert them to learning inputs.

Every attempt yields one :class:`Sample`. An attempt that failed, timed out or was removed by its grader has no reward
but a reason. An attempt that was lost with its server, or because this machine was too slow, is repeated under a new id
with the same seeds. Samples keep the order of the requests, so results do not depend on which finished first.

Axes: P prompts, G attempts of each. A sample is used for learning if it has an advantage, which requires a score and
a group with unequal scores. A forked rollout is several sequences with one advantage.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from osmosis_ai.controller.attempt import Attempt, AttemptResults, RunningAttempt, attempt_seeds
from osmosis_ai.controller.outcomes import Verdict
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.evaluation.metrics import NO_REWARD
from osmosis_ai.rollout.types.protocol import RolloutErrorCategory
from osmosis_ai.training.objective.advantages import GroupStatistics, group_advantages
from osmosis_ai.training.runs.metrics import (
    TRAINING_REWARD,
    TRAINING_REWARD_HIGH,
    TRAINING_REWARD_LOW,
    finite,
)

if TYPE_CHECKING:
    from osmosis_ai.config.training import TrainingSettings
    from osmosis_ai.controller.dispatcher import RolloutRunner
    from osmosis_ai.controller.model_proxy import RolloutUsage
    from osmosis_ai.datasets import DatasetRow
    from osmosis_ai.evaluation.statistics import Estimate
    from osmosis_ai.training.engines.policy_bridge import PolicyBridge
    from osmosis_ai.training.engines.recording import RecordedRollout
    from osmosis_ai.training.objective.sequences import TokenSequence

REMOVED = "removed"
TRUNCATED = "truncated"
_TIMEOUT = RolloutErrorCategory.TIMEOUT.value
# The slowness of a grader or a server is no property of the policy.
_AGENT_SOURCES = frozenset({"agent", "provider"})


@dataclass(frozen=True)
class Sample:
    """The result of an attempt, with its tokens."""

    record: TerminalRecord
    recorded: RecordedRollout
    grader_reward: float | None = None

    @property
    def reward(self) -> float | None:
        return self.record.reward if self.record.status == "success" else None

    @property
    def unscored_because(self) -> str | None:
        """Machine-readable reason for a missing reward."""
        if self.reward is not None:
            return None
        if self.record.status == "skipped":
            return REMOVED
        return self.record.error_type or NO_REWARD


@dataclass(frozen=True)
class RolloutSampler:
    runner: RolloutRunner
    bridge: PolicyBridge

    async def sample(
        self, attempts: Sequence[Attempt], *, finished: Callable[[Sample], None] = lambda _: None
    ) -> list[Sample]:
        samples: dict[Attempt, Sample] = {}
        bridge = self.bridge

        class Recorder(AttemptResults):
            """Nothing is durable here: a batch counts when its step does."""

            async def record(self, record: TerminalRecord, running: RunningAttempt) -> None:
                reward, grader = None, running.grader
                if grader is not None and grader.status.value == "success" and grader.sample is not None:
                    reward = grader.sample.reward
                if reward is not None and not math.isfinite(reward):
                    reward = None
                sample = Sample(record, bridge.take(record.rollout_id), reward)
                samples[running.attempt] = sample
                finished(sample)

            def unrecorded(self, rollout_id: str, usage: RolloutUsage) -> None:
                bridge.discard(rollout_id)

        await self.runner.run_all(attempts, Recorder())
        return [samples[attempt] for attempt in attempts]


def timed_out(sample: Sample) -> bool:
    return sample.record.error_type == _TIMEOUT and sample.record.boundary in _AGENT_SOURCES


def with_truncation_rule(sample: Sample, settings: TrainingSettings) -> Sample:
    """Return ``sample`` with the reward to learn from if a length limit or the agent's time limit ended it.

    The run chooses the rule (`[advanced].on_truncation`, `on_timeout`). Excluding such rollouts gives the policy no
    signal against long answers. A zero teaches it to be short. Grading them rewards what was right so far. Validation
    always grades the truncated result. A sample that its grader removed stays removed.
    """
    late = timed_out(sample)
    if sample.record.status == "skipped" or not (late or sample.recorded.truncated):
        return sample
    rule, reason = (settings.on_timeout, _TIMEOUT) if late else (settings.on_truncation, TRUNCATED)
    if rule == "zero":
        verdict = Verdict("success", reward=0.0)
    elif rule == "exclude":
        error = sample.record.error or f"the rollout was {reason} and is left out"
        verdict = Verdict("failed", error_type=reason, boundary="agent", error=error)
    elif sample.reward is None and sample.grader_reward is not None:
        verdict = Verdict("success", reward=sample.grader_reward)
    else:
        return sample
    return replace(sample, record=msgspec.structs.replace(sample.record, **verdict._asdict()))


@dataclass(frozen=True)
class RolloutBatch:
    step: int
    samples_PG: list[list[Sample]]
    sampling_s: float
    timed_out: int = 0

    @property
    def samples(self) -> list[Sample]:
        return [sample for samples_G in self.samples_PG for sample in samples_G]

    def unscored(self) -> dict[str, int]:
        """Count the samples without a reward by reason, the commonest first."""
        reasons = Counter(reason for sample in self.samples if (reason := sample.unscored_because))
        return dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0])))


@dataclass(frozen=True)
class LearnerBatch:
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
    """Compare every sample with its group; omit those without an advantage."""
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
    called = [sample.recorded for sample in batch.samples if sample.recorded.calls]
    staleness = [
        version - sampled_by
        for recorded in called
        for sequence in recorded.sequences
        for is_sampled, sampled_by in zip(sequence.mask, sequence.versions, strict=True)
        if is_sampled
    ]
    tokens = sum(sample.recorded.sampled_tokens for sample in batch.samples)
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
            "speed/sampling_tokens_per_s": tokens / batch.sampling_s if batch.sampling_s else None,
            "time/sampling_s": batch.sampling_s,
        }
    )


def _reward(batch: RolloutBatch) -> Estimate | None:
    """Estimate the policy's reward on prompts like the batch's; attempts on one prompt are not independent."""
    from osmosis_ai.evaluation.statistics import estimate_mean

    scored = [
        (prompt, sample.reward)
        for prompt, samples_G in enumerate(batch.samples_PG)
        for sample in samples_G
        if sample.reward is not None and math.isfinite(sample.reward)
    ]
    rewards = [reward for _, reward in scored]
    found = estimate_mean(rewards, [prompt for prompt, _ in scored])
    if found is None or found.low is None or found.high is None:
        return found
    # No bound lies beyond the rewards observed.
    return replace(found, low=max(found.low, min(rewards)), high=min(found.high, max(rewards)))


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
