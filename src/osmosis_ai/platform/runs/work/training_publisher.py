"""What a trainer finds out goes to the platform: its curve, its checkpoints, how far the run is, what it says.

The run's directory is the truth and this only copies from it: a step is published when its record is durable, and
a worker that takes the run over publishes again what the one before may not have. Every write is keyed by what it is
about (run, metric and step; run and step) and made under the run's lease, so nothing is there twice and a worker that
was replaced writes nothing any more. Which checkpoints the platform keeps is a matter of the run's settings alone, never
of when somebody stopped and started the platform: every ``checkpoint_save_freq`` steps, and the last one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.base import upsert
from osmosis_ai.platform.db.tables import DbLoraModel, DbMetricPoint, DbRun, new_id
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.runs.leases import Lease, Leases
from osmosis_ai.platform.runs.lifecycle import LeaseLostError
from osmosis_ai.platform.runs.read.training_curves import VALIDATION
from osmosis_ai.training.learner.checkpoints import PROVENANCE_FILE, CheckpointDirectory, checkpoints_in
from osmosis_ai.training.runs.hooks import SavedCheckpoint, TrainingHooks, TrainingPlan
from osmosis_ai.training.runs.metrics import (
    TRAINING_REWARD,
    VALIDATION_PLANNED,
    VALIDATION_REWARD,
    StepRecord,
    finite,
    read_history,
)

if TYPE_CHECKING:
    from osmosis_ai.platform.runs.work.publisher import Publisher
    from osmosis_ai.platform.runs.work.run_work import Interrupt
    from osmosis_ai.platform.runs.work.validation_files import ValidationFiles
    from osmosis_ai.training.runs.run_directory import TrainingDirectory

_SHOWN = {TRAINING_REWARD: "reward", VALIDATION_REWARD: "validation reward"}
ROLLOUTS = "rollout/samples"
"""The metric that counts the rollouts of a step; their sum is what a run has processed."""


class TrainingRunWriter:
    """Writes one training run.

    Args:
        lease: the right to write it.
        leases, blobs: where it is written.
        clock: dates the checkpoints.
        base_model: what the run's adapters are adapters of.

    Every method raises :class:`~osmosis_ai.platform.runs.leases.LeaseLostError`, having written nothing, once
    the run has another owner or has ended.
    """

    def __init__(
        self, lease: Lease, leases: Leases, blobs: BlobStore, clock: Clock, *, base_model: str
    ) -> None:
        self._lease = lease
        self._leases = leases
        self._blobs = blobs
        self._clock = clock
        self._base_model = base_model

    def begin(self, *, total_steps: int, steps_done: int = 0) -> None:
        """Say how long the run will be, and where it goes on; what came after that is forgotten.

        Args:
            total_steps: of the whole run.
            steps_done: the step of the checkpoint that the run continues from; 0 for a new one.
        """
        with self._leases.writing(self._lease) as (session, run):
            later = (DbMetricPoint.run_id == run.id, DbMetricPoint.step > steps_done)
            session.execute(delete(DbMetricPoint).where(*later))
            run.results = _results(session, run.id, current_step=steps_done, total_steps=total_steps)
            if _validated_step(run) > steps_done:
                run.metrics = None

    def append_steps(self, records: Sequence[StepRecord]) -> None:
        """Record what steps have come to, all of them or none; what is no finite number is left out."""
        if not records:
            return
        points = [
            {
                "run_id": self._lease.run_id,
                "key": key,
                "step": record.step,
                "value": value,
                "timestamp": datetime.fromtimestamp(record.timestamp_ms / 1000, timezone.utc),
            }
            for record in records
            for key, value in finite(record.metrics).items()
        ]
        with self._leases.writing(self._lease) as (session, run):
            upsert(session, DbMetricPoint, points)
            validated = max(
                (record for record in records if record.validation_rewards), key=_step, default=None
            )
            if validated is not None and validated.step >= _validated_step(run):
                run.metrics = {
                    VALIDATION: {"step": validated.step, "rewards": finite(validated.validation_rewards)}
                }
            known = run.results or {}
            run.results = _results(
                session,
                run.id,
                current_step=max(known.get("current_step", 0), *(record.step for record in records)),
                total_steps=known.get("total_steps"),
            )

    def checkpoint_steps(self) -> set[int]:
        """Return the steps whose checkpoints are kept already."""
        with self._leases.writing(self._lease) as (session, run):
            return set(session.scalars(select(DbLoraModel.step).where(DbLoraModel.run_id == run.id)))

    def add_checkpoint(
        self, step: int, adapter: Path, *, provenance: Path | None = None, reward: float | None = None
    ) -> str:
        """Keep an adapter as a checkpoint of the run, and return its name; blocking, as long as its files take.

        Args:
            step: after which it was saved.
            adapter: a directory in PEFT's layout; every file directly in it is kept.
            provenance: a file that says what made it, kept beside them.
            reward: of the policy with it, where that is known.

        Raises:
            OSError: the files could not be read or stored; there is no checkpoint then.
        """
        paths = [path for path in sorted(adapter.iterdir()) if path.is_file()]
        paths += [provenance] if provenance is not None else []
        files = {path.name: self._stored(step, path) for path in paths}
        with self._leases.writing(self._lease) as (session, run):
            model = session.scalar(
                select(DbLoraModel).where(DbLoraModel.run_id == run.id, DbLoraModel.step == step)
            )
            if model is None:
                model = DbLoraModel(
                    id=new_id("lora"),
                    workspace_id=run.workspace_id,
                    run_id=run.id,
                    name=f"{run.name}-step-{step}",
                    base_model=self._base_model,
                    step=step,
                    created_at=self._clock.now(),
                )
                session.add(model)
            model.files, model.reward = files, reward
            return model.name

    def _stored(self, step: int, path: Path) -> dict[str, Any]:
        # The key says what the file is, so that storing it again leaves nothing behind.
        key = f"runs/{self._lease.run_id}/checkpoints/{step}/{path.name}"
        with path.open("rb") as content:
            info = self._blobs.put(key, content)
        return {"blob_key": key, "size": info.size, "sha256": info.sha256}


def _step(record: StepRecord) -> int:
    return record.step


def _validated_step(run: DbRun) -> int:
    """Return the step of the validation that is kept row by row; -1 when there is none."""
    return int(((run.metrics or {}).get(VALIDATION) or {}).get("step", -1))


def _results(session: Session, run_id: str, *, current_step: int, total_steps: int | None) -> dict[str, Any]:
    """Return what lists show of a run; derived from its points, so that repeating a step changes nothing."""
    mine = DbMetricPoint.run_id == run_id
    reward = session.scalar(
        select(DbMetricPoint.value)
        .where(mine, DbMetricPoint.key == TRAINING_REWARD)
        .order_by(DbMetricPoint.step.desc())
        .limit(1)
    )
    rollouts = session.scalar(
        select(func.sum(DbMetricPoint.value)).where(mine, DbMetricPoint.key == ROLLOUTS)
    )
    known = {
        "current_step": current_step,
        "total_steps": total_steps,
        "reward": reward,
        "examples_processed_count": int(rollouts or 0),
    }
    return {key: value for key, value in known.items() if value is not None}


class TrainingPublisher:
    """Copies one run's directory to the platform; every method blocks.

    Args:
        directory: the run's.
        store: where it goes.
        validation: where its newest validation goes.
        publisher: where it is told.
        save_freq: steps between the checkpoints that are kept.
    """

    def __init__(
        self,
        directory: TrainingDirectory,
        store: TrainingRunWriter,
        validation: ValidationFiles,
        publisher: Publisher,
        *,
        save_freq: int,
    ) -> None:
        self._validation = validation
        self._directory = directory
        self._store = store
        self._publisher = publisher
        self._save_freq = save_freq
        self._keeping = threading.Lock()

    def catch_up(self) -> None:
        """Publish every step, every due checkpoint and the newest validation that are in the directory."""
        self.keep_validation()
        self._store.append_steps(list(read_history(self._directory.metrics)))
        self.keep_due()

    def keep_validation(self) -> None:
        """Keep the conversations of the newest validation; if they can not be, those of the one before stay."""
        try:
            self._validation.publish()
        except LeaseLostError:
            raise
        except (OSError, OsmosisError) as error:
            message = f"the conversations of the newest validation could not be stored: {error}"
            self._publisher.log(LogLine(message, level="error", step="validation"))

    def keep_due(self) -> None:
        """Keep the checkpoints that are due and not kept yet; one that cannot be is tried again with the next."""
        self._keep([one for one in self._all() if one.step % self._save_freq == 0])

    def keep_last(self) -> bool:
        """Keep the last checkpoint, due or not, all that are due, and the newest validation.

        Returns:
            Whether all of the checkpoints could be kept.
        """
        self.keep_validation()
        checkpoints = self._all()
        due = [one for one in checkpoints if one.step % self._save_freq == 0 or one is checkpoints[-1]]
        return self._keep(due)

    def _all(self) -> tuple[CheckpointDirectory, ...]:
        return checkpoints_in(self._directory.checkpoints)

    def _keep(self, checkpoints: list[CheckpointDirectory]) -> bool:
        # The publisher's thread and that of who ends the run may come at once.
        with self._keeping:
            return self._keep_each(checkpoints)

    def _keep_each(self, checkpoints: list[CheckpointDirectory]) -> bool:
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
        training, store: what it writes.
        interrupt: says when the trainer is to end.
    """

    def __init__(
        self,
        publisher: Publisher,
        training: TrainingPublisher,
        store: TrainingRunWriter,
        interrupt: Interrupt,
    ) -> None:
        self._publisher = publisher
        self._training = training
        self._store = store
        self._interrupt = interrupt

    def plan(self, plan: TrainingPlan) -> None:
        self._say(_described(plan), step="plan")
        self._publisher.write(
            lambda: self._store.begin(total_steps=plan.total_steps, steps_done=plan.steps_done)
        )
        self._publisher.write(self._training.catch_up)

    def note(self, message: str) -> None:
        self._say(message)

    def stage(self, message: str) -> None:
        self._say(message)

    def environment(self, words: str) -> None:
        self._publisher.know(environment=words)

    def step(self, record: StepRecord, total_steps: int) -> None:
        if VALIDATION_PLANNED in record.metrics:
            # Before its numbers: what is told of a change is whole by then.
            self._publisher.write(self._training.keep_validation)
        self._publisher.write(lambda: self._store.append_steps([record]))
        shown = [f"{name} {record.metrics[key]:.3f}" for key, name in _SHOWN.items() if key in record.metrics]
        shown += [f"{count} without a reward ({reason})" for reason, count in record.unscored.items()]
        self._say(f"step {record.step} of {total_steps}: {', '.join(shown) or 'no rewards'}", step="step")

    def checkpoint(self, saved: SavedCheckpoint) -> None:
        if saved.kept:
            self._publisher.write(self._training.keep_due)

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
