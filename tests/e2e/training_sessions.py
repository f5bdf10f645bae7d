"""Sessions of one training run, each a process of its own, started within milliseconds.

Importing torch takes seconds, so one process imports it and forks a session for each line it reads;
it says the session's pid, and its exit status when it has ended. Its argument is a workspace directory.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from pathlib import Path

import torch
from transformers import Qwen3ForCausalLM  # noqa: F401 - loaded once, for every session

import osmosis_ai.inference.torch_engine
import osmosis_ai.training.runs.loop  # noqa: F401 - likewise
from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.datasets import file_digest
from osmosis_ai.evaluation.spec import DatasetInput
from osmosis_ai.training.runs.spec import TrainingSpec, ValidationPlan
from osmosis_ai.training.runs.trainer import Trainer

STEPS = 10


def train(workspace: Path, run_dir: Path) -> None:
    """Train, or go on training, in ``run_dir``."""
    dataset = workspace / "data" / "multiply_train.jsonl"
    spec = TrainingSpec(
        settings=TrainingSettings(
            lr=2e-3,
            rollout_batch_size=4,
            n_samples_per_prompt=4,
            max_prompt_length=512,
            max_response_length=128,
            eval_interval=5,
            checkpoint_save_freq=4,
            max_steps=STEPS,
        ),
        model_path="osmosis/tiny",
        dataset=DatasetInput(dataset, "multiply_train", file_digest(dataset), "workspace"),
        rollout_dir=workspace / "rollouts" / "multiply",
        validation=ValidationPlan(max_rows=8),
        device="cpu",
    )
    asyncio.run(Trainer(spec, run_dir).run())


def main(workspace: str) -> None:
    """Fork a session for every line of stdin, which names its run directory."""
    torch.set_num_threads(1)
    print("ready", flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                train(Path(workspace), Path(line.strip()))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
