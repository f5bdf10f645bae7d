"""Executes a training run: the trainer of `osmosis_ai.training`, on the platform's inputs.

This is the only platform process that imports torch, and only when it trains. However the trainer ends, its last
checkpoint is stored before the run gets its outcome, so nothing is lost with the working directory.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from osmosis_ai._version import __version__
from osmosis_ai.config.sections import served_agent
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.log_lines import PLAN, WARNED, LogLine
from osmosis_ai.platform.runs.submit.training_request import TrainingRequest, read_training_request
from osmosis_ai.platform.worker.process import LEARNER_LOST
from osmosis_ai.platform.worker.reporter import Reporter
from osmosis_ai.platform.worker.training_reports import TrainingLink, TrainingReports, take_over
from osmosis_ai.platform.worker.work import Interrupt, Prepared, Work, WorkResult, one_sentence
from osmosis_ai.process_environment import program_environment
from osmosis_ai.training.learner.ranks import LearnerProcessLostError
from osmosis_ai.training.runs.loop import SavedCheckpoint, TrainingHooks, TrainingPlan
from osmosis_ai.training.runs.metrics import (
    TRAINING_REWARD,
    VALIDATION_PLANNED,
    VALIDATION_REWARD,
    StepRecord,
)
from osmosis_ai.training.runs.spec import TrainingSpec

if TYPE_CHECKING:
    from osmosis_ai.training.runs.trainer import TrainingSummary

HUB_TOKEN = "HF_TOKEN"
"""The secret with which a worker may load a model that its hub restricts."""
_SHOWN = {TRAINING_REWARD: "reward", VALIDATION_REWARD: "validation reward"}


@dataclass(frozen=True, kw_only=True)
class PreparedTraining(Prepared):
    """A training run whose inputs are on this machine."""

    request: TrainingRequest
    spec: TrainingSpec
    resumed_from: int | None


class TrainingWork(Work[PreparedTraining]):
    """The work on one training run."""

    def prepare(self) -> PreparedTraining:
        """Fetch everything that the run needs; blocking."""
        inputs = self._inputs
        run, request = inputs.run, read_training_request(inputs.run.request)
        policy, secret_values = inputs.policy(), inputs.secret_values(request.secrets)
        containment, agent = inputs.containment(request), served_agent(request.experiment.entrypoint)
        spec = TrainingSpec(
            settings=request.settings,
            model_path=policy.base_model,
            dataset=inputs.dataset(),
            rollout_dir=(inputs.source() if agent is None else self._directory.path)
            / "rollouts"
            / run.rollout_name,
            served=inputs.served(agent) if agent is not None else None,
            entrypoint=request.experiment.entrypoint,
            adapter=policy.adapter,
            env=request.env,
            secret_values=secret_values,
            servers=inputs.servers(request),
        )
        resumed_from = take_over(self._directory.training, self._reporter)
        return PreparedTraining(
            containment=containment, request=request, spec=spec, resumed_from=resumed_from
        )

    async def execute(self, prepared: PreparedTraining, interrupt: Interrupt) -> WorkResult:
        """Train, or continue training."""
        reporter = self._reporter
        reports = TrainingReports(
            self._directory.training,
            TrainingLink(reporter),
            reporter.redactor,
            reporter.log,
            base_model=prepared.spec.model_path,
            save_freq=prepared.request.settings.checkpoint_save_freq,
        )
        if prepared.resumed_from is not None:
            message = f"resumed on another machine from the checkpoint of step {prepared.resumed_from}"
            reporter.log(LogLine(message, step="run"))
        if interrupt:
            # Nothing new is begun, but what an earlier worker did is reported.
            await asyncio.to_thread(reports.catch_up)
            return await self._leave(reports)
        try:
            summary = await self._train(prepared, _Hooks(reporter, reports, interrupt))
        except LearnerProcessLostError as loss:
            await self._exit_as_killed(loss)
        except Exception:
            await asyncio.to_thread(reports.keep_last)
            await asyncio.to_thread(reports.keep_resume_archive)
            raise
        finally:
            interrupt.listen(lambda: None)
        return await self._result(summary, reports)

    async def _train(self, prepared: PreparedTraining, hooks: TrainingHooks) -> TrainingSummary:
        from osmosis_ai.training.runs.trainer import Trainer

        if hub_token := prepared.spec.secret_values.get(HUB_TOKEN):
            os.environ[HUB_TOKEN] = hub_token
        containment, run = prepared.containment, self._inputs.run
        provenance: Mapping[str, Any] = {
            "run": run.name,
            "sdk_version": __version__,
            "git_head": run.commit_sha,
            "branch": run.branch,
            "base": run.model_path,
            "config": run.request,
        }
        trainer = Trainer(
            prepared.spec,
            self._directory.training.path,
            hooks,
            environ=program_environment(os.environ),
            rollout_cache=None if containment is None else containment.cache,
            sandbox=None if containment is None else containment.sandbox,
            provenance=provenance,
        )
        return await trainer.run()

    async def _result(self, summary: TrainingSummary, reports: TrainingReports) -> WorkResult:
        ending = summary.ending
        notes = [ending.message] if ending.because == "nothing_to_learn" else []
        notes += [f"{ending.warning[:1].upper()}{ending.warning[1:]}"] if ending.warning else []
        if notes:
            self.note = " ".join(notes)
        if ending.because == "stopped" and reports.refused is None:
            return await self._leave(reports)
        self._reporter.log(LogLine(ending.message, step="run"))
        if await asyncio.to_thread(reports.keep_last):
            return WorkResult("finished")
        not_stored = OsmosisError(
            "the training is done, but its last checkpoint could not be stored; the run's log has the reason",
            hint="make room on the platform's disk",
        )
        return WorkResult("failed", one_sentence(reports.refused or not_stored))

    async def _leave(self, reports: TrainingReports) -> WorkResult:
        """Leave the run for any machine to continue; what it learned is kept in case this is its end."""
        if self._reporter.stop_requested:
            await asyncio.to_thread(reports.keep_last)
        await asyncio.to_thread(reports.keep_resume_archive)
        return WorkResult(None)

    async def _exit_as_killed(self, loss: OsmosisError) -> NoReturn:
        """End this process as if killed, so that another worker resumes from the last checkpoint."""
        self._reporter.log(LogLine(loss.message, level="warning", step="run"))
        try:
            await asyncio.to_thread(self._reporter.flush)
        finally:
            os._exit(LEARNER_LOST)


class _Hooks(TrainingHooks):
    """Passes what the trainer says to the reporter, and stop requests to the trainer."""

    def __init__(
        self,
        reporter: Reporter,
        reports: TrainingReports,
        interrupt: Interrupt,
    ) -> None:
        self._reporter = reporter
        self._reports = reports
        self._interrupt = interrupt

    def plan(self, plan: TrainingPlan) -> None:
        done = {"steps_done": plan.steps_done}  # the run's page marks the resumed step
        self._reporter.log(LogLine(_described(plan), step=PLAN, details=done))
        self._reporter.later(lambda: self._reports.begin(plan))
        self._reporter.later(lambda: self._keep(self._reports.catch_up))

    def note(self, message: str) -> None:
        self._say(message)

    def warning(self, step: int, message: str) -> None:
        about = {"training_step": step}  # where the run's page marks it
        self._reporter.log(LogLine(message, "warning", step=WARNED, details=about))

    def stage(self, message: str) -> None:
        self._say(message)

    def environment(self, words: str) -> None:
        self._reporter.know(environment=words)

    def step(self, record: StepRecord, total_steps: int) -> None:
        if VALIDATION_PLANNED in record.metrics:
            # First the validation: its files must be complete before its numbers are published.
            self._reporter.later(self._reports.keep_validation)
        self._reporter.later(lambda: self._reports.append([record]))
        shown = [f"{name} {record.metrics[key]:.3f}" for key, name in _SHOWN.items() if key in record.metrics]
        shown += [f"{count} without a reward ({reason})" for reason, count in record.unscored.items()]
        self._say(f"step {record.step} of {total_steps}: {', '.join(shown) or 'no rewards'}", step="step")

    def checkpoint(self, saved: SavedCheckpoint) -> None:
        if saved.kept:
            self._reporter.later(lambda: self._keep(self._reports.keep_due))

    def started(self, stop: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        # By the loop, so that what is about to be started is there to be stopped.
        self._interrupt.listen(lambda: None if loop.is_closed() else stop())

    async def goes_on(self) -> bool:
        is_back = await asyncio.to_thread(self._interrupt.outlast)
        return is_back and self._reports.refused is None

    def _keep(self, keep: Callable[[], None]) -> None:
        keep()
        if self._reports.refused is not None:
            # Further steps could not be kept.
            self._interrupt.set()

    def _say(self, message: str, *, step: str = "run") -> None:
        self._reporter.log(LogLine(message, step=step))


def _described(plan: TrainingPlan) -> str:
    done = f", {plan.steps_done} of them done" if plan.steps_done else ""
    return (
        f"{plan.total_steps} steps of {plan.rollouts_per_step} rollouts on {plan.device}{done}; "
        f"{plan.training_rows} rows to train on, {plan.held_out_rows} held out"
    )
