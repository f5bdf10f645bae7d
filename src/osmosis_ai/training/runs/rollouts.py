"""Rollouts of a step and of a validation: sample them with their tokens, and measure them.

Every attempt of a step yields one :class:`Sample`. An attempt that failed, timed out or was removed by its grader has no
reward but a reason. An attempt that was lost with its server, or because this machine was too slow, is repeated under a
new id with the same seeds. Samples keep the order of the requests, so results do not depend on which finished first.

Axes: P prompts, G attempts of each. A sample is used for learning if it has an advantage, which requires a score and
a group with unequal scores. A forked rollout is several sequences with one advantage.

Every validation makes the same attempts with the same seeds, so that differences come from the policy. It samples with
the training settings (`rollout_temperature`, `rollout_top_p`) and has the metrics of evaluations.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING

import msgspec

from osmosis_ai.controller.attempt import Attempt, AttemptResults, RunningAttempt, attempt_seeds
from osmosis_ai.controller.outcomes import Verdict, error_code_of, failed
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.datasets import DatasetRow, row_digest
from osmosis_ai.evaluation.metrics import NO_REWARD, RunMetrics, compute_metrics, describe_few_scored
from osmosis_ai.evaluation.results import AttemptTable
from osmosis_ai.redaction import Redactor
from osmosis_ai.rollout.types import RolloutErrorCategory
from osmosis_ai.statistics.estimates import CONFIDENCE, Estimate, estimate_mean
from osmosis_ai.training.objective.advantages import GroupStatistics, group_advantages
from osmosis_ai.training.runs.metrics import DROPPED, DROPPED_LENGTHS, GRADER_FAILURES, finite

if TYPE_CHECKING:
    from osmosis_ai.config.training import TrainingSettings
    from osmosis_ai.controller.attempt import RolloutRunner
    from osmosis_ai.controller.model_proxy import RolloutUsage
    from osmosis_ai.training.engines.policy_bridge import PolicyBridge
    from osmosis_ai.training.engines.recording import RecordedRollout
    from osmosis_ai.training.objective.sequences import TokenSequence
    from osmosis_ai.training.runs.spec import ValidationPlan

REMOVED = "removed"
TRUNCATED = "truncated"
_LARGEST_REWARD = 1e100
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
        return bounded(self.record.reward) if self.record.status == "success" else None

    @property
    def unscored_because(self) -> str | None:
        return None if self.reward is not None else cause_of(self.record)


def bounded(reward: float | None) -> float | None:
    """Return a reward whose variance can be computed; None for another one."""
    return reward if reward is not None and abs(reward) <= _LARGEST_REWARD else None


def cause_of(record: TerminalRecord) -> str:
    """Return why an attempt has no reward: source and code of its failure, as ``grader exception``.

    The protocol's `error_type` is no cause: it calls an exception of a grader `agent_error`.
    """
    if record.status != "failed":
        return REMOVED if record.status == "skipped" else NO_REWARD
    return f"{record.boundary} {record.category or error_code_of(record.error_type)}"


@dataclass(frozen=True)
class RolloutSampler:
    runner: RolloutRunner
    bridge: PolicyBridge

    async def sample(
        self,
        attempts: Sequence[Attempt],
        finished: Callable[[Attempt, Sample], None],
        unfinished: Callable[[Attempt, RecordedRollout], None],
    ) -> None:
        """Run ``attempts``; pass on each finished sample, and what lost or cancelled attempts had sampled."""
        bridge, by_name = self.bridge, {attempt.name: attempt for attempt in attempts}

        class Recorder(AttemptResults):
            """Nothing is durable here: a batch counts when its step does."""

            async def record(self, record: TerminalRecord, running: RunningAttempt) -> None:
                reward, grader = None, running.grader
                if grader is not None and grader.status.value == "success" and grader.sample is not None:
                    reward = grader.sample.reward
                recorded = bridge.take(record.rollout_id)
                finished(running.attempt, Sample(record, recorded, bounded(reward)))

            def unrecorded(self, rollout_id: str, usage: RolloutUsage) -> None:
                name, _, _ = rollout_id.rpartition("-")
                unfinished(by_name[name], bridge.take(rollout_id))

        await self.runner.run_all(attempts, Recorder())


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
        limit = "time" if late else "length"
        error = sample.record.error or f"the attempt reached its {limit} limit and is excluded"
        verdict = failed(reason, "agent", error, code=reason)
    elif sample.reward is None and sample.grader_reward is not None:
        verdict = Verdict("success", reward=sample.grader_reward)
    else:
        return sample
    return replace(sample, record=msgspec.structs.replace(sample.record, **verdict._asdict()))


@dataclass(frozen=True)
class RolloutBatch:
    """The groups of a step.

    Attributes:
        positions: Their positions in the run's stream of groups.
        replaced: How many have equal rewards and were replaced by others; None if the run replaces none.
        dropped: Positions of groups with tokens that are too old.
        dropped_attempts: What attempts that were dropped as too old or too slow had sampled; None without ``max_staleness``.
    """

    step: int
    samples_PG: list[list[Sample]]
    sampling_s: float
    timed_out: int = 0
    positions: Sequence[int] = ()
    replaced: int | None = None
    dropped: Sequence[int] = ()
    dropped_attempts: Sequence[RecordedRollout] | None = None

    @property
    def samples(self) -> list[Sample]:
        return [sample for samples_G in self.samples_PG for sample in samples_G]

    def unscored(self) -> dict[str, int]:
        """Count the samples without a reward by cause."""
        return dict(Counter(cause for sample in self.samples if (cause := sample.unscored_because)))

    def first_failure(self, source: str = "") -> str | None:
        """Return the first error, of any or of one source."""
        failures = (sample.record for sample in self.samples if sample.record.error)
        return next((each.error for each in failures if source in ("", each.boundary)), None)


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
    dropped = batch.dropped_attempts
    return finite(
        {
            "rollout/raw_reward": statistics.reward_mean,
            "rollout/reward_low": reward.low if reward else None,
            "rollout/reward_high": reward.high if reward else None,
            "rollout/reward_std": statistics.reward_std,
            "rollout/reward_min": statistics.reward_min,
            "rollout/reward_max": statistics.reward_max,
            "rollout/zero_variance_fraction": statistics.zero_variance_fraction,
            "rollout/samples": statistics.samples,
            "rollout/unscored": statistics.samples_unscored,
            GRADER_FAILURES: sum(n for cause, n in batch.unscored().items() if cause.startswith("grader ")),
            "rollout/response_lengths": _mean([recorded.sampled_tokens for recorded in called]),
            "rollout/total_lengths": _mean(total_lengths),
            "rollout/truncated_ratio": _mean([recorded.truncated for recorded in called]),
            "rollout/timed_out_ratio": batch.timed_out / len(batch.samples) if batch.samples else None,
            "rollout/forks": sum(recorded.forks for recorded in called),
            "rollout/realigned": sum(recorded.realigned for recorded in called),
            "rollout/staleness": _mean(staleness),
            "rollout/staleness_max": max(staleness, default=None),
            "rollout/replaced": batch.replaced,
            DROPPED: None if dropped is None else len(dropped) / (len(dropped) + len(batch.samples)),
            DROPPED_LENGTHS: _mean([recorded.sampled_tokens for recorded in dropped or () if recorded.calls]),
            "speed/sampling_tokens_per_s": tokens / batch.sampling_s if batch.sampling_s else None,
            "time/sampling_s": batch.sampling_s,
        }
    )


def _reward(batch: RolloutBatch) -> Estimate | None:
    """Estimate the policy's reward on prompts like the batch's; attempts on one prompt are not independent."""
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


@dataclass(frozen=True)
class Measured:
    """Part of a step's record: an update or a validation, whose ``rewards`` are those of the held-out rows."""

    metrics: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    rewards: dict[str, float] = field(default_factory=dict)
    unscored: dict[str, int] = field(default_factory=dict)
    groups: Sequence[int] = ()
    dropped: Sequence[int] = ()


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
    for position, row in enumerate(rows):
        table.set_row_digest(position, row_digest(row))
    records: list[TerminalRecord] = []

    class Recorder(AttemptResults):
        previews = True

        async def record(self, record: TerminalRecord, running: RunningAttempt) -> None:
            if record.reward is not None:
                rewards[record.row_index].append(record.reward)
            table.set_result(record)
            records.append(record)
            sampler.bridge.discard(record.rollout_id)

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
            "eval/validation/reward": reward.value if reward else None,
            "eval/validation/reward_stderr": reward.stderr if reward else None,
            "eval/validation/reward_low": reward.low if reward else None,
            "eval/validation/reward_high": reward.high if reward else None,
            "eval/validation/pass_rate": passed.value if passed else None,
            "eval/validation/scored": counts.scored,
            "eval/validation/samples": counts.planned,
        }
    )


def rewards_by_row(rows: Sequence[DatasetRow], rewards: Sequence[float | None]) -> dict[str, float]:
    """Return rewards by the digests of rows; duplicates have their mean."""
    found: dict[str, list[float]] = {}
    for row, reward in zip(rows, rewards, strict=True):
        if reward is not None:
            found.setdefault(row_digest(row), []).append(reward)
    return {digest: sum(known) / len(known) for digest, known in found.items()}


def few_scored(validation: MeasuredRows) -> str | None:
    counts = validation.metrics.estimates.counts
    said = describe_few_scored(counts.scored, counts.finished)
    unscored = [each for each in validation.records if each.reward is None and each.status != "skipped"]
    return f"validation: {said} ({format_causes(Counter(map(cause_of, unscored)))})" if said else None


def format_causes(causes: Mapping[str, int]) -> str:
    """Format causes with how often each occurred, the commonest first."""
    ordered = sorted(causes.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} x {cause}" for cause, count in ordered)


def significant_fall(
    start: Sequence[float | None],
    now: Sequence[float | None],
    *,
    comparisons: int,
    below: str = "its initial value",
) -> str | None:
    """Describe by how much a validation is below an earlier one; None if that may be chance."""
    from osmosis_ai.decisions.differences import rewards_difference

    before, after = (
        {row: value for row, value in enumerate(rewards) if value is not None} for rewards in (start, now)
    )
    found = rewards_difference(before, after, confidence=1 - (1 - CONFIDENCE) / comparisons)
    if found is None or found.high is None or found.low is None or found.high >= 0:
        return None
    adjusted = f", adjusted for {comparisons} comparisons" if comparisons > 1 else ""
    return (
        f"the validation reward fell {-found.value:.3g} below {below} (95% interval {-found.high:.3g} to "
        f"{-found.low:.3g}{adjusted}, paired by row)"
    )
