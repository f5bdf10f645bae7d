"""Execute a training run in a worker: the trainer of `osmosis_ai.training` on the platform's data.

This is the only platform process that imports torch, and only when it trains. However the trainer ends, its last
checkpoint is stored before the run gets its outcome, so nothing is lost with the working directory.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from osmosis_ai._version import __version__
from osmosis_ai.config.sections import served_agent
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.runs.execute.worker_process import LEARNER_LOST
from osmosis_ai.platform.runs.submit.training_request import TrainingRequest, read_training_request
from osmosis_ai.platform.runs.work.publisher import Publisher
from osmosis_ai.platform.runs.work.run_work import Interrupt, PreparedRun, RunWork, WorkResult, one_sentence
from osmosis_ai.platform.runs.work.training_publisher import PublishingHooks, TrainingPublisher, take_over
from osmosis_ai.platform.runs.work.training_sink import ChannelSink, TrainingSink
from osmosis_ai.process_environment import program_environment
from osmosis_ai.training.learner.ranks import LearnerProcessLostError
from osmosis_ai.training.runs.spec import TrainingSpec

if TYPE_CHECKING:
    from osmosis_ai.training.runs.trainer import TrainingSummary

HUB_TOKEN = "HF_TOKEN"
"""The secret with which a worker may load a model that its hub does not give to everybody."""


@dataclass(frozen=True, kw_only=True)
class PreparedTraining(PreparedRun):
    """A training run that can be begun, or gone on with."""

    request: TrainingRequest
    spec: TrainingSpec
    sink: TrainingSink
    took_over: int | None


class TrainingWork(RunWork[PreparedTraining]):
    """The work on one training run; arguments as of all :class:`RunWork`."""

    def prepare(self) -> PreparedTraining:
        """Get hold of everything the run needs; blocking."""
        inputs = self._inputs
        run, request = inputs.run, read_training_request(inputs.run.request)
        policy, secret_values = inputs.policy(), inputs.secret_values(request.secrets)
        common, agent = inputs.common(request), served_agent(request.experiment.entrypoint)
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
        sink = ChannelSink(self._channel)
        took_over = take_over(self._directory.training, sink)
        return PreparedTraining(**common, request=request, spec=spec, sink=sink, took_over=took_over)

    async def execute(
        self, prepared: PreparedTraining, publisher: Publisher, interrupt: Interrupt
    ) -> WorkResult:
        """Train, or go on training."""
        training_publisher = TrainingPublisher(
            self._directory.training,
            prepared.sink,
            prepared.redactor,
            publisher.log,
            base_model=prepared.spec.model_path,
            save_freq=prepared.request.settings.checkpoint_save_freq,
        )
        if prepared.took_over is not None:
            words = f"resumed on another machine from the checkpoint of step {prepared.took_over}"
            publisher.log(LogLine(words, step="run"))
        if interrupt:
            # Nothing is begun any more, but what an earlier worker did is gathered.
            await asyncio.to_thread(training_publisher.catch_up)
            return await self._leave_run(training_publisher)
        hooks = PublishingHooks(publisher, training_publisher, interrupt)
        try:
            summary = await self._train(prepared, hooks)
        except LearnerProcessLostError as loss:
            await _exit_as_killed(loss, publisher)
        except Exception:
            await asyncio.to_thread(training_publisher.keep_last)
            await asyncio.to_thread(training_publisher.keep_to_go_on)
            raise
        finally:
            interrupt.listen(lambda: None)
        return await self._result(summary, training_publisher, publisher)

    async def _train(self, prepared: PreparedTraining, hooks: PublishingHooks) -> TrainingSummary:
        from osmosis_ai.training.runs.trainer import Trainer

        hub_token = prepared.spec.secret_values.get(HUB_TOKEN)
        if hub_token:
            os.environ[HUB_TOKEN] = hub_token
        containment = prepared.containment
        trainer = Trainer(
            prepared.spec,
            self._directory.training.path,
            hooks,
            environ=program_environment(os.environ),
            rollout_cache=None if containment is None else containment.cache,
            sandbox=None if containment is None else containment.sandbox,
            provenance=_provenance(prepared),
        )
        return await trainer.run()

    async def _result(
        self, summary: TrainingSummary, training_publisher: TrainingPublisher, publisher: Publisher
    ) -> WorkResult:
        ending = summary.ending
        notes = [ending.message] if ending.because == "nothing_to_learn" else []
        notes += [_as_sentence(ending.warning)] if ending.warning else []
        if notes:
            self.ending = " ".join(notes)
        if ending.because == "stopped" and training_publisher.refused is None:
            return await self._leave_run(training_publisher)
        publisher.log(LogLine(ending.message, step="run"))
        if await asyncio.to_thread(training_publisher.keep_last):
            return WorkResult("finished")
        return WorkResult("failed", one_sentence(training_publisher.refused or _checkpoint_not_stored()))

    async def _leave_run(self, training_publisher: TrainingPublisher) -> WorkResult:
        """Leave the run as it is, for any machine to go on with; what it learned is kept if this is its end, too."""
        if self._channel.stop_asked:
            await asyncio.to_thread(training_publisher.keep_last)
        await asyncio.to_thread(training_publisher.keep_to_go_on)
        return WorkResult(None)


def _as_sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


async def _exit_as_killed(loss: OsmosisError, publisher: Publisher) -> NoReturn:
    """End this process as if killed, so that another worker resumes from the last checkpoint."""
    publisher.log(LogLine(loss.message, level="warning", step="run"))
    try:
        await asyncio.to_thread(publisher.finish)
    finally:
        os._exit(LEARNER_LOST)


def _checkpoint_not_stored() -> OsmosisError:
    return OsmosisError(
        "the training is done, but its last checkpoint could not be stored; the run's log says why",
        hint="make room on the platform's disk",
    )


def _provenance(prepared: PreparedTraining) -> Mapping[str, Any]:
    """Return what an adapter says of where it comes from; names of secrets, never their values."""
    run = prepared.run
    return {
        "run": run.name,
        "sdk_version": __version__,
        "git_head": prepared.commit_sha,
        "branch": run.branch,
        "base": run.model_path,
        "config": run.request,
    }
