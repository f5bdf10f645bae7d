"""An evaluation, as a worker executes it: the same engine that `osmosis eval run` uses, on what the platform stores."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from osmosis_ai._version import __version__
from osmosis_ai.api.wire.workers import AssignedRun
from osmosis_ai.config.sections import previews_enabled
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.hooks import ProgressSnapshot, RunHooks, RunSummary
from osmosis_ai.evaluation.journal import JournalWriteError
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.run_log import Level as EngineLevel
from osmosis_ai.evaluation.run_log import LogEvent
from osmosis_ai.evaluation.runner import EvalRunner
from osmosis_ai.evaluation.sources import RolloutSource, TrainedAdapter, open_policy
from osmosis_ai.evaluation.spec import DatasetInput, EvalRunOptions
from osmosis_ai.platform.log_lines import Level, LogLine
from osmosis_ai.platform.runs.submit.eval_request import EvalRequest, read_eval_request
from osmosis_ai.platform.runs.submit.row_selection import RowSelection
from osmosis_ai.platform.runs.work.journal_following import follow_journal
from osmosis_ai.platform.runs.work.publisher import Publisher
from osmosis_ai.platform.runs.work.run_work import (
    Interrupt,
    PreparedRun,
    RunWork,
    WorkResult,
    one_sentence,
)
from osmosis_ai.platform.runs.work.sample_files import SampleFiles
from osmosis_ai.process_environment import program_environment
from osmosis_ai.redaction import Redactor

_LEVELS: dict[EngineLevel, Level] = {"INFO": "info", "WARNING": "warning", "ERROR": "error"}


@dataclass(frozen=True, kw_only=True)
class PreparedEval(PreparedRun):
    """An evaluation that can be begun, or gone on with."""

    request: EvalRequest
    rollout: RolloutSource
    dataset: DatasetInput
    rows: RowSelection
    adapter: TrainedAdapter | None
    secret_values: Mapping[str, str] = field(repr=False)


class EvalWork(RunWork[PreparedEval]):
    """The work on one evaluation run."""

    def prepare(self) -> PreparedEval:
        """Get hold of everything the run needs; blocking."""
        inputs = self._inputs
        request = read_eval_request(inputs.run.request)
        secret_values, policy = inputs.secret_values(request.secrets), inputs.policy()
        common = inputs.common(request)
        return PreparedEval(
            **common,
            request=request,
            rollout=inputs.rollout(request.experiment.entrypoint, common["containment"]),
            dataset=inputs.dataset(),
            rows=inputs.rows,
            adapter=TrainedAdapter(policy.base_model, policy.adapter) if policy.adapter else None,
            secret_values=secret_values,
        )

    async def execute(self, prepared: PreparedEval, publisher: Publisher, interrupt: Interrupt) -> WorkResult:
        """Run the evaluation, or continue it."""
        run, directory = prepared.run, self._directory.evaluation(prepared.run.name)
        if not publisher.is_following:
            await self._follow(publisher, directory, prepared.redactor)
        if interrupt and not directory.events.exists():
            return WorkResult(None)
        runner = EvalRunner(
            spec=prepared.request.spec(commit_sha=prepared.commit_sha),
            options=EvalRunOptions(
                name=run.name,
                seed=run.seed,
                servers=self._inputs.servers(prepared.request),
                verbose=True,
                previews=previews_enabled(run.request.get("advanced_config")),
                adopts_journal=True,
                reopened_at=run.reopened_at,
                worked_before_s=(self._channel.assignment.journal.worked_ms or 0.0) / 1000,
            ),
            dataset=prepared.dataset,
            selection=prepared.rows.rows(),
            rollout=prepared.rollout,
            output_root=self._directory.output_root,
            hooks=_Hooks(publisher, interrupt, prepared.secret_values),
            open_model=lambda env, lost: open_policy(run.model_path, env, lost, adapter=prepared.adapter),
            provenance=_provenance(run, prepared),
            environ=program_environment(os.environ),
            cache_dir=None if prepared.containment is None else prepared.containment.cache,
        )
        return _result(await runner.run())

    async def _follow(self, publisher: Publisher, directory: RunDirectory, redactor: Redactor) -> None:
        """Go on with the journal as the platform has it, and have it published from there on."""
        channel = self._channel
        stored = channel.assignment.journal
        followed = await asyncio.to_thread(follow_journal, directory.events, stored, channel.fetch)
        if followed.is_rebuilt:
            publisher.log(LogLine(followed.sentence, step="run"))
        publisher.follow(directory, SampleFiles(directory, channel.store, redactor), followed.generation)


class _Hooks(RunHooks):
    """Carries what the engine says to the publisher, and what the platform says to the engine."""

    removes_files = True

    def __init__(self, publisher: Publisher, interrupt: Interrupt, secret_values: Mapping[str, str]) -> None:
        self._publisher = publisher
        self._interrupt = interrupt
        self._secret_values = secret_values
        self._logged = ""

    def note(self, message: str) -> None:
        # Some of what the engine notes it has just logged.
        if " ".join(message.split()) != self._logged:
            self._publisher.log(LogLine(message, step="run"))

    def stage(self, message: str) -> None:
        self._publisher.log(LogLine(message, step="run"))

    def environment(self, description: str) -> None:
        self._publisher.know(environment=description)

    def log_event(self, event: LogEvent) -> None:
        self._logged = event.message
        # What went well is in the samples; a hundred thousand lines of it would bury the rest.
        if event.step != "result" or event.level != "INFO":
            self._publisher.log(_line(event))

    def progress(self, snapshot: ProgressSnapshot) -> None:
        self._publisher.progress(snapshot)

    def resolve_secrets(self, names: Sequence[str]) -> dict[str, str]:
        return {name: self._secret_values[name] for name in names}

    def started(self, interrupt: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()

        def end() -> None:
            # By the loop, so that what is about to be started is there to be interrupted.
            loop.call_soon_threadsafe(interrupt)

        self._interrupt.listen(end)

    def ended(self) -> None:
        self._interrupt.listen(lambda: None)


def _result(summary: RunSummary | None) -> WorkResult:
    assert summary is not None  # dispatch is never declined here
    if summary.complete:
        return WorkResult("finished")
    stop = summary.stop
    if stop is not None and stop.kind == "interrupted":
        return WorkResult(None)
    if stop is not None and isinstance(stop.error, OsmosisError):
        # A failed write is this machine's fault: another worker continues from the platform's data.
        is_of_machine = isinstance(stop.error, JournalWriteError)
        is_infrastructure = stop.error.is_infrastructure or is_of_machine
        return WorkResult("failed", one_sentence(stop.error), is_infrastructure, is_of_machine)
    reason = stop.reason if stop is not None else f"{summary.pending} rollouts were left undone"
    return WorkResult("failed", one_sentence(OsmosisError(reason)))


def _line(event: LogEvent) -> LogLine:
    details = dict(event.details) or None
    return LogLine(event.message, _LEVELS[event.level], event.step, details, timestamp=event.time)


def _provenance(run: AssignedRun, prepared: PreparedEval) -> dict[str, Any]:
    experiment = prepared.request.experiment
    return {
        "sdk_version": __version__,
        "git_head": prepared.commit_sha,
        "config_branch": experiment.branch,
        "config_commit_sha": experiment.commit_sha,
        "advanced": run.request.get("advanced_config"),
    }
