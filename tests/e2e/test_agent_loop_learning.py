"""An agent loop in a rollout directory is trained as its AgentWorkflow twin is: the same tokens, the same rewards.

`multiply_loop.py` is the sample rollout's agent written as a loop. Every call of it reaches the policy with the seed,
the tools and the arguments that the workflow's has, and every token is recorded; so runs of one seed are the same run.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")

from osmosis_ai.evaluation.conversation import read_conversation
from osmosis_ai.training.runs.metrics import VALIDATION_REWARD, StepRecord
from osmosis_ai.viewer.local.source import LocalSource
from tests.e2e.training import WORKSPACE, one_step, trainer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LOOP = Path(__file__).with_name("multiply_loop.py")
TWINS = ("main.py", LOOP.name)
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


@pytest.fixture
def rollout_dir(tmp_path: Path) -> Path:
    """The sample rollout, and its twin beside it."""
    directory = tmp_path / "multiply"
    shutil.copytree(WORKSPACE / "rollouts" / "multiply", directory)
    shutil.copy(LOOP, directory)
    return directory


async def test_a_loop_is_trained_on_the_same_tokens_and_rewards_as_its_workflow_twin(
    tmp_path: Path, rollout_dir: Path
) -> None:
    found = []
    for entrypoint in TWINS:
        run_dir = tmp_path / "run" / entrypoint
        agent = {"rollout_dir": rollout_dir, "entrypoint": entrypoint}
        records = (await trainer(run_dir, SETTINGS, validated=4, **agent).run()).records
        found.append(one_step(run_dir, records))
        assert_validation_can_be_looked_at(run_dir, records[-1])
    assert found[0] == found[1]


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
        assert (
            stored.content is not None and read_conversation(stored.content).facts["reward"] == record.reward
        )
