"""Publish a trainer's curve, checkpoints, progress and log.

The run's directory is authoritative. A step is published when its record is durable, and a later worker publishes again
what an earlier one may have missed. Every write is keyed by its subject (run, metric and step; run and step) and made
under the lease, so there are no duplicates and a replaced worker cannot write. Only the run's settings decide which
checkpoints are
kept: every ``checkpoint_save_freq`` steps, and the last one.

With each checkpoint an archive is sent from which any machine can resume; only the newest is kept.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, BinaryIO, cast

from osmosis_ai.api.wire.workers import (
    LARGEST_EXCHANGE_BYTES,
    CheckpointPart,
    TrainingNews,
    TrainingStart,
    TrainingStep,
)
from osmosis_ai.datasets import file_digest
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.log_lines import PLAN, WARNED, LogLine
from osmosis_ai.platform.runs.lifecycle import LeaseLostError, UploadLimitError
from osmosis_ai.platform.runs.training_names import CHECKPOINTS, RESUME, RESUME_FILE
from osmosis_ai.platform.runs.work.training_sink import TrainingSink
from osmosis_ai.platform.runs.work.validation_files import ValidationFiles
from osmosis_ai.training.learner.checkpoints import PROVENANCE_FILE, CheckpointDirectory, checkpoints_in
from osmosis_ai.training.runs.loop import SavedCheckpoint, TrainingHooks, TrainingPlan
from osmosis_ai.training.runs.metrics import (
    TRAINING_REWARD,
    VALIDATION_PLANNED,
    VALIDATION_REWARD,
    StepRecord,
    read_history,
)
from osmosis_ai.training.runs.run_directory import pack, unpack

if TYPE_CHECKING:
    from osmosis_ai.platform.runs.work.publisher import Publisher
    from osmosis_ai.platform.runs.work.run_work import Interrupt
    from osmosis_ai.redaction import Redactor
    from osmosis_ai.training.runs.run_directory import TrainingDirectory

_SHOWN = {TRAINING_REWARD: "reward", VALIDATION_REWARD: "validation reward"}
_MOST_OF_STEPS = LARGEST_EXCHANGE_BYTES // 2


class TrainingPublisher:
    """Copies one run's directory to the platform; every method blocks."""

    def __init__(
        self,
        directory: TrainingDirectory,
        sink: TrainingSink,
        redactor: Redactor,
        log: Callable[[LogLine], None],
        *,
        base_model: str,
        save_freq: int,
    ) -> None:
        stored = sink.stored()
        self._directory = directory
        self._sink = sink
        self._redactor = redactor
        self._log = log
        self._base_model = base_model
        self._save_freq = save_freq
        self._validation = ValidationFiles(sink, stored.validation, redactor, directory)
        self._kept = set(stored.checkpoint_steps)
        self._resume_step = stored.resume_step or 0
        self._keeping = threading.Lock()
        self._archives_refused = False
        self.refused: OsmosisError | None = None

    def begin(self, plan: TrainingPlan) -> None:
        """Report the planned steps and the starting point; later data are deleted."""
        start = TrainingStart(total_steps=plan.total_steps, steps_done=plan.steps_done)
        self._sink.send(TrainingNews(start=start))

    def append(self, records: Iterable[StepRecord]) -> None:
        """Say what steps have come to."""
        for steps in _exchanges(records):
            self._sink.send(TrainingNews(steps=steps))

    def catch_up(self) -> None:
        """Publish every step, every due checkpoint and the newest validation that are in the directory."""
        self.keep_validation()
        self.append(read_history(self._directory.metrics))
        self.keep_due()

    def keep_validation(self) -> None:
        """Store the newest validation's conversations; if that fails, the previous ones remain."""
        try:
            self._validation.publish()
        except LeaseLostError:
            raise
        except (OSError, OsmosisError) as error:
            message = f"the conversations of the newest validation could not be stored: {error}"
            self._log(LogLine(message, level="error", step="validation"))

    def keep_due(self) -> None:
        """Keep the checkpoints that are due and not kept yet; one that cannot be is tried again with the next."""
        due = self._due()
        self._keep(due)
        self.keep_to_go_on(due)

    def keep_last(self) -> bool:
        """Keep the last checkpoint, due or not, all that are due, and the newest validation."""
        self.keep_validation()
        return self._keep(sorted({*self._due(), *self._all()[-1:]}, key=_step))

    def keep_to_go_on(self, checkpoints: Sequence[CheckpointDirectory] | None = None) -> None:
        """Have other machines go on from the last of ``checkpoints``, by default of all there are."""
        with self._keeping:
            for checkpoint in (self._all() if checkpoints is None else checkpoints)[-1:]:
                if checkpoint.step > self._resume_step and not self._archives_refused:
                    self._keep_archive(checkpoint)

    def _all(self) -> tuple[CheckpointDirectory, ...]:
        return checkpoints_in(self._directory.checkpoints)

    def _due(self) -> list[CheckpointDirectory]:
        return [one for one in self._all() if one.step % self._save_freq == 0]

    def _keep(self, checkpoints: Sequence[CheckpointDirectory]) -> bool:
        # The publisher's thread and that of who ends the run may come at once.
        with self._keeping:
            kept = [one.step in self._kept or self._keep_one(one) for one in checkpoints]
        return all(kept)

    def _keep_one(self, checkpoint: CheckpointDirectory) -> bool:
        if self.refused is not None:
            return False  # it would be again
        try:
            name = self._send_adapter(checkpoint)
        except LeaseLostError:
            raise
        except UploadLimitError as error:
            message = f"the checkpoint of step {checkpoint.step} could not be stored: {error.message}"
            self._log(LogLine(message, level="error", step="checkpoint"))
            self.refused = OsmosisError(message)
            return False
        except (OSError, OsmosisError) as error:
            message = f"the checkpoint of step {checkpoint.step} could not be stored: {error}"
            self._log(LogLine(message, level="error", step="checkpoint"))
            return False
        self._kept.add(checkpoint.step)
        self._log(LogLine(f"kept as `{name}`", step="checkpoint"))
        return True

    def _send_adapter(self, checkpoint: CheckpointDirectory) -> str:
        step = checkpoint.step
        paths = [path for path in sorted(checkpoint.adapter_dir.iterdir()) if path.is_file()]
        if not any(path.name == PROVENANCE_FILE for path in paths):
            paths.append(checkpoint.directory / PROVENANCE_FILE)
        # The name says what the file is, so that sending it again leaves nothing behind.
        files = {path.name: f"{CHECKPOINTS}/{step}/{file_digest(path)[:16]}-{path.name}" for path in paths}
        metrics = checkpoint.provenance().get("metrics") or {}
        part = CheckpointPart(
            step=step,
            base_model=self._base_model,
            files=files,
            reward=metrics.get(TRAINING_REWARD),
            validation_reward=metrics.get(VALIDATION_REWARD),
        )
        with ExitStack() as opened:
            blobs: dict[str, BinaryIO] = {
                files[path.name]: opened.enter_context(path.open("rb")) for path in paths
            }
            return self._sink.send(TrainingNews(checkpoints=[part]), blobs)[step]

    def _keep_archive(self, checkpoint: CheckpointDirectory) -> None:
        step = checkpoint.step
        try:
            with cast("IO[bytes]", tempfile.TemporaryFile(dir=self._directory.path)) as file:
                pack(self._directory, checkpoint, self._redactor, file)
                self._send_archive(step, cast(BinaryIO, file))
        except LeaseLostError:
            raise
        except (OSError, OsmosisError) as error:
            self._archives_refused = isinstance(error, UploadLimitError)
            message = f"what another machine needs to go on from step {step} could not be stored: {error}"
            self._log(LogLine(message, level="warning", step="checkpoint"))
        else:
            self._resume_step = step

    def _send_archive(self, step: int, content: BinaryIO) -> None:
        name = f"{RESUME}/{step}-{secrets.token_hex(4)}/{RESUME_FILE}"
        part = CheckpointPart(
            step=step, base_model=self._base_model, files={RESUME_FILE: name}, is_resume=True
        )
        content.seek(0)
        self._sink.send(TrainingNews(checkpoints=[part]), {name: content})


def take_over(directory: TrainingDirectory, sink: TrainingSink) -> int | None:
    """Have the run in ``directory`` go on from what the platform has of it, where that is further."""
    stored = sink.stored()
    if stored.resume is None or stored.resume_step is None:
        return None
    if any(checkpoint.step >= stored.resume_step for checkpoint in checkpoints_in(directory.checkpoints)):
        return None
    directory.path.mkdir(parents=True, exist_ok=True)
    archive = directory.path / f".{RESUME_FILE}"
    try:
        sink.fetch(stored.resume, archive)
        unpack(archive, directory, stored.resume_step)
    finally:
        archive.unlink(missing_ok=True)
    return stored.resume_step


def _exchanges(records: Iterable[StepRecord]) -> Iterator[list[TrainingStep]]:
    """Yield steps in pieces that go into an exchange: one of many held-out rows is tens of kilobytes."""
    steps: list[TrainingStep] = []
    room = _MOST_OF_STEPS
    for record in records:
        room -= len(record.to_line())
        if room < 0 and steps:
            yield steps
            steps, room = [], _MOST_OF_STEPS
        steps.append(
            TrainingStep(
                step=record.step,
                timestamp_ms=record.timestamp_ms,
                metrics={**record.metrics},
                validation_rewards={**record.validation_rewards},
            )
        )
    if steps:
        yield steps


def _step(checkpoint: CheckpointDirectory) -> int:
    return checkpoint.step


class PublishingHooks(TrainingHooks):
    """Carries what the trainer says to the publisher, and what the platform says to the trainer."""

    def __init__(
        self,
        publisher: Publisher,
        training: TrainingPublisher,
        interrupt: Interrupt,
    ) -> None:
        self._publisher = publisher
        self._training = training
        self._interrupt = interrupt

    def plan(self, plan: TrainingPlan) -> None:
        done = {"steps_done": plan.steps_done}  # the run's page marks the resumed step
        self._publisher.log(LogLine(_described(plan), step=PLAN, details=done))
        self._publisher.write(lambda: self._training.begin(plan))
        self._publisher.write(lambda: self._keep(self._training.catch_up))

    def note(self, message: str) -> None:
        self._say(message)

    def warning(self, step: int, message: str) -> None:
        about = {"training_step": step}  # where the run's page marks it
        self._publisher.log(LogLine(message, "warning", step=WARNED, details=about))

    def stage(self, message: str) -> None:
        self._say(message)

    def environment(self, words: str) -> None:
        self._publisher.know(environment=words)

    def step(self, record: StepRecord, total_steps: int) -> None:
        if VALIDATION_PLANNED in record.metrics:
            # First the validation: its files must be complete before its numbers are published.
            self._publisher.write(self._training.keep_validation)
        self._publisher.write(lambda: self._training.append([record]))
        shown = [f"{name} {record.metrics[key]:.3f}" for key, name in _SHOWN.items() if key in record.metrics]
        shown += [f"{count} without a reward ({reason})" for reason, count in record.unscored.items()]
        self._say(f"step {record.step} of {total_steps}: {', '.join(shown) or 'no rewards'}", step="step")

    def checkpoint(self, saved: SavedCheckpoint) -> None:
        if saved.kept:
            self._publisher.write(lambda: self._keep(self._training.keep_due))

    def started(self, stop: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        # By the loop, so that what is about to be started is there to be stopped.
        self._interrupt.listen(lambda: None if loop.is_closed() else stop())

    async def goes_on(self) -> bool:
        is_back = await asyncio.to_thread(self._interrupt.outlast)
        return is_back and self._training.refused is None

    def _keep(self, keep: Callable[[], None]) -> None:
        keep()
        if self._training.refused is not None:
            # What nobody would have is not worth the machine.
            self._interrupt.set()

    def _say(self, message: str, *, step: str = "run") -> None:
        self._publisher.log(LogLine(message, step=step))


def _described(plan: TrainingPlan) -> str:
    done = f", {plan.steps_done} of them done" if plan.steps_done else ""
    return (
        f"{plan.total_steps} steps of {plan.rollouts_per_step} rollouts on {plan.device}{done}; "
        f"{plan.training_rows} rows to train on, {plan.held_out_rows} held out"
    )
