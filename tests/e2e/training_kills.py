"""Kills a trainer or its rollout server with SIGKILL at a moment given by the records of its run, which then continues.

Progress is read from the run's curve (``metrics.jsonl``, one line per step), so a slow machine is killed at the same
moments as a fast one. A disturbed run must end with the curve, validations, checkpoints and adapter of an undisturbed
one.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest
from safetensors.numpy import load_file

from osmosis_ai.training.runs.metrics import VALIDATION_REWARD, read_history
from osmosis_ai.workspace.rollout_templates import copy_sample_workspace
from tests.e2e.platform_process import ROLLOUT_SERVER, child_of
from tests.e2e.training_sessions import STEPS
from tests.e2e.turnstile import Turnstile
from tests.warm_osmosis import warm_python

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


class Sessions:
    """Starts sessions of training runs.

    Args:
        workspace: Has the rollout and rows to train with.
    """

    def __init__(self, workspace: Path) -> None:
        self._process = subprocess.Popen(
            [warm_python(torch=True), "-m", "tests.e2e.training_sessions", str(workspace)],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "ready"

    def start(self, run_dir: Path) -> int:
        """Start a session and return its pid."""
        assert self._process.stdin is not None
        print(run_dir, file=self._process.stdin, flush=True)
        return int(self._line())

    def wait(self) -> int:
        """Wait for the session to end; return its exit status."""
        return int(self._line())

    def close(self) -> None:
        """End."""
        self._process.kill()
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@dataclass(frozen=True)
class Bench:
    """Executes runs and kills them.

    Attributes:
        sessions: The sessions of runs.
        turnstile: Holds the attempts of all runs.
        undisturbed: The directory of an undisturbed run.
        step_s: The median duration of its steps.
    """

    sessions: Sessions
    turnstile: Turnstile
    undisturbed: Path
    step_s: float

    def check_trainer_kill(self, run_dir: Path, moment: Moment) -> str:
        """Kill a run's trainer, and start it again; return a description.

        Raises:
            AssertionError: The run differs from the undisturbed one.
        """
        trainer = self.sessions.start(run_dir)
        status = self._while_killed(run_dir, moment, lambda: trainer)
        assert status == -signal.SIGKILL, f"the session ended by itself: {status}"
        left = steps_recorded(run_dir)
        assert 1 <= left <= STEPS, f"killed outside the run's middle, with {left} records"
        self.sessions.start(run_dir)
        assert self.sessions.wait() == 0
        assert_same_run(run_dir, self.undisturbed)
        return f"killed with {left} of {STEPS + 1} records"

    def check_server_kill(self, run_dir: Path, moment: Moment) -> str:
        """Kill a run's rollout server; the trainer starts another."""
        trainer = self.sessions.start(run_dir)
        status = self._while_killed(run_dir, moment, lambda: child_of(trainer, ROLLOUT_SERVER))
        assert status == 0, f"the session ended with {status}"
        assert_same_run(run_dir, self.undisturbed)
        return f"killed after {moment.records} of {STEPS + 1} records"

    def _while_killed(self, run_dir: Path, moment: Moment, victim: Callable[[], int | None]) -> int:
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
            status = self.sessions.wait()
        finally:
            ended.set()
            killer.join()
        assert killed.is_set(), "the run was over before it could be killed"
        return status


@contextlib.contextmanager
def training_bench(directory: Path) -> Iterator[Bench]:
    """Create a bench with its undisturbed run in ``directory``."""
    workspace = copy_sample_workspace(directory / "workspace").root
    turnstile, sessions = Turnstile(workspace), Sessions(workspace)
    try:
        undisturbed = directory / "undisturbed"
        sessions.start(undisturbed)
        assert sessions.wait() == 0
        steps = [
            record.metrics["time/step_s"]
            for record in read_history(undisturbed / "metrics.jsonl")
            if record.step
        ]
        yield Bench(sessions, turnstile, undisturbed, median(steps))
    finally:
        sessions.close()
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
