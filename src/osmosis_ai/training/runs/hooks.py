"""What a training run tells its caller: the seam between the loop and whoever shows it.

The defaults are those of a program that runs unattended: nothing is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from osmosis_ai.training.objective.metrics import StepRecord


@dataclass(frozen=True)
class TrainingPlan:
    """What is about to happen.

    Attributes:
        run_dir: where everything of the run is kept.
        model_path: what is trained.
        training_rows, held_out_rows: how many rows are trained and validated on.
        rollouts_per_step: prompts times attempts.
        total_steps: of the run.
        steps_done: by earlier sessions; this one goes on behind them.
        device: where the learner computes.
    """

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
    """How far the rollouts of a step are.

    Attributes:
        step: they are for; for a validation, the step after which it is made.
        kind: ``"training"`` or ``"validation"``.
        finished, total: rollouts.
        reward_mean: over those that have a reward; None without any.
    """

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

    def stage(self, message: str) -> None:
        """Tell what the run is busy with now (``loading the model``)."""

    def progress(self, progress: SamplingProgress) -> None:
        """Show how far the rollouts of a step are; called after each of them."""

    def step(self, record: StepRecord, total_steps: int) -> None:
        """Take a step that is durable; also those of step 0, the validation before the first."""

    def checkpoint(self, saved: SavedCheckpoint) -> None:
        """Take note of a checkpoint."""

    def started(self, stop: Callable[[], None]) -> None:
        """Take the function that stops the run gracefully; it may be called from any thread."""
