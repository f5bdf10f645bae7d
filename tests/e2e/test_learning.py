"""Training makes the agent better, on rows it never learned from, and a broken learner does not.

The real thing throughout: the sample rollout in its own process, the rollout protocol, the policy
served by torch with every token recorded, the learner. Only the length is a demo's tenth: measured
over 8 steps, held-out reward goes from 0.33 to 0.77 with seed 0 and from 0.42 to 0.78 with seed 1
(20 steps of twice the rollouts and half the learning rate: 0.33 to 0.98).

The broken learners are put in through the trainer's own seam (``make_learner``) and run under the same
settings, seed and margin. What the comparison of learner and server would refuse at the very first step is let
through for that; the last test leaves the comparison on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import osmosis_ai.training.learner as learner_module
from osmosis_ai.datasets import file_digest
from osmosis_ai.evaluation.spec import DatasetInput
from osmosis_ai.training.batches import MicroBatch, TrainingRow, collate
from osmosis_ai.training.learner import Learner, StepRefusedError
from osmosis_ai.training.learner_metrics import StepMetrics
from osmosis_ai.training.metrics import VALIDATION_REWARD, StepRecord, read_history, series
from osmosis_ai.training.sequences import TokenSequence
from osmosis_ai.training.settings import TrainingSettings
from osmosis_ai.training.trainer import LocalTrainer, TrainingSpec
from osmosis_ai.training.validation import ValidationPlan

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

WORKSPACE = Path(__file__).parents[2]
DATASET = WORKSPACE / "data" / "multiply_train.jsonl"

STEPS = 8
SEED = 0
HELD_OUT_ROWS = 100
# By how much the mean reward on held-out rows must rise. Measured: 0.44; with the broken learners
# -0.31 (sign), -0.17 (mask), -0.13 (shift). The standard error of a difference is about 0.06.
MARGIN = 0.25
# 8 prompts x 8 attempts a step, and a learning rate that shows something within a few of them.
SETTINGS: dict[str, Any] = {
    "lr": 2e-3,
    "rollout_batch_size": 8,
    "n_samples_per_prompt": 8,
    "max_prompt_length": 512,
    "max_response_length": 512,
    "agent_workflow_timeout_s": 120.0,
    "grader_timeout_s": 30.0,
    "eval_interval": STEPS,
    "max_steps": STEPS,
    "seed": SEED,
}
UNGUARDED = {"logprob_gap_limit": 1e9}


class SignFlipped(Learner):
    """Makes likely what did worse than its group."""

    def step(
        self, sequences: Sequence[Any], advantages: Sequence[float], *, policy_version: int | None = None
    ) -> StepMetrics:
        flipped = [-advantage for advantage in advantages]
        return super().step(sequences, flipped, policy_version=policy_version)


def without_mask(sequences: Sequence[TokenSequence]) -> list[TokenSequence]:
    return [replace(sequence, mask=[1] * len(sequence.ids)) for sequence in sequences]


class MaskDropped(Learner):
    """Takes everything for sampled: questions, tool replies, the template.

    It belongs to a server with the same fault, which records what the policy gives those tokens too.
    """

    def step(
        self, sequences: Sequence[Any], advantages: Sequence[float], *, policy_version: int | None = None
    ) -> StepMetrics:
        unmasked = without_mask(sequences)
        filled = [
            replace(sequence, logprobs=logprobs)
            for sequence, logprobs in zip(unmasked, self.logprobs(unmasked), strict=True)
        ]
        return super().step(filled, advantages, policy_version=policy_version)


class ShiftedByOne(Learner):
    """Takes the log-probabilities of the token before for those of the token."""

    def step(
        self, sequences: Sequence[Any], advantages: Sequence[float], *, policy_version: int | None = None
    ) -> StepMetrics:
        def shifted(rows: Sequence[TrainingRow], device: Any) -> MicroBatch:
            batch = collate(rows, device)
            return replace(batch, targets_BK=batch.ids_BT[:, batch.columns_K])

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(learner_module, "collate", shifted)
            return super().step(sequences, advantages, policy_version=policy_version)


class EverythingSampled(Learner):
    """As :class:`MaskDropped`, with a server that is right: it knows no probability of those tokens."""

    def step(
        self, sequences: Sequence[Any], advantages: Sequence[float], *, policy_version: int | None = None
    ) -> StepMetrics:
        versions = [
            replace(sequence, versions=[self.updates] * len(sequence.ids))
            for sequence in without_mask(sequences)
        ]
        return super().step(versions, advantages, policy_version=policy_version)


def trainer(run_dir: Path, learner: type[Learner], **changes: Any) -> LocalTrainer:
    spec = TrainingSpec(
        settings=TrainingSettings(**{**SETTINGS, **changes}),
        model_path="osmosis/tiny",
        dataset=DatasetInput(DATASET, "multiply_train", file_digest(DATASET), "workspace"),
        rollout_dir=WORKSPACE / "rollouts" / "multiply",
        validation=ValidationPlan(max_rows=HELD_OUT_ROWS),
        device="cpu",
    )
    return LocalTrainer(
        spec, run_dir, make_learner=lambda spec: learner(spec.model_path, spec.settings, spec.device)
    )


def gain(records: list[StepRecord]) -> float:
    """What the run did to the held-out reward."""
    rewards = dict(series(records, VALIDATION_REWARD))
    return rewards[STEPS] - rewards[0]


async def test_a_few_steps_raise_the_held_out_reward_by_the_margin(tmp_path):
    summary = await trainer(tmp_path / "run", Learner).run()
    assert gain(summary.records) >= MARGIN
    gaps = [value for _, value in series(summary.records, "train/logprob_gap_max")]
    assert len(gaps) == STEPS
    assert max(gaps) < 1e-4
    assert (tmp_path / "run" / "checkpoints" / f"step-{STEPS:08d}" / "adapter").is_dir()


@pytest.mark.parametrize("broken", [SignFlipped, MaskDropped, ShiftedByOne])
async def test_a_broken_learner_does_not_reach_the_margin(broken, tmp_path):
    summary = await trainer(tmp_path / "run", broken, **UNGUARDED).run()
    assert gain(summary.records) < MARGIN


@pytest.mark.parametrize("broken", [EverythingSampled, ShiftedByOne])
async def test_a_learner_that_sees_other_tokens_than_the_server_is_refused_before_it_does_harm(
    broken, tmp_path
):
    run_dir = tmp_path / "run"
    with pytest.raises(StepRefusedError, match="do not see the same tokens"):
        await trainer(run_dir, broken, rollout_batch_size=2).run()
    assert "train/loss" not in {
        key for record in read_history(run_dir / "metrics.jsonl") for key in record.metrics
    }
