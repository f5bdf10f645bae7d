"""A learner of two processes: what it learns, and what is left when one of them dies."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from osmosis_ai.errors import OsmosisError
from tests.conftest import home_of_a_module
from tests.e2e.platform_process import child_of
from tests.e2e.training import CheckpointDirectory, Trainer, TrainingHooks, TrainingSummary, series
from tests.e2e.training import trainer as make_trainer

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("warm_children")]

STEPS = 3
LOGGERS = ["tensorboard"] if find_spec("tensorboard") else []
COMPARED = ("train/loss", "train/grad_norm", "train/entropy_loss", "train/kl_base", "rollout/raw_reward")


def follower() -> int | None:
    """Return the process that learns together with this one."""
    return child_of(os.getpid(), "osmosis_ai.training.learner.ranks")


class Watching(TrainingHooks):
    """Sees who follows after each step, and kills it after one when told to."""

    def __init__(self, kill_after: int | None = None) -> None:
        self._kill_after = kill_after
        self.seen: list[int | None] = []

    def checkpoint(self, saved: CheckpointDirectory) -> None:
        self.seen.append(follower())
        if saved.step == self._kill_after:
            os.kill(int(self.seen[-1] or 0), signal.SIGKILL)


SETTINGS = {
    "lr": 1e-3,
    "rollout_batch_size": 3,
    "n_samples_per_prompt": 4,
    "max_prompt_length": 384,
    "max_response_length": 128,
    "micro_batch_tokens": 400,
    "max_steps": STEPS,
}


def trainer(
    run_dir: Path, hooks: TrainingHooks, environ: Mapping[str, str] = os.environ, **changes: object
) -> Trainer:
    return make_trainer(run_dir, {**SETTINGS, **changes}, hooks, environ={**environ, "OMP_NUM_THREADS": "1"})


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> TrainingSummary:
    """What one process learns."""
    root = tmp_path_factory.mktemp("alone")
    with home_of_a_module(root):
        return asyncio.run(trainer(root / "run", TrainingHooks()).run())


@pytest.mark.parametrize("shard_model", [pytest.param(False, marks=pytest.mark.nightly), True])
async def test_two_processes_learn_what_one_does_and_end_with_the_run(shard_model, alone, tmp_path):
    hooks = Watching()
    together = await trainer(tmp_path / "together", hooks, learner_processes=2, shard_model=shard_model).run()
    assert all(hooks.seen)
    assert follower() is None
    assert "WORLD_SIZE" not in os.environ
    for key in COMPARED:
        expected = [value for _, value in series(alone.records, key)]
        assert [value for _, value in series(together.records, key)] == pytest.approx(expected, abs=1e-3), key


async def test_a_process_that_is_killed_ends_the_session_and_the_next_goes_on(tmp_path):
    with pytest.raises(
        OsmosisError,
        match=r"process 1 of the learner ended \(signal 9, as when the machine has no memory left\)",
    ) as caught:
        await trainer(tmp_path / "run", Watching(kill_after=1), learner_processes=2, report_to=LOGGERS).run()
    assert "resumes from the last checkpoint" in str(caught.value.hint)
    # In this very process, which was connected with the lost one.
    summary = await trainer(tmp_path / "run", TrainingHooks(), learner_processes=2, report_to=LOGGERS).run()
    assert (summary.ending.because, summary.steps_done) == ("finished", STEPS)
    assert [record.step for record in summary.records] == list(range(1, STEPS + 1))
    for name in LOGGERS:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        [logged] = (tmp_path / "run" / "loggers" / name).iterdir()
        points = EventAccumulator(str(logged)).Reload().Scalars("train/loss")
        assert [(point.step, pytest.approx(point.value, abs=1e-6)) for point in points] == series(
            summary.records, "train/loss"
        )


async def test_a_process_that_does_not_start_is_said_at_once_with_its_last_words(tmp_path):
    broken = {**os.environ, "PYTHONHOME": "/nowhere"}
    with pytest.raises(OsmosisError, match=r"process 1 of the learner ended \(exit status 1\)") as caught:
        await trainer(tmp_path / "run", TrainingHooks(), broken, learner_processes=2).run()
    assert "process-1.log" in str(caught.value)
    assert "WORLD_SIZE" not in os.environ
    # Nothing in this process waits for it any more, so that it can train with others.
    for thread in threading.enumerate():
        if thread.name == "learner-start":
            thread.join(300)
            assert not thread.is_alive()
    summary = await trainer(tmp_path / "again", TrainingHooks(), learner_processes=2).run()
    assert summary.ending.because == "finished"
