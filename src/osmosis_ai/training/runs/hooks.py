"""Callbacks from the training loop to its caller. The defaults show nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from osmosis_ai.evaluation.run_log import RunLog
    from osmosis_ai.training.runs.metrics import StepRecord


@dataclass(frozen=True)
class TrainingPlan:
    """What is about to happen."""

    run_dir: Path
    model_path: str
    training_rows: int
    held_out_rows: int
    rollouts_per_step: int
    total_steps: int
    steps_done: int
    device: str


@dataclass(frozen=True)
class SamplingProgress:
    """How far the rollouts of a step are."""

    step: int
    kind: str
    finished: int
    total: int
    reward_mean: float | None


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint that is whole and durable."""

    step: int
    directory: Path
    kept: bool


class TrainingHooks:
    """Override what the caller cares about. Everything is called on the run's event loop."""

    def plan(self, plan: TrainingPlan) -> None:
        """Show what is about to happen, once everything is loaded."""

    def note(self, message: str) -> None:
        """Tell something worth knowing."""

    def warning(self, step: int, message: str) -> None:
        """Tell what a person should look at in a step's numbers."""
        self.note(message)

    def stage(self, message: str) -> None:
        """Tell what the run is busy with now (``loading the model``)."""

    def environment(self, words: str) -> None:
        """Take note of what the agent runs in; not called for one that is served elsewhere."""

    def progress(self, progress: SamplingProgress) -> None:
        """Show how far the rollouts of a step are; called after each of them."""

    def step(self, record: StepRecord, total_steps: int) -> None:
        """Take a step that is durable; also those of step 0, the validation before the first."""

    def checkpoint(self, saved: SavedCheckpoint) -> None:
        """Take note of a checkpoint."""

    def started(self, stop: Callable[[], None]) -> None:
        """Take the function that stops the run gracefully; it may be called from any thread."""

    async def goes_on(self) -> bool:
        """Return whether a paused run continues with everything loaded; nothing is computed meanwhile."""
        return False


class LoggedHooks(TrainingHooks):
    """Passes everything on, and writes what is worth keeping into the run's log."""

    def __init__(self, hooks: TrainingHooks, log: RunLog) -> None:
        self._hooks = hooks
        self._log = log

    def plan(self, plan: TrainingPlan) -> None:
        self._log.write(
            "plan",
            f"training {plan.model_path}",
            steps_done=plan.steps_done,
            total_steps=plan.total_steps,
            training_rows=plan.training_rows,
            held_out_rows=plan.held_out_rows,
            device=plan.device,
        )
        self._hooks.plan(plan)

    def note(self, message: str) -> None:
        self._log.write("run", message, level="WARNING")
        self._hooks.note(message)

    def warning(self, step: int, message: str) -> None:
        self._log.write("run", message, level="WARNING")
        self._hooks.warning(step, message)

    def stage(self, message: str) -> None:
        self._log.write("stage", message)
        self._hooks.stage(message)

    def environment(self, words: str) -> None:
        self._log.write("deps", words)
        self._hooks.environment(words)

    def progress(self, progress: SamplingProgress) -> None:
        self._hooks.progress(progress)

    def step(self, record: StepRecord, total_steps: int) -> None:
        self._log.write("step", f"step {record.step} of {total_steps}", metrics=record.metrics)
        self._hooks.step(record, total_steps)

    def checkpoint(self, saved: SavedCheckpoint) -> None:
        if saved.kept:
            self._log.write("checkpoint", f"step {saved.step}", path=str(saved.directory))
        self._hooks.checkpoint(saved)

    def started(self, stop: Callable[[], None]) -> None:
        self._hooks.started(stop)

    async def goes_on(self) -> bool:
        return await self._hooks.goes_on()
