"""What a trainer finds out goes to the platform: its curve, its checkpoints, what it says.

The run's directory is the truth and this only copies from it: a step is published when its record is durable, and
a worker that takes the run over publishes again what the one before may not have. Which checkpoints the platform
keeps is a matter of the run's settings alone, never of when somebody stopped and started the platform: every
``checkpoint_save_freq`` steps, and the last one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.logs import LogLine
from osmosis_ai.platform.runs.leases import LeaseLostError
from osmosis_ai.training.learner.checkpoints import PROVENANCE_FILE, CheckpointDirectory, checkpoints_in
from osmosis_ai.training.runs.hooks import SavedCheckpoint, TrainingHooks, TrainingPlan
from osmosis_ai.training.runs.metrics import TRAINING_REWARD, VALIDATION_REWARD, StepRecord, read_history

if TYPE_CHECKING:
    from osmosis_ai.platform.runs.work.publisher import Publisher
    from osmosis_ai.platform.runs.work.run_work import Interrupt
    from osmosis_ai.platform.runs.work.training_store import TrainingRunWriter
    from osmosis_ai.training.runs.run_directory import TrainingDirectory

_SHOWN = {TRAINING_REWARD: "reward", VALIDATION_REWARD: "validation reward"}


class TrainingPublisher:
    """Copies one run's directory to the platform; every method blocks.

    Args:
        directory: the run's.
        store: where it goes.
        publisher: where it is told.
        save_freq: steps between the checkpoints that are kept.
    """

    def __init__(
        self, directory: TrainingDirectory, store: TrainingRunWriter, publisher: Publisher, *, save_freq: int
    ) -> None:
        self._directory = directory
        self._store = store
        self._publisher = publisher
        self._save_freq = save_freq

    def catch_up(self) -> None:
        """Publish every step and every due checkpoint that is in the directory."""
        self._store.append_steps(list(read_history(self._directory.metrics)))
        self.keep_due()

    def keep_due(self) -> None:
        """Keep the checkpoints that are due and not kept yet; one that cannot be is tried again with the next."""
        self._keep([one for one in self._all() if one.step % self._save_freq == 0])

    def keep_last(self) -> bool:
        """Keep the last checkpoint, due or not, and all that are due; return whether all of them could be."""
        checkpoints = self._all()
        due = [one for one in checkpoints if one.step % self._save_freq == 0 or one is checkpoints[-1]]
        return self._keep(due)

    def _all(self) -> tuple[CheckpointDirectory, ...]:
        return checkpoints_in(self._directory.checkpoints)

    def _keep(self, checkpoints: list[CheckpointDirectory]) -> bool:
        stored, complete = self._store.checkpoint_steps(), True
        for checkpoint in checkpoints:
            if checkpoint.step in stored:
                continue
            try:
                name = self._store.add_checkpoint(
                    checkpoint.step,
                    checkpoint.adapter_dir,
                    provenance=checkpoint.directory / PROVENANCE_FILE,
                    reward=_reward(checkpoint),
                )
            except LeaseLostError:
                raise
            except (OSError, OsmosisError) as error:
                message = f"the checkpoint of step {checkpoint.step} could not be stored: {error}"
                self._publisher.log(LogLine(message, level="error", step="checkpoint"))
                complete = False
            else:
                self._publisher.log(LogLine(f"kept as `{name}`", step="checkpoint"))
        return complete


class PublishingHooks(TrainingHooks):
    """Carries what the trainer says to the publisher, and what the platform says to the trainer.

    Args:
        publisher: writes, in a thread of its own.
        findings, store: what it writes.
        interrupt: says when the trainer is to end.
    """

    def __init__(
        self,
        publisher: Publisher,
        findings: TrainingPublisher,
        store: TrainingRunWriter,
        interrupt: Interrupt,
    ) -> None:
        self._publisher = publisher
        self._findings = findings
        self._store = store
        self._interrupt = interrupt

    def plan(self, plan: TrainingPlan) -> None:
        self._say(_described(plan), step="plan")
        self._publisher.write(
            lambda: self._store.begin(total_steps=plan.total_steps, steps_done=plan.steps_done)
        )
        self._publisher.write(self._findings.catch_up)

    def note(self, message: str) -> None:
        self._say(message)

    def stage(self, message: str) -> None:
        self._say(message)

    def step(self, record: StepRecord, total_steps: int) -> None:
        self._publisher.write(lambda: self._store.append_steps([record]))
        shown = [f"{name} {record.metrics[key]:.3f}" for key, name in _SHOWN.items() if key in record.metrics]
        shown += [f"{count} without a reward ({reason})" for reason, count in record.unscored.items()]
        self._say(f"step {record.step} of {total_steps}: {', '.join(shown) or 'no rewards'}", step="step")

    def checkpoint(self, saved: SavedCheckpoint) -> None:
        if saved.kept:
            self._publisher.write(self._findings.keep_due)

    def started(self, stop: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        # By the loop, so that what is about to be started is there to be stopped.
        self._interrupt.listen(lambda: None if loop.is_closed() else stop())

    def _say(self, message: str, *, step: str = "run") -> None:
        self._publisher.log(LogLine(message, step=step))


def _described(plan: TrainingPlan) -> str:
    done = f", {plan.steps_done} of them done" if plan.steps_done else ""
    return (
        f"{plan.total_steps} steps of {plan.rollouts_per_step} rollouts on {plan.device}{done}; "
        f"{plan.training_rows} rows to train on, {plan.held_out_rows} held out"
    )


def _reward(checkpoint: CheckpointDirectory) -> float | None:
    """Return the reward of the validation after the checkpoint's step, or else of the step's own rollouts."""
    metrics = checkpoint.provenance().get("metrics") or {}
    reward: float | None = metrics.get(VALIDATION_REWARD, metrics.get(TRAINING_REWARD))
    return reward
