"""An agent loop trains on the same tokens and rewards as a workflow.

`multiply_loop.py` is the sample rollout's agent as a loop. Each of its calls reaches the policy with the seed, tools and
arguments of the workflow's call, and every token is recorded; so runs with one seed are the same run.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from osmosis_ai.evaluation.conversation import read_conversation
from osmosis_ai.training.runs.metrics import VALIDATION_REWARD, StepRecord
from osmosis_ai.viewer.local.source import LocalSource
from tests.conftest import home_of_a_module
from tests.e2e.training import WORKSPACE, one_step, trainer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LOOP = Path(__file__).with_name("multiply_loop.py")
SETTINGS = {
    "lr": 2e-3,
    "rollout_batch_size": 2,
    "n_samples_per_prompt": 4,
    "max_prompt_length": 512,
    "max_response_length": 512,
    "agent_workflow_timeout_s": 120.0,
    "grader_timeout_s": 120.0,
    "seed": 0,
    "max_steps": 1,
    "eval_interval": 1,
}


async def train(run_dir: Path, **agent: Any) -> tuple[list[dict[str, Any]], bytes]:
    """Train one step; return its metrics and the adapter."""
    records = (await trainer(run_dir, SETTINGS, validated=4, **agent).run()).records
    assert_validation_can_be_viewed(run_dir, records[-1])
    return one_step(run_dir, records)


def assert_validation_can_be_viewed(run_dir: Path, last: StepRecord) -> None:
    """Check that the validation has the reward of the curve, and a conversation for each sample."""
    source = LocalSource(run_dir, cache_dir=run_dir / "cache")
    samples = source.validation(run_dir.name)
    assert samples is not None and (samples.step, len(samples.records)) == (last.step, 4)
    rewards = [record.reward for record in samples.records if record.reward is not None]
    assert sum(rewards) / len(rewards) == pytest.approx(last.metrics[VALIDATION_REWARD])
    for record in samples.records:
        stored = source.conversation(
            run_dir.name, record.row_index, record.run_index, max_bytes=1 << 20, kind="training"
        )
        assert (
            stored.content is not None and read_conversation(stored.content).facts["reward"] == record.reward
        )


@pytest.fixture(scope="module")
def rollout_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample rollout, and its agent as a loop."""
    directory = tmp_path_factory.mktemp("rollouts") / "multiply"
    shutil.copytree(WORKSPACE / "rollouts" / "multiply", directory)
    shutil.copy(LOOP, directory)
    return directory


@pytest.fixture(scope="module")
def workflow(
    rollout_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[dict[str, Any]], bytes]:
    """What one step with the workflow learns."""
    root = tmp_path_factory.mktemp("workflow")
    with home_of_a_module(root):
        return asyncio.run(train(root / "run", rollout_dir=rollout_dir))


async def test_a_loop_learns_what_its_workflow_learns(
    tmp_path: Path, rollout_dir: Path, workflow: tuple[list[dict[str, Any]], bytes]
) -> None:
    assert await train(tmp_path / "run", rollout_dir=rollout_dir, entrypoint=LOOP.name) == workflow
