"""Training runs of the sample rollout in this process."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.datasets import file_digest
from osmosis_ai.evaluation.spec import DatasetInput
from osmosis_ai.training.learner.checkpoints import CheckpointDirectory as CheckpointDirectory
from osmosis_ai.training.runs.loop import TrainingHooks
from osmosis_ai.training.runs.metrics import StepRecord
from osmosis_ai.training.runs.spec import TrainingSpec
from osmosis_ai.training.runs.trainer import Trainer
from osmosis_ai.training.runs.trainer import TrainingSummary as TrainingSummary
from tests.training.samples import series as series

WORKSPACE = Path(__file__).parents[2]
DATASET = WORKSPACE / "data" / "multiply_train.jsonl"


def trainer(
    run_dir: Path,
    settings: Mapping[str, Any],
    hooks: TrainingHooks | None = None,
    *,
    validated: int = 0,
    environ: Mapping[str, str] | None = None,
    provenance: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Trainer:
    """Return what trains the built-in model on the sample rollout, unless ``spec`` says otherwise.

    Args:
        validated: how many rows are held out.
    """
    given = {"environ": environ, "provenance": provenance}
    return Trainer(
        TrainingSpec(
            **{
                "settings": TrainingSettings(**{"validation_rows": validated, **settings}),
                "model_path": "osmosis/tiny",
                "dataset": DatasetInput(DATASET, "multiply_train", file_digest(DATASET), "workspace"),
                "rollout_dir": WORKSPACE / "rollouts" / "multiply",
                "device": "cpu",
                **spec,
            }
        ),
        run_dir,
        hooks or TrainingHooks(),
        **{name: value for name, value in given.items() if value is not None},
    )


def one_step(run_dir: Path, records: list[StepRecord]) -> tuple[list[dict[str, Any]], bytes]:
    """Return the metrics and the adapter of the only step of a run."""
    curve = [
        {key: value for key, value in record.metrics.items() if not key.startswith(("time/", "speed/"))}
        for record in records
    ]
    weights = run_dir / "checkpoints" / "step-00000001" / "adapter" / "adapter_model.safetensors"
    return curve, weights.read_bytes()


if __name__ == "__main__":
    asyncio.run(trainer(Path(sys.argv[1]), json.loads(sys.argv[2])).run())
