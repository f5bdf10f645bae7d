"""Keeps in the run's log what its caller is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from osmosis_ai.training.runs.hooks import SamplingProgress, SavedCheckpoint, TrainingHooks, TrainingPlan

if TYPE_CHECKING:
    from osmosis_ai.evaluation.run_log import RunLog
    from osmosis_ai.training.objective.metrics import StepRecord


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

    def stage(self, message: str) -> None:
        self._log.write("stage", message)
        self._hooks.stage(message)

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
