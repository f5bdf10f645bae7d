"""Reports a trainer's curve, checkpoints and newest validation.

The run's directory is authoritative. A step is reported when its record is durable, and a later worker reports again what
an earlier one may have missed. Everything is keyed by its subject (run, metric and step; run and step), so there are no
duplicates. The run's settings decide which checkpoints are kept: every ``checkpoint_save_freq`` steps, and the last one.

With each checkpoint an archive is uploaded from which any machine can resume; the platform keeps the newest. A run has
the files of one validation. New ones are uploaded under another name and replace the old ones in one transaction.
"""

from __future__ import annotations

import secrets
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from io import BytesIO
from types import MappingProxyType
from typing import IO, BinaryIO, cast

from osmosis_ai.api.wire.workers import (
    LARGEST_EXCHANGE_BYTES,
    CheckpointPart,
    RunFilePart,
    StoredTraining,
    TrainingNews,
    TrainingStart,
    TrainingStep,
    ValidationPart,
)
from osmosis_ai.datasets import file_digest
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.attempt_files import AttemptFiles
from osmosis_ai.evaluation.conversation import LARGEST_CONVERSATION_BYTES
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.runs.lifecycle import LeaseLostError, UploadLimitError
from osmosis_ai.platform.runs.training_names import (
    CHECKPOINTS,
    KIND,
    RESUME,
    RESUME_FILE,
    SAMPLES_PATH,
    blobs_below,
    conversation_path,
    version_of,
)
from osmosis_ai.platform.worker.client import OutgoingBlob
from osmosis_ai.platform.worker.reporter import Reporter
from osmosis_ai.redaction import Redactor, clean_json
from osmosis_ai.training.learner.checkpoints import PROVENANCE_FILE, CheckpointDirectory, checkpoints_in
from osmosis_ai.training.runs.loop import TrainingPlan
from osmosis_ai.training.runs.metrics import (
    TRAINING_REWARD,
    VALIDATION_REWARD,
    StepRecord,
    read_history,
)
from osmosis_ai.training.runs.run_directory import TrainingDirectory, ValidationSamples, pack, unpack

_MOST_VALIDATION_BYTES = 512 << 20
"""Of all conversations; the list begins with the worst, so those that are left out are the best."""
_LARGEST_RANGE_BYTES = 4 << 20
"""Larger conversations are blobs of their own; the platform unpacks a range in memory."""
_MOST_OF_STEPS = LARGEST_EXCHANGE_BYTES // 2


_NO_BLOBS: Mapping[str, BinaryIO] = MappingProxyType({})


class TrainingLink:
    """Sends the updates of one training run, and remembers what the platform has; blocking and thread-safe."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self.stored = reporter.assignment.training or StoredTraining()
        self._lock = threading.Lock()

    def send(self, news: TrainingNews, blobs: Mapping[str, BinaryIO] = _NO_BLOBS) -> Mapping[int, str]:
        """Send updates with the blobs that they name, all or nothing; return names of kept checkpoints by step."""
        with self._lock:
            outgoing = [OutgoingBlob.of(name, content) for name, content in blobs.items()]

            def send() -> Mapping[int, str]:
                sent = self._reporter.upload(outgoing) if outgoing else []
                return self._reporter.sync(training=news, **({"sent": sent} if sent else {})).checkpoints

            names = self._reporter.insist(send)
            kept = {part.step for part in news.checkpoints if not part.is_resume}
            resumes = [part.step for part in news.checkpoints if part.is_resume]
            stored, validation = self.stored, news.validation
            self.stored = stored.model_copy(
                update={
                    "checkpoint_steps": sorted({*stored.checkpoint_steps, *kept}),
                    "validation": validation.version if validation is not None else stored.validation,
                    "resume_step": max([*resumes, stored.resume_step or 0]) or None,
                }
            )
        return names


class TrainingReports:
    """Reports one run's directory; every method blocks."""

    def __init__(
        self,
        directory: TrainingDirectory,
        link: TrainingLink,
        redactor: Redactor,
        log: Callable[[LogLine], None],
        *,
        base_model: str,
        save_freq: int,
    ) -> None:
        stored = link.stored
        self._directory = directory
        self._link = link
        self._redactor = redactor
        self._log = log
        self._base_model = base_model
        self._save_freq = save_freq
        self._validating = threading.Lock()
        self._validation = stored.validation
        self._kept = set(stored.checkpoint_steps)
        self._resume_step = stored.resume_step or 0
        self._keeping = threading.Lock()
        self._archives_refused = False
        self.refused: OsmosisError | None = None

    def begin(self, plan: TrainingPlan) -> None:
        """Report the planned steps and the starting point; later data are deleted."""
        start = TrainingStart(total_steps=plan.total_steps, steps_done=plan.steps_done)
        self._link.send(TrainingNews(start=start))

    def append(self, records: Iterable[StepRecord]) -> None:
        """Say what steps have come to."""
        for steps in _exchanges(records):
            self._link.send(TrainingNews(steps=steps))

    def catch_up(self) -> None:
        """Publish every step, every due checkpoint and the newest validation that are in the directory."""
        self.keep_validation()
        self.append(read_history(self._directory.metrics))
        self.keep_due()

    def keep_validation(self) -> None:
        """Store the newest validation's conversations; if that fails, the previous ones remain."""
        try:
            with self._validating:
                self._send_validation(self._directory.read_validation())
        except LeaseLostError:
            raise
        except (OSError, OsmosisError) as error:
            message = f"the conversations of the newest validation could not be stored: {error}"
            self._log(LogLine(message, level="error", step="validation"))

    def keep_due(self) -> None:
        """Keep the checkpoints that are due and not kept yet; one that cannot be is tried again with the next."""
        due = self._due()
        self._keep(due)
        self.keep_resume_archive(due)

    def keep_last(self) -> bool:
        """Keep the last checkpoint, due or not, all that are due, and the newest validation."""
        self.keep_validation()
        return self._keep(sorted({*self._due(), *self._all()[-1:]}, key=_step))

    def keep_resume_archive(self, checkpoints: Sequence[CheckpointDirectory] | None = None) -> None:
        """Let other machines resume from the last of ``checkpoints``, by default of all."""
        with self._keeping:
            for checkpoint in (self._all() if checkpoints is None else checkpoints)[-1:]:
                if checkpoint.step > self._resume_step and not self._archives_refused:
                    self._keep_archive(checkpoint)

    def _send_validation(self, samples: ValidationSamples | None) -> None:
        written = samples.to_bytes() if samples is not None else b""
        listed = b"\n".join(clean_json(line, self._redactor) for line in written.splitlines())
        version = version_of(samples.step, listed) if samples is not None else None
        if version == self._validation:
            return
        if samples is None or version is None:
            self._link.send(TrainingNews(validation=ValidationPart(version=None)))
        else:
            with _Validation(self._directory, version) as validation:
                validation.add(SAMPLES_PATH, listed, alone=True)
                self._add_conversations(validation, samples)
                part = ValidationPart(version=version, files=validation.files)
                self._link.send(TrainingNews(validation=part), validation.blobs)
        self._validation = version

    def _add_conversations(self, validation: _Validation, samples: ValidationSamples) -> None:
        directory, room = RunDirectory(self._directory.path), _MOST_VALIDATION_BYTES
        for record in samples.records:
            row, attempt = record.row_index, record.run_index
            files = AttemptFiles(directory, record.rollout_id, row, attempt)
            content = files.conversation(max_bytes=min(room, LARGEST_CONVERSATION_BYTES)).content
            try:
                clean = clean_json(content, self._redactor) if content is not None else None
            except ValueError:
                continue  # a rollout's server was killed while it wrote
            if clean is not None:
                room -= len(clean)
                validation.add(conversation_path(row, attempt), clean)

    def _all(self) -> tuple[CheckpointDirectory, ...]:
        return checkpoints_in(self._directory.checkpoints)

    def _due(self) -> list[CheckpointDirectory]:
        return [one for one in self._all() if one.step % self._save_freq == 0]

    def _keep(self, checkpoints: Sequence[CheckpointDirectory]) -> bool:
        # The collecting thread and the one that ends the run may call at once.
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
        self._log(LogLine(f"stored the checkpoint `{name}`", step="checkpoint"))
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
            return self._link.send(TrainingNews(checkpoints=[part]), blobs)[step]

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
            message = (
                f"the archive to resume from step {step} on another machine could not be stored: {error}"
            )
            self._log(LogLine(message, level="warning", step="checkpoint"))
        else:
            self._resume_step = step

    def _send_archive(self, step: int, content: BinaryIO) -> None:
        name = f"{RESUME}/{step}-{secrets.token_hex(4)}/{RESUME_FILE}"
        part = CheckpointPart(
            step=step, base_model=self._base_model, files={RESUME_FILE: name}, is_resume=True
        )
        content.seek(0)
        self._link.send(TrainingNews(checkpoints=[part]), {name: content})


def take_over(directory: TrainingDirectory, reporter: Reporter) -> int | None:
    """Unpack the platform's resume archive if it is ahead of this machine's checkpoints; return its step."""
    stored = reporter.assignment.training or StoredTraining()
    if stored.resume is None or stored.resume_step is None:
        return None
    if any(checkpoint.step >= stored.resume_step for checkpoint in checkpoints_in(directory.checkpoints)):
        return None
    directory.path.mkdir(parents=True, exist_ok=True)
    archive = directory.path / f".{RESUME_FILE}"
    try:
        reporter.fetch(stored.resume, archive)
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


class _Validation:
    """The files of one validation: small ones in one compressed blob; a context manager."""

    def __init__(self, directory: TrainingDirectory, version: str) -> None:
        self._below = f"{blobs_below(version)}/{secrets.token_hex(4)}"
        self._pack = cast(BinaryIO, tempfile.TemporaryFile(dir=directory.path))  # noqa: SIM115 - closed on exit
        self._alone: dict[str, BinaryIO] = {}
        self.files: list[RunFilePart] = []

    def __enter__(self) -> _Validation:
        return self

    def __exit__(self, *_: object) -> None:
        self._pack.close()

    @property
    def blobs(self) -> dict[str, BinaryIO]:
        return {**self._alone, **({self._pack_name: self._pack} if self._pack.tell() else {})}

    def add(self, path: str, content: bytes, *, alone: bool = False) -> None:
        """Add a file, ``alone`` in a blob of its own."""
        described = {"path": path, "kind": KIND, "size": len(content)}
        if alone or len(content) > _LARGEST_RANGE_BYTES:
            blob = f"{self._below}-{path.rpartition('/')[2]}"
            self._alone[blob] = BytesIO(content)
            self.files.append(RunFilePart.model_validate({**described, "blob": blob}))
            return
        packed, offset = zlib.compress(content, 6), self._pack.tell()
        self._pack.write(packed)
        place = {"blob": self._pack_name, "offset": offset, "length": len(packed)}
        self.files.append(RunFilePart.model_validate({**described, **place}))

    @property
    def _pack_name(self) -> str:
        return f"{self._below}-conversations"
