"""Metrics of a run, one durable line per step.

Steps are numbered from 1. Step 0 is the initial policy and has only a validation. A line holds finite numbers by
key; values that were not measured are absent. When a run resumes from a checkpoint, the lines after it are dropped
first, so every step occurs once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import orjson

from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import is_disk_full, open_regular, sync_directory, write_atomic

if TYPE_CHECKING:
    from osmosis_ai.training.learner.step import StepMetrics


LARGEST_STEP = 2**53 - 1
"""The largest integer that every chart and JSON reader represents exactly."""
# Sums and squares of such numbers are finite.
LARGEST_VALUE = 1e300
_Number = Annotated[float, msgspec.Meta(gt=-LARGEST_VALUE, lt=LARGEST_VALUE)]
_Position = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_STEP)]

TRAINING_REWARD = "rollout/raw_reward"
TRAINING_REWARD_LOW = "rollout/reward_low"
TRAINING_REWARD_HIGH = "rollout/reward_high"
GRADER_FAILURES = "rollout/grader_failures"
DROPPED = "rollout/dropped_stale"
DROPPED_LENGTHS = "rollout/dropped_stale_lengths"
VALIDATION_REWARD = "eval/validation/reward"
VALIDATION_STDERR = "eval/validation/reward_stderr"
VALIDATION_PASS_RATE = "eval/validation/pass_rate"
VALIDATION_REWARD_LOW = "eval/validation/reward_low"
VALIDATION_REWARD_HIGH = "eval/validation/reward_high"
VALIDATION_SCORED = "eval/validation/scored"
VALIDATION_PLANNED = "eval/validation/samples"
VALIDATION_DROPPED = "eval/validation/dropped"
TRAINING_LOSS = "train/loss"
VALIDATION_LOSS = "eval/validation/loss"

# Every key a line can have, in the order people want to see them. The first six are the platform's.
TITLES: Mapping[str, str] = {
    TRAINING_REWARD: "Training reward",
    VALIDATION_REWARD: "Validation reward",
    "train/entropy_loss": "Entropy (nats per token)",
    "rollout/response_lengths": "Response length (sampled tokens)",
    "rollout/total_lengths": "Total length (tokens)",
    "rollout/truncated_ratio": "Truncated attempts (share)",
    "rollout/timed_out_ratio": "Timed-out attempts (share)",
    VALIDATION_PASS_RATE: "Validation pass rate",
    VALIDATION_STDERR: "Validation reward, standard error",
    VALIDATION_REWARD_LOW: "Validation reward, 95% CI low",
    VALIDATION_REWARD_HIGH: "Validation reward, 95% CI high",
    VALIDATION_SCORED: "Validation attempts scored",
    VALIDATION_PLANNED: "Validation attempts",
    VALIDATION_DROPPED: "Validation reward fell significantly (1: yes)",
    TRAINING_REWARD_LOW: "Training reward, 95% CI low",
    TRAINING_REWARD_HIGH: "Training reward, 95% CI high",
    "rollout/reward_std": "Reward, standard deviation",
    "rollout/reward_min": "Reward, minimum",
    "rollout/reward_max": "Reward, maximum",
    "rollout/zero_variance_fraction": "Groups with equal rewards (share)",
    "rollout/samples": "Attempts",
    "rollout/unscored": "Attempts without a reward",
    GRADER_FAILURES: "Attempts that the grader failed on",
    "rollout/forks": "Forked sequences",
    "rollout/realigned": "Realigned turns",
    "rollout/staleness": "Staleness (updates, mean per token)",
    "rollout/staleness_max": "Staleness (updates, maximum)",
    "rollout/replaced": "Groups with equal rewards that were replaced",
    DROPPED: "Attempts dropped as too old or too slow (share)",
    DROPPED_LENGTHS: "Response length of dropped attempts (sampled tokens)",
    TRAINING_LOSS: "Loss",
    VALIDATION_LOSS: "Validation loss (nats per token)",
    "train/learning_rate": "Learning rate",
    "train/grad_norm": "Gradient norm",
    "train/clip_fraction": "Tokens beyond the clip (share)",
    "train/importance_capped": "Capped importance weights (share)",
    "train/kl_sampler": "KL to the sampling policy (nats per token)",
    "train/kl_base": "KL to the base model (nats per token)",
    "train/logprob_gap_max": "Log-probability gap of learner and server, maximum",
    "train/logprob_gap_mean": "Log-probability gap of learner and server, mean",
    "train/stale_fraction": "Stale tokens (share)",
    "train/sequences": "Training sequences",
    "train/tokens": "Training tokens",
    "train/updates": "Policy updates",
    "speed/sampling_tokens_per_s": "Sampled tokens per second",
    "speed/learning_tokens_per_s": "Training tokens per second",
    "speed/gpu_memory_gib": "Learner's GPU memory (GiB, peak)",
    "speed/gpu_idle_share": "Time without learning (share of a step)",
    "time/step_s": "Step (s)",
    "time/sampling_s": "Sampling (s)",
    "time/learning_s": "Learning (s)",
    "time/publishing_s": "Publishing (s)",
    "time/validation_s": "Validation (s)",
    "time/checkpoint_s": "Checkpoint of the previous step (s)",
}


@dataclass(frozen=True)
class StepRecord:
    """One step.

    Attributes:
        step: Its number.
        timestamp_ms: End time in milliseconds since 1970.
        metrics: Values by the keys of :data:`TITLES`.
        unscored: Number of rollouts without a reward, by reason.
        warnings: Sentences about problems that need attention.
        validation_rewards: On validated steps, the mean reward of each held-out row that has one, by the row's digest.
        groups: Positions of the step's groups, if they depend on more than its number (`max_staleness`, `refill`).
        dropped: Positions of the groups dropped as too old.
    """

    step: Annotated[int, msgspec.Meta(ge=0, le=LARGEST_STEP)]
    timestamp_ms: int
    metrics: dict[str, _Number]
    unscored: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    validation_rewards: dict[str, _Number] = field(default_factory=dict)
    groups: list[_Position] = field(default_factory=list)
    dropped: list[_Position] = field(default_factory=list)

    def to_line(self) -> bytes:
        values = {
            key: value for key, value in asdict(self).items() if value or key not in ("groups", "dropped")
        }
        return orjson.dumps(values, option=orjson.OPT_APPEND_NEWLINE)


class HistoryError(OsmosisError):
    """The history cannot be read or written."""

    default_code = "INTERNAL"


class MetricsHistory:
    """The file of step records, append-only but for :meth:`rewind`. One process writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: StepRecord) -> None:
        created = not self.path.exists()
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            size, line = os.fstat(descriptor).st_size, memoryview(record.to_line())
            try:
                while line:
                    line = line[os.write(descriptor, line) :]
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, size)
                raise
            finally:
                os.close(descriptor)
            if created:
                sync_directory(self.path.parent)
        except OSError as error:
            raise _refused(self.path, error) from error

    def rewind(self, step: int) -> list[StepRecord]:
        """Drop the records after ``step``, and a torn last line; return those that are not repeated yet.

        Until then they are kept in a file of their own, because a crash may come before that.
        """
        if not self.path.exists():
            return []
        records, aside = list(read_history(self.path)), self.path.with_name(f"rewound-{self.path.name}")
        kept = [record for record in records if record.step <= step]
        unrepeated = {
            record.step: record for record in (*read_history(aside), *records) if record.step > step
        }
        dropped = [unrepeated[number] for number in sorted(unrepeated)]
        try:
            if dropped:
                write_atomic(aside, b"".join(record.to_line() for record in dropped))
            write_atomic(self.path, b"".join(record.to_line() for record in kept))
        except OSError as error:
            raise _refused(self.path, error) from error
        return dropped


_DECODER = msgspec.json.Decoder(StepRecord)


def read_history(path: Path) -> Iterator[StepRecord]:
    """Yield the records of a run, even while it is running."""
    if not path.exists():
        return
    with open_regular(path) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                yield _DECODER.decode(line)
            except msgspec.DecodeError as error:
                raise HistoryError(f"the history `{path}` is damaged at line {number}: {error}.") from None


def curves_of(records: Iterable[StepRecord]) -> dict[str, list[tuple[int, float]]]:
    """Return steps and values of each metric."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for record in records:
        for key, value in record.metrics.items():
            curves.setdefault(key, []).append((record.step, value))
    return curves


def finite(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Omit missing values, those that are not finite, and larger ones than a record may have."""
    return {
        key: float(value)
        for key, value in metrics.items()
        if value is not None and abs(value) < LARGEST_VALUE
    }


def learning_metrics(learned: StepMetrics, learning_s: float) -> dict[str, float]:
    times = {"time/learning_s": learning_s, "speed/gpu_memory_gib": learned.gpu_memory_gib}
    if not learned.learned:
        return finite({"train/updates": learned.updates, **times})
    known = {key: getattr(learned, key.removeprefix("train/")) for key in TITLES if key.startswith("train/")}
    speed = learned.tokens / learning_s if learning_s else None
    return finite({**known, "speed/learning_tokens_per_s": speed, **times})


def _refused(path: Path, error: OSError) -> HistoryError:
    what = "the disk is full" if is_disk_full(error) else "the disk refused a write"
    return HistoryError(
        f"{what}: a step could not be recorded in `{path}` ({error.strerror or error}).",
        details={"path": str(path), "errno": error.errno},
        hint="free space there, then start the run again; the last checkpoint is intact",
    )
