"""Training makes the agent better, on rows it never learned from.

The real thing throughout: a rollout in its own process, the rollout protocol, the policy served by torch
with every token recorded, the learner. The rollout is the sample one, which also quotes another agent's
wrong answers (`quoting_agent.py`), as conversations with several agents do: without that, a learner that
ignores the mask would learn all the same, only slower. What broken learners do is tested in
tests/training/learner/test_learning_is_real.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from osmosis_ai.training.runs.metrics import VALIDATION_REWARD
from tests.e2e.training import WORKSPACE, series, trainer

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.usefixtures("warm_children")]

QUOTING_AGENT = Path(__file__).with_name("quoting_agent.py")

SEED = 0
HELD_OUT_ROWS = 100
# By how much the mean reward on held-out rows must rise. Measured after 12 steps with the seeds 0, 1 and 2: 0.63,
# 0.50, 0.60. The standard error of a difference is about 0.06.
STEPS, MARGIN = 12, 0.44
# 8 prompts x 8 attempts a step, and a learning rate that shows something within a few of them.
SETTINGS: dict[str, Any] = {
    "lr": 2e-3,
    "rollout_batch_size": 8,
    "n_samples_per_prompt": 8,
    "max_prompt_length": 512,
    "max_response_length": 160,
    "agent_workflow_timeout_s": 120.0,
    "grader_timeout_s": 30.0,
    "eval_interval": STEPS,
    "max_steps": STEPS,
    "seed": SEED,
}


@pytest.mark.nightly
async def test_a_few_steps_raise_the_held_out_reward_by_the_margin(tmp_path):
    rollout_dir, run_dir = tmp_path / "rollouts" / "multiply", tmp_path / "run"
    shutil.copytree(WORKSPACE / "rollouts" / "multiply", rollout_dir)
    shutil.copy(QUOTING_AGENT, rollout_dir)
    agent = {"rollout_dir": rollout_dir, "entrypoint": QUOTING_AGENT.name}
    summary = await trainer(run_dir, SETTINGS, validated=HELD_OUT_ROWS, **agent).run()
    rewards = dict(series(summary.records, VALIDATION_REWARD))
    assert rewards[STEPS] - rewards[0] >= MARGIN
    gaps = [value for _, value in series(summary.records, "train/logprob_gap_max")]
    assert len(gaps) == STEPS
    assert max(gaps) < 1e-4
    assert (run_dir / "checkpoints" / f"step-{STEPS:08d}" / "adapter").is_dir()
