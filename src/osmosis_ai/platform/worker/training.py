"""Executes a training run: the trainer of `osmosis_ai.training`, on the platform's inputs, and reports on it.

This is the only platform process that imports torch, and only when it trains. However the trainer ends, its last
checkpoint is stored before the run gets its outcome, so nothing is lost with the working directory.

The trainer's directory is authoritative. A step is reported when its record is durable, and a later worker reports again
what an earlier one may have missed. Everything is keyed by its subject (run, metric and step; run and step), so there are
no duplicates. With each checkpoint an archive is uploaded from which any machine can resume; the platform keeps the newest.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from io import BytesIO
from typing import IO, TYPE_CHECKING, Any, NoReturn

from osmosis_ai._version import __version__
from osmosis_ai.api.models import workers as wire
from osmosis_ai.config.sections import served_agent
from osmosis_ai.datasets import file_digest
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.attempt_files import AttemptFiles
from osmosis_ai.evaluation.conversation import LARGEST_CONVERSATION_BYTES
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.platform.log_lines import PLAN, WARNED, Level, LogLine
from osmosis_ai.platform.runs.lifecycle import (
    CHECKPOINTS,
    RESUME,
    RESUME_FILE,
    VALIDATION,
    VALIDATION_SAMPLES,
    LeaseLostError,
    UploadLimitError,
    blobs_below,
    conversation_path,
    version_of,
)
from osmosis_ai.platform.runs.requests import read_training_request, runs_rollouts
from osmosis_ai.platform.worker.client import OutgoingBlob
from osmosis_ai.platform.worker.process import WorkerExit
from osmosis_ai.platform.worker.reporter import Reporter
from osmosis_ai.platform.worker.work import Interrupt, ShardEnd, Work, failed
from osmosis_ai.process_environment import program_environment
from osmosis_ai.redaction import clean_json
from osmosis_ai.training.learner.checkpoints import PROVENANCE_FILE, CheckpointDirectory, checkpoints_in
from osmosis_ai.training.learner.ranks import LearnerProcessLostError
from osmosis_ai.training.runs.loop import TrainingHooks, TrainingPlan
from osmosis_ai.training.runs.metrics import (
    TRAINING_LOSS,
    TRAINING_REWARD,
    VALIDATION_LOSS,
    VALIDATION_PLANNED,
    VALIDATION_REWARD,
    StepRecord,
    read_history,
)
from osmosis_ai.training.runs.run_directory import TrainingDirectory, ValidationSamples, pack, unpack
from osmosis_ai.training.runs.spec import TrainingSpec

if TYPE_CHECKING:
    from osmosis_ai.training.runs.trainer import TrainingSummary

HUB_TOKEN = "HF_TOKEN"
"""The secret with which a worker may load a model that its hub restricts."""
_SHOWN_LOSSES = {TRAINING_LOSS: "loss", VALIDATION_LOSS: "validation loss"}
_SHOWN = {TRAINING_REWARD: "reward", VALIDATION_REWARD: "validation reward"}
_MOST_VALIDATION_BYTES = 512 << 20
"""Limit of all conversations; the list begins with the worst, so those that are left out are the best."""
_LARGEST_RANGE_BYTES = 4 << 20
"""Larger conversations are blobs of their own; the platform unpacks a range in memory."""
_MOST_OF_STEPS = wire.LARGEST_EXCHANGE_BYTES // 2


class TrainingWork(Work):
    def prepare(self) -> None:
        run, request = self._run, read_training_request(self._run.request)
        policy, secret_values = self.policy(), self.secret_values(request.secrets)
        agent, files = served_agent(request.experiment.entrypoint), self.directory.path
        if runs_rollouts(run.request):
            self.contain(request)
            files = self.source()
        self._spec = TrainingSpec(
            settings=request.settings,
            model_path=policy.base_model,
            dataset=self.dataset(),
            validation_file=self.validation_file(),
            rollout_dir=files / "rollouts" / run.rollout_name,
            served=self.served(agent) if agent is not None and request.settings.method == "rl" else None,
            entrypoint=request.experiment.entrypoint,
            adapter=policy.directory,
            env=request.env,
            secret_values=secret_values,
            servers=self.servers(request),
        )
        self._resumed_from = self._take_over()

    async def execute(self, interrupt: Interrupt) -> ShardEnd:
        reporter, spec = self.reporter, self._spec
        save_freq = spec.settings.checkpoint_save_freq
        reports = TrainingReports(
            self.directory.training, reporter, base_model=spec.model_path, save_freq=save_freq
        )
        if self._resumed_from is not None:
            message = f"resumed from the stored checkpoint of step {self._resumed_from}"
            reporter.log(LogLine(message, step="run"))
        if interrupt:
            # No new work begins, but what an earlier worker did is reported.
            await asyncio.to_thread(reports.catch_up)
            return await self._leave(reports)
        try:
            summary = await self._train(_Hooks(reporter, reports, interrupt))
        except LearnerProcessLostError as loss:
            await self._exit_as_killed(loss)
        except Exception:
            await asyncio.to_thread(reports.keep_last)
            await asyncio.to_thread(reports.keep_resume_archive)
            raise
        finally:
            interrupt.listen(lambda: None)
        return await self._end(summary, reports)

    async def _train(self, hooks: TrainingHooks) -> TrainingSummary:
        from osmosis_ai.training.runs.trainer import Trainer

        if hub_token := self._spec.secret_values.get(HUB_TOKEN):
            os.environ[HUB_TOKEN] = hub_token
        containment, run = self.containment, self._run
        trainer = Trainer(
            self._spec,
            self.directory.training.path,
            hooks,
            environ=program_environment(os.environ),
            rollout_cache=None if containment is None else containment.cache,
            sandbox=None if containment is None else containment.sandbox,
            provenance={
                "run": run.name,
                "sdk_version": __version__,
                "git_head": run.commit_sha,
                "branch": run.branch,
                "base": run.model_path,
                "config": run.request,
            },
            # Not in the working directory, which is deleted when the run ends.
            loggers_dir=self.config.home / "loggers" / run.workspace_id,
        )
        return await trainer.run()

    async def _end(self, summary: TrainingSummary, reports: TrainingReports) -> ShardEnd:
        ending = summary.ending
        is_early = ending.because in ("nothing_to_learn", "reward_dropped")
        notes = [ending.message if is_early else None, ending.warning]
        self.note = " ".join(f"{note[:1].upper()}{note[1:]}" for note in notes if note) or None
        if ending.because == "stopped" and reports.refused is None:
            return await self._leave(reports)
        self.reporter.log(LogLine(ending.message, step="run"))
        if await asyncio.to_thread(reports.keep_last):
            return wire.FinishRequest(outcome="finished")
        not_stored = OsmosisError(
            "the training is done, but its last checkpoint could not be stored; the run's log has the reason",
            hint="free space on the platform's disk",
        )
        return failed(reports.refused or not_stored)

    async def _leave(self, reports: TrainingReports) -> ShardEnd:
        """Leave the run for any machine to continue; what it learned is kept in case this is its end."""
        if self.reporter.stop_requested:
            await asyncio.to_thread(reports.keep_last)
        await asyncio.to_thread(reports.keep_resume_archive)
        return wire.ReleaseRequest()

    async def _exit_as_killed(self, loss: OsmosisError) -> NoReturn:
        """End this process as if killed, so that another worker resumes from the last checkpoint."""
        self.reporter.log(LogLine(loss.message, level="warning", step="run"))
        try:
            await asyncio.to_thread(self.reporter.flush)
        finally:
            os._exit(WorkerExit.LEARNER_LOST)

    def _take_over(self) -> int | None:
        """Unpack the platform's resume archive if it is ahead of this machine's checkpoints; return its step."""
        stored, directory = self._assignment.training, self.directory.training
        if stored is None or stored.resume is None or stored.resume_step is None:
            return None
        if any(checkpoint.step >= stored.resume_step for checkpoint in checkpoints_in(directory.checkpoints)):
            return None
        directory.path.mkdir(parents=True, exist_ok=True)
        archive = directory.path / f".{RESUME_FILE}"
        try:
            self.reporter.fetch(stored.resume, archive)
            unpack(archive, directory, stored.resume_step)
        finally:
            archive.unlink(missing_ok=True)
        return stored.resume_step


class _Hooks(TrainingHooks):
    """Passes the trainer's messages to the reporter, and stop requests to the trainer."""

    def __init__(self, reporter: Reporter, reports: TrainingReports, interrupt: Interrupt) -> None:
        self._reporter = reporter
        self._reports = reports
        self._interrupt = interrupt

    def plan(self, plan: TrainingPlan) -> None:
        done = f", {plan.steps_done} of them done" if plan.steps_done else ""
        message = (
            f"{plan.total_steps} steps of {plan.rollouts_per_step} {plan.unit} on {plan.device}{done}; "
            f"{plan.training_rows} training rows, {plan.held_out_rows} held out"
        )
        # The run's page marks the resumed step, and shows the adapter.
        about = {"steps_done": plan.steps_done, "adapter": dict(plan.adapter)}
        self._reporter.log(LogLine(message, step=PLAN, details=about))
        for warning in plan.warnings:
            self.warning(plan.steps_done, warning)
        self._reporter.later(lambda: self._reports.begin(plan))
        self._reporter.later(lambda: self._keep(self._reports.catch_up))

    def note(self, message: str) -> None:
        self._reporter.log(LogLine(message, step="run"))

    def warning(self, step: int, message: str) -> None:
        about = {"training_step": step}  # where the run's page marks it
        self._reporter.log(LogLine(message, "warning", step=WARNED, details=about))

    stage = note

    def environment(self, words: str) -> None:
        self._reporter.know(environment=words)

    def step(self, record: StepRecord, total_steps: int) -> None:
        if VALIDATION_PLANNED in record.metrics:
            # First the validation: its files must be complete before its numbers are published.
            self._reporter.later(self._reports.keep_validation)
        self._reporter.later(lambda: self._reports.append([record]))
        shown = [f"{name} {record.metrics[key]:.3f}" for key, name in _SHOWN.items() if key in record.metrics]
        shown += [f"{count} without a reward ({reason})" for reason, count in record.unscored.items()]
        if not shown:
            losses = ((key, name) for key, name in _SHOWN_LOSSES.items() if key in record.metrics)
            shown = [f"{name} {record.metrics[key]:.4f}" for key, name in losses]
        message = f"step {record.step} of {total_steps}: {', '.join(shown) or 'no rewards'}"
        self._reporter.log(LogLine(message, step="step"))

    def checkpoint(self, saved: CheckpointDirectory) -> None:
        if saved.kept:
            self._reporter.later(lambda: self._keep(self._reports.keep_due))

    def started(self, stop: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        # Stopped by the loop, so that processes it is about to start are stopped, too.
        self._interrupt.listen(lambda: None if loop.is_closed() else stop())

    async def goes_on(self) -> bool:
        is_back = await asyncio.to_thread(self._interrupt.outlast)
        return is_back and self._reports.refused is None

    def _keep(self, keep: Callable[[], None]) -> None:
        keep()
        if self._reports.refused is not None:
            # Further steps could not be kept.
            self._interrupt.set()


class TrainingReports:
    """Reports a trainer's curve, checkpoints and newest validation; every method blocks."""

    def __init__(
        self, directory: TrainingDirectory, reporter: Reporter, *, base_model: str, save_freq: int
    ) -> None:
        stored = reporter.assignment.training or wire.StoredTraining()
        self._directory = directory
        self._reporter = reporter
        self._base_model = base_model
        self._save_freq = save_freq
        # The collecting thread and the one that ends the run may call at once.
        self._lock = threading.RLock()
        self._validation = stored.validation
        self._kept = set(stored.checkpoint_steps)
        self._resume_step = stored.resume_step or 0
        self._archives_refused = False
        self.refused: OsmosisError | None = None

    def begin(self, plan: TrainingPlan) -> None:
        """Report the planned steps and the starting point; later data are deleted."""
        start = wire.TrainingStart(total_steps=plan.total_steps, steps_done=plan.steps_done)
        self._send(wire.TrainingNews(start=start))

    def append(self, records: Sequence[StepRecord]) -> None:
        # The log has the warnings of a step, and readers look at both when the step appears.
        while any(record.warnings for record in records) and self._reporter.insist(self._reporter.exchange):
            pass
        for steps in _exchanges(records):
            self._send(wire.TrainingNews(steps=steps))

    def catch_up(self) -> None:
        """Publish every step, every due checkpoint and the newest validation that are in the directory."""
        self.keep_validation()
        self.append(list(read_history(self._directory.metrics)))
        self.keep_due()

    def keep_validation(self) -> None:
        """Store the newest validation's conversations; if that fails, the previous ones remain."""
        self._store("the conversations of the newest validation", self._send_validation, step="validation")

    def keep_due(self) -> None:
        """Store the checkpoints that are due and not stored yet; one that cannot be is tried again with the next."""
        due = self._due()
        for checkpoint in due:
            self._keep(checkpoint)
        self.keep_resume_archive(due)

    def keep_last(self) -> bool:
        """Keep the last checkpoint, due or not, all that are due, and the newest validation."""
        self.keep_validation()
        checkpoints = {each.step: each for each in (*self._due(), *self._all()[-1:])}
        kept = [self._keep(checkpoint) for checkpoint in checkpoints.values()]
        return all(kept)

    def keep_resume_archive(self, checkpoints: Sequence[CheckpointDirectory] | None = None) -> None:
        """Let other machines resume from the last of ``checkpoints``, by default of all."""
        with self._lock:
            *_, last = None, *(self._all() if checkpoints is None else checkpoints)
            if last is not None and last.step > self._resume_step and not self._archives_refused:
                what = f"the archive to resume from step {last.step} on another machine"
                problem = self._store(what, lambda: self._send_archive(last), level="warning")
                self._archives_refused = isinstance(problem, UploadLimitError)

    def _all(self) -> tuple[CheckpointDirectory, ...]:
        return checkpoints_in(self._directory.checkpoints)

    def _due(self) -> list[CheckpointDirectory]:
        return [one for one in self._all() if one.step % self._save_freq == 0]

    def _keep(self, checkpoint: CheckpointDirectory) -> bool:
        with self._lock:
            # If the platform refused one, it would refuse others too.
            if checkpoint.step not in self._kept and self.refused is None:
                what = f"the checkpoint of step {checkpoint.step}"
                problem = self._store(what, lambda: self._send_adapter(checkpoint))
                if isinstance(problem, UploadLimitError):
                    self.refused = OsmosisError(f"{what} could not be stored: {problem}")
            return checkpoint.step in self._kept

    def _store(
        self, what: str, store: Callable[[], None], *, step: str = "checkpoint", level: Level = "error"
    ) -> Exception | None:
        """Call ``store``; return and log the problem if it fails."""
        try:
            with self._lock:
                store()
        except LeaseLostError:
            raise
        except (OSError, OsmosisError) as error:
            self._reporter.log(LogLine(f"{what} could not be stored: {error}", level=level, step=step))
            return error
        return None

    def _send(
        self, news: wire.TrainingNews, blobs: Mapping[str, IO[bytes]] | None = None
    ) -> Mapping[int, str]:
        """Send updates with the blobs that they name, all or nothing; return names of kept checkpoints by step."""
        outgoing = [OutgoingBlob.of(name, content) for name, content in (blobs or {}).items()]

        def send() -> Mapping[int, str]:
            sent = self._reporter.upload(outgoing) if outgoing else []
            return self._reporter.sync(training=news, sent=sent).checkpoints

        with self._lock:
            return self._reporter.insist(send)

    def _send_adapter(self, checkpoint: CheckpointDirectory) -> None:
        step = checkpoint.step
        if not checkpoint.adapter_dir.is_dir():
            self._kept.add(step)
            path = checkpoint.provenance().get("tinker_path")
            message = f"the Tinker server, which offers no adapter downloads, keeps the checkpoint of step {step}: {path}"
            self._reporter.log(LogLine(message, level="warning", step="checkpoint"))
            return
        paths = [path for path in sorted(checkpoint.adapter_dir.iterdir()) if path.is_file()]
        if not any(path.name == PROVENANCE_FILE for path in paths):
            paths.append(checkpoint.directory / PROVENANCE_FILE)
        # The name contains the digest, so that sending the file again leaves no second copy.
        files = {path.name: f"{CHECKPOINTS}/{step}/{file_digest(path)[:16]}-{path.name}" for path in paths}
        metrics = checkpoint.provenance().get("metrics") or {}
        part = wire.CheckpointPart(
            step=step,
            base_model=self._base_model,
            files=files,
            reward=metrics.get(TRAINING_REWARD),
            validation_reward=metrics.get(VALIDATION_REWARD),
        )
        with ExitStack() as opened:
            blobs = {files[path.name]: opened.enter_context(path.open("rb")) for path in paths}
            name = self._send(wire.TrainingNews(checkpoints=[part]), blobs)[step]
        self._kept.add(step)
        self._reporter.log(LogLine(f"stored the checkpoint `{name}`", step="checkpoint"))

    def _send_archive(self, checkpoint: CheckpointDirectory) -> None:
        step = checkpoint.step
        name = f"{RESUME}/{step}-{secrets.token_hex(4)}/{RESUME_FILE}"
        part = wire.CheckpointPart(
            step=step, base_model=self._base_model, files={RESUME_FILE: name}, is_resume=True
        )
        with tempfile.TemporaryFile(dir=self._directory.path) as archive:
            pack(self._directory, checkpoint, self._reporter.redactor, archive)
            self._send(wire.TrainingNews(checkpoints=[part]), {name: archive})
        self._resume_step = step

    def _send_validation(self) -> None:
        """Send the files of the newest validation, small ones in one compressed blob.

        They are uploaded under new names and replace those of the previous validation in one transaction.
        """
        samples, redactor = self._directory.read_validation(), self._reporter.redactor
        version, listed = None, b""
        if samples is not None:
            listed = b"\n".join(clean_json(line, redactor) for line in samples.to_bytes().splitlines())
            version = version_of(samples.step, listed)
        if version == self._validation:
            return
        if samples is None or version is None:
            self._send(wire.TrainingNews(validation=wire.ValidationPart(version=None)))
            self._validation = None
            return
        below = f"{blobs_below(version)}/{secrets.token_hex(4)}"
        files: list[wire.RunFilePart] = []
        blobs: dict[str, IO[bytes]] = {}
        with tempfile.TemporaryFile(dir=self._directory.path) as packs:
            for path, content in ((VALIDATION_SAMPLES, listed), *self._conversations(samples)):
                if path == VALIDATION_SAMPLES or len(content) > _LARGEST_RANGE_BYTES:
                    where: dict[str, Any] = {"blob": f"{below}-{path.rpartition('/')[2]}"}
                    blobs[where["blob"]] = BytesIO(content)
                else:
                    packed = zlib.compress(content, 6)
                    where = {"blob": f"{below}-conversations", "offset": packs.tell(), "length": len(packed)}
                    packs.write(packed)
                    blobs[where["blob"]] = packs
                files.append(wire.RunFilePart(path=path, kind=VALIDATION, size=len(content), **where))
            self._send(wire.TrainingNews(validation=wire.ValidationPart(version=version, files=files)), blobs)
        self._validation = version

    def _conversations(self, samples: ValidationSamples) -> Iterator[tuple[str, bytes]]:
        """Yield the path and content of the conversations that fit."""
        directory, room = RunDirectory(self._directory.path), _MOST_VALIDATION_BYTES
        for record in samples.records:
            row, attempt = record.row_index, record.run_index
            files = AttemptFiles(directory, record.rollout_id, row, attempt)
            content = files.conversation(max_bytes=min(room, LARGEST_CONVERSATION_BYTES)).content
            try:
                clean = clean_json(content, self._reporter.redactor) if content is not None else None
            except ValueError:
                continue  # a rollout's server was killed while it wrote
            if clean is not None:
                room -= len(clean)
                yield conversation_path(row, attempt), clean


def _exchanges(records: Iterable[StepRecord]) -> Iterator[list[wire.TrainingStep]]:
    """Yield steps in pieces that fit into an exchange: one of many held-out rows is tens of kilobytes."""
    steps: list[wire.TrainingStep] = []
    room = _MOST_OF_STEPS
    for record in records:
        room -= len(record.to_line())
        if room < 0 and steps:
            yield steps
            steps, room = [], _MOST_OF_STEPS
        steps.append(wire.TrainingStep.model_validate(record, from_attributes=True))
    if steps:
        yield steps
