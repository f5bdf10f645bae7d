"""Samples, made for a test: three given tokens and two sampled ones to a sequence."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from typing import Any

from osmosis_ai.controller.attempt import Attempt
from osmosis_ai.controller.outcomes import Verdict
from osmosis_ai.datasets import DatasetRow
from osmosis_ai.training.engines.recording import RecordedRollout
from osmosis_ai.training.learner.checkpoints import CheckpointDirectory
from osmosis_ai.training.objective.sequences import NOT_SAMPLED, TokenSequence
from osmosis_ai.training.runs.metrics import StepRecord
from osmosis_ai.training.runs.rollouts import Sample
from osmosis_ai.training.runs.run_directory import TrainingDirectory
from tests.controller.attempts import ended, record_of_ended

_numbers = itertools.count()


def dataset_row(index: int = 0) -> DatasetRow:
    return DatasetRow(index, [{"role": "user", "content": "What is 2 * 3?"}], "6", None)


def recorded(*, sequences: int = 1, versions: tuple[int, ...] = (0,)) -> RecordedRollout:
    rollout_id = f"rollout-{next(_numbers)}"
    version = versions[-1]
    whole = [
        TokenSequence(
            rollout_id,
            ids=[1, 9, 9, 10, 2],
            mask=[0, 0, 0, 1, 1],
            logprobs=[0.0, 0.0, 0.0, -0.5, -0.1],
            versions=[NOT_SAMPLED] * 3 + [version] * 2,
        )
        for _ in range(sequences)
    ]
    return RecordedRollout(whole, forks=sequences - 1, calls=sequences, sampled_tokens=2 * sequences)


def series(records: Sequence[StepRecord], key: str) -> list[tuple[int, float]]:
    """Return a metric by step."""
    return [(record.step, record.metrics[key]) for record in records if key in record.metrics]


def sample(verdict: Verdict, tokens: RecordedRollout | None = None) -> Sample:
    attempt = Attempt(dataset_row(), 0, 0, lambda call: call, name="train-000001-row-0-0")
    return Sample(record_of_ended(ended(attempt, attempt.name), verdict), tokens or recorded())


def scored(reward: float, *, sequences: int = 1, versions: tuple[int, ...] = (0,)) -> Sample:
    return sample(Verdict("success", reward=reward), recorded(sequences=sequences, versions=versions))


def failed(why: str) -> Sample:
    verdict = Verdict("failed", error_type=why, boundary="agent", error=f"it failed: {why}")
    return sample(verdict, RecordedRollout([]))


def write_checkpoint(
    directory: TrainingDirectory, step: int, *, provenance: Any = None, keep: bool = True
) -> CheckpointDirectory:
    """Write a checkpoint without a model."""
    writing, saved = directory.path / "writing", directory.checkpoints / f"step-{step:08d}"
    (writing / "adapter").mkdir(parents=True)
    (writing / "adapter" / "adapter_config.json").write_text("{}")
    (writing / "adapter" / "adapter_model.safetensors").write_bytes(bytes([step]) * 1000)
    (writing / "learner.pt").write_bytes(os.urandom(3000))
    (writing / "provenance.json").write_text(json.dumps(provenance or {}))
    (writing / "trainer_state.json").write_text(json.dumps({"step": step, "silent": 0}))
    if keep:
        (writing / "keep").touch()
    directory.checkpoints.mkdir(exist_ok=True)
    writing.rename(saved)
    return CheckpointDirectory(step, saved)
