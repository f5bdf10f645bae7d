"""A plain script as an agent, evaluated and trained: the example as it lies in `examples/command`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.e2e.agent_workspace import CONFIG, World
from tests.e2e.test_framework_examples import ROWS, multiplies
from tests.standin_model import StandInModel

pytestmark = pytest.mark.e2e

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "examples" / "command"
TRAINING_ROWS = REPOSITORY / "data" / "multiply_train.jsonl"


async def test_a_plain_script_is_evaluated_with_its_conversation_and_its_tokens(tmp_path: Path) -> None:
    async with StandInModel(multiplies) as model:
        world = World(tmp_path, model)
        shutil.copytree(EXAMPLE, world.root / "rollouts" / "command")
        lines = [
            json.dumps({"user_prompt": asked, "ground_truth": truth})
            for asked, truth in [*ROWS, ("Nothing.", "1")]
        ]
        (world.root / "data" / "rows.jsonl").write_text("\n".join(lines) + "\n")
        world.config(rollout="command", timeout_s=600)
        outcome = await world.osmosis("eval", "run", CONFIG, "--yes", "--json")
    assert outcome.status == 0, outcome.err
    by_row = {record["row_index"]: record for record in world.records()}
    assert [by_row[row].get("reward") for row in range(4)] == [1.0, 1.0, 0.0, 0.0]
    assert by_row[0]["model_calls"] == 2 and by_row[0]["tokens"] > 0
    file = world.runs[0] / "rollout_trials" / by_row[0]["rollout_id"] / "trajectory.json"
    trajectory = json.loads(file.read_text())
    steps = [(step["source"], step["message"]) for step in trajectory["steps"]]
    assert steps == [
        ("system", "Answer with #### and the number."),
        ("user", "Compute 6 * 7."),
        ("agent", ""),
        ("agent", "#### 42"),
    ]
    assert all(step["metrics"]["completion_tokens"] for step in trajectory["steps"][2:])
    kept = trajectory["extra"]["osmosis"]["sample_extra_fields"]["command"]
    assert kept == {"exit_status": 0, "stdout": "#### 42\n", "stderr": ""}


@pytest.mark.slow
async def test_the_same_script_is_trained_on_the_tokens_of_its_calls(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from osmosis_ai.config.training import TrainingSettings
    from osmosis_ai.datasets import file_digest
    from osmosis_ai.evaluation.spec import DatasetInput
    from osmosis_ai.training.runs.spec import TrainingSpec
    from osmosis_ai.training.runs.trainer import Trainer
    from osmosis_ai.training.runs.validation import ValidationPlan

    rollout = shutil.copytree(EXAMPLE, tmp_path / "command")
    settings = TrainingSettings(
        rollout_batch_size=2,
        n_samples_per_prompt=2,
        max_steps=1,
        max_prompt_length=512,
        max_response_length=512,
        agent_workflow_timeout_s=120.0,
        grader_timeout_s=120.0,
    )
    dataset = DatasetInput(TRAINING_ROWS, "multiply_train", file_digest(TRAINING_ROWS), "workspace")
    spec = TrainingSpec(
        settings=settings,
        model_path="osmosis/tiny",
        dataset=dataset,
        rollout_dir=rollout,
        entrypoint="main.py",
        validation=ValidationPlan(max_rows=1),
        device="cpu",
    )
    *_, step = (await Trainer(spec, tmp_path / "run").run()).records
    assert (step.metrics["rollout/samples"], step.metrics["rollout/unscored"]) == (4, 0)
    assert step.metrics["train/tokens"] > 0 and step.metrics["train/logprob_gap_max"] < 1e-3
