"""An agent loop in a rollout directory is trained as its AgentWorkflow twin is: the same tokens, the same rewards.

`multiply_loop.py` is the sample rollout's agent written as a loop. Every call of it reaches the policy with the seed,
the tools and the arguments that the workflow's has, and every token is recorded; so runs of one seed are the same run.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.datasets import file_digest
from osmosis_ai.evaluation.conversation import read_conversation
from osmosis_ai.evaluation.spec import DatasetInput
from osmosis_ai.training.runs.metrics import VALIDATION_REWARD, StepRecord
from osmosis_ai.training.runs.spec import TrainingSpec
from osmosis_ai.training.runs.trainer import Trainer
from osmosis_ai.training.runs.validation import ValidationPlan
from osmosis_ai.viewer.local.source import LocalSource

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

WORKSPACE = Path(__file__).parents[2]
LOOP = Path(__file__).with_name("multiply_loop.py")
DATASET = WORKSPACE / "data" / "multiply_train.jsonl"
TWINS = ("main.py", LOOP.name)
SETTINGS: dict[str, Any] = {
    "lr": 2e-3,
    "rollout_batch_size": 8,
    "n_samples_per_prompt": 8,
    "max_prompt_length": 512,
    "max_response_length": 512,
    "agent_workflow_timeout_s": 120.0,
    "grader_timeout_s": 120.0,
    "seed": 0,
}
MEASURED = ("time/", "speed/")


@pytest.fixture
def rollout_dir(tmp_path: Path) -> Path:
    """The sample rollout, and its twin beside it."""
    directory = tmp_path / "multiply"
    shutil.copytree(WORKSPACE / "rollouts" / "multiply", directory)
    shutil.copy(LOOP, directory)
    return directory


async def train(
    run_dir: Path, rollout_dir: Path, entrypoint: str, *, rows: int, **changes: Any
) -> list[StepRecord]:
    spec = TrainingSpec(
        settings=TrainingSettings(**{**SETTINGS, **changes}),
        model_path="osmosis/tiny",
        dataset=DatasetInput(DATASET, "multiply_train", file_digest(DATASET), "workspace"),
        rollout_dir=rollout_dir,
        entrypoint=entrypoint,
        validation=ValidationPlan(max_rows=rows),
        device="cpu",
    )
    return (await Trainer(spec, run_dir).run()).records


async def test_a_loop_is_trained_on_the_same_tokens_and_rewards_as_its_workflow_twin(
    tmp_path: Path, rollout_dir: Path
) -> None:
    curves, adapters = [], []
    for entrypoint in TWINS:
        run_dir = tmp_path / "run" / entrypoint
        changes = {"rollout_batch_size": 2, "n_samples_per_prompt": 4, "max_steps": 1, "eval_interval": 1}
        records = await train(run_dir, rollout_dir, entrypoint, rows=4, **changes)
        curves.append(
            [
                {key: value for key, value in record.metrics.items() if not key.startswith(MEASURED)}
                for record in records
            ]
        )
        weights = run_dir / "checkpoints" / "step-00000001" / "adapter" / "adapter_model.safetensors"
        adapters.append(weights.read_bytes())
        assert_validation_can_be_looked_at(run_dir, records[-1])
    assert curves[0] == curves[1]
    assert adapters[0] == adapters[1]


def assert_validation_can_be_looked_at(run_dir: Path, last: StepRecord) -> None:
    """The newest validation's samples come to what the curve says, and each has what was said."""
    source = LocalSource(run_dir, cache_dir=run_dir / "cache")
    samples = source.validation(run_dir.name)
    assert samples is not None and (samples.step, len(samples.records)) == (last.step, 4)
    rewards = [record.reward for record in samples.records if record.reward is not None]
    assert sum(rewards) / len(rewards) == pytest.approx(last.metrics[VALIDATION_REWARD])
    for record in samples.records:
        stored = source.validation_conversation(
            run_dir.name, record.row_index, record.run_index, max_bytes=1 << 20
        )
        assert stored.content is not None and read_conversation(stored.content).reward == record.reward
