"""Kills a trainer or its rollout server with SIGKILL at a moment given by the records of its run, which then continues.

Progress is read from the run's curve (``metrics.jsonl``, one line per step), so a slow machine is killed at the same
moments as a fast one. A disturbed run must end with the curve, validations, checkpoints and adapter of an undisturbed
one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import pytest
import torch
from safetensors.numpy import load_file

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.datasets import file_digest
from osmosis_ai.evaluation.spec import DatasetInput
from osmosis_ai.training.runs.metrics import VALIDATION_REWARD, read_history
from osmosis_ai.training.runs.spec import TrainingSpec
from osmosis_ai.training.runs.trainer import Trainer
from osmosis_ai.workspace.rollout_templates import copy_sample_workspace
from tests.e2e.platform_process import ROLLOUT_SERVER, child_of
from tests.e2e.turnstile import Turnstile
from tests.warm_osmosis import process_of, warm_python

STEPS = 10
VALIDATED = [0, 5, STEPS]
"""The steps with a validation."""
_PATIENCE_S = 300.0


@dataclass(frozen=True)
class Moment:
    """The moment of a kill: ``part`` of a step after the run's curve has ``records`` lines; the first is step 0."""

    records: int
    part: float


def moments(seed: int, kills: int) -> list[Moment]:
    """Return as many moments, one in each equal part of the run's middle."""
    draw = random.Random(seed)
    width = (STEPS - 2) / kills  # a late kill still falls into the last step
    return [Moment(1 + int((number + draw.random()) * width), draw.random()) for number in range(kills)]


def train(workspace: Path, run_dir: Path) -> None:
    """Train in ``run_dir`` from its last checkpoint on."""
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
            validation_rows=8,
        ),
        model_path="osmosis/tiny",
        dataset=DatasetInput(dataset, "multiply_train", file_digest(dataset), "workspace"),
        rollout_dir=workspace / "rollouts" / "multiply",
        device="cpu",
    )
    asyncio.run(Trainer(spec, run_dir).run())


@dataclass(frozen=True)
class Bench:
    """Executes runs and kills them.

    Attributes:
        workspace: Has the rollout and rows to train with.
        turnstile: Holds the attempts of all runs.
        undisturbed: The directory of an undisturbed run.
        step_s: The median duration of its steps.
    """

    workspace: Path
    turnstile: Turnstile
    undisturbed: Path
    step_s: float

    def check_trainer_kill(self, run_dir: Path, moment: Moment) -> str:
        """Kill a run's trainer, and start it again; return a description.

        Raises:
            AssertionError: The run differs from the undisturbed one.
        """
        trainer = self.start(run_dir)
        status = self._while_killed(run_dir, moment, trainer, lambda: process_of(trainer.pid))
        assert status == -signal.SIGKILL, f"the session ended by itself: {status}"
        left = steps_recorded(run_dir)
        assert 1 <= left <= STEPS, f"killed outside the run's middle, with {left} records"
        assert self.start(run_dir).wait() == 0
        assert_same_run(run_dir, self.undisturbed)
        return f"killed with {left} of {STEPS + 1} records"

    def check_server_kill(self, run_dir: Path, moment: Moment) -> str:
        """Kill a run's rollout server; the trainer starts another."""
        trainer = self.start(run_dir)
        status = self._while_killed(
            run_dir, moment, trainer, lambda: child_of(process_of(trainer.pid), ROLLOUT_SERVER)
        )
        assert status == 0, f"the session ended with {status}"
        assert_same_run(run_dir, self.undisturbed)
        return f"killed after {moment.records} of {STEPS + 1} records"

    def start(self, run_dir: Path) -> subprocess.Popen[bytes]:
        """Start a session of a run."""
        return subprocess.Popen(
            [warm_python(torch=True), "-m", "tests.e2e.training_kills", str(self.workspace), str(run_dir)],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def _while_killed(
        self,
        run_dir: Path,
        moment: Moment,
        session: subprocess.Popen[bytes],
        victim: Callable[[], int | None],
    ) -> int:
        """Kill ``victim`` during a session; return the exit status of the session.

        Until the kill, the run waits one step after the moment.
        """
        ended, killed = threading.Event(), threading.Event()
        self.turnstile.may_pass = lambda: killed.is_set() or steps_recorded(run_dir) <= moment.records

        def kill() -> None:
            deadline = time.monotonic() + _PATIENCE_S
            while steps_recorded(run_dir) < moment.records and not ended.wait(0.005):
                if time.monotonic() > deadline:
                    return
            time.sleep(moment.part * self.step_s)  # the moment itself is what is varied
            while not killed.is_set() and not ended.wait(0.005):
                with contextlib.suppress(ProcessLookupError):
                    if pid := victim():
                        os.kill(pid, signal.SIGKILL)
                        killed.set()

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            status = session.wait()
        finally:
            ended.set()
            killer.join()
        assert killed.is_set(), "the run was over before it could be killed"
        return status


@contextlib.contextmanager
def training_bench(directory: Path) -> Iterator[Bench]:
    """Create a bench with its undisturbed run in ``directory``."""
    workspace = copy_sample_workspace(directory / "workspace").root
    turnstile = Turnstile(workspace)
    try:
        bench = Bench(workspace, turnstile, directory / "undisturbed", step_s=0.0)
        assert bench.start(bench.undisturbed).wait() == 0
        steps = read_history(bench.undisturbed / "metrics.jsonl")
        yield replace(bench, step_s=median(each.metrics["time/step_s"] for each in steps if each.step))
    finally:
        turnstile.close()


def steps_recorded(run_dir: Path) -> int:
    """Return the number of steps in the run's curve, including step 0."""
    return sum(1 for _ in read_history(run_dir / "metrics.jsonl"))


def curve(run_dir: Path) -> dict[int, dict[str, float]]:
    """Return the computed metrics of each step, without measurements of the machine."""
    measured = ("time/", "speed/", "train/logprob_gap")
    records = list(read_history(run_dir / "metrics.jsonl"))
    assert [record.step for record in records] == list(range(STEPS + 1))
    return {
        record.step: {key: value for key, value in record.metrics.items() if not key.startswith(measured)}
        for record in records
    }


def assert_same_run(run_dir: Path, undisturbed: Path) -> None:
    """Check that a run has the curve, validations, checkpoints and adapter of the undisturbed one."""
    ours, theirs = curve(run_dir), curve(undisturbed)
    assert [step for step, metrics in ours.items() if VALIDATION_REWARD in metrics] == VALIDATED
    for step, expected in theirs.items():
        assert ours[step] == pytest.approx(expected, rel=1e-4, abs=1e-6), f"step {step}"
    names = [sorted(path.name for path in (run / "checkpoints").iterdir()) for run in (run_dir, undisturbed)]
    assert names[0] == names[1]
    adapter, expected_adapter = (
        load_file(run / "checkpoints" / f"step-{STEPS:08d}" / "adapter" / "adapter_model.safetensors")
        for run in (run_dir, undisturbed)
    )
    for name, tensor in expected_adapter.items():
        assert abs(adapter[name] - tensor).max() < 1e-5, name


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(*map(Path, sys.argv[1:]))
