"""What `osmosis rollout init` writes runs as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from osmosis_ai.workspace.rollout_templates import init_rollout
from tests.samples.served_rollout import ServedRollout
from tests.standin_model import Reply, StandInModel, error_reply
from tests.workspace.builders import make_workspace


@pytest.mark.integration
async def test_a_new_rollout_asks_the_model_and_rewards_the_ground_truth(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "ws")
    init_rollout(workspace, "capitals")
    async with (
        ServedRollout(workspace.rollouts_dir / "capitals", tmp_path / "artifacts") as rollout,
        StandInModel(api_key="rollout-key") as model,
    ):
        model.script(Reply(content=" Paris\n"), Reply(content="London"), error_reply(404, "no such model"))
        right = await rollout.attempt("The capital of France?", "Paris", model.base_url, name="right")
        wrong = await rollout.attempt("The capital of France?", "Paris", model.base_url, name="wrong")
        failed = await rollout.attempt("The capital of France?", "Paris", model.base_url, name="failed")
    assert right["grader"]["sample"]["reward"] == 1.0
    assert wrong["grader"]["sample"]["reward"] == 0.0
    assert "no such model" in failed["completion"]["err_message"]
