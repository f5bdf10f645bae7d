"""Executes a shard of an evaluation: the engine of `osmosis eval run`, on the platform's inputs."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osmosis_ai._version import __version__
from osmosis_ai.api.wire.workers import AssignedRun, AssignedShard
from osmosis_ai.config.sections import previews_enabled
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.hooks import ProgressSnapshot, RunHooks, RunSummary
from osmosis_ai.evaluation.journal import JournalWriteError
from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.run_log import Level as EngineLevel
from osmosis_ai.evaluation.run_log import LogEvent
from osmosis_ai.evaluation.runner import EvalRunner
from osmosis_ai.evaluation.sources import RolloutSource, TrainedAdapter, open_policy
from osmosis_ai.evaluation.spec import DatasetInput, EvalRunOptions
from osmosis_ai.files import open_regular
from osmosis_ai.platform.log_lines import Level, LogLine
from osmosis_ai.platform.runs.submit.eval_request import EvalRequest, read_eval_request
from osmosis_ai.platform.runs.submit.row_selection import RowSelection
from osmosis_ai.platform.worker.client import StoredBytesError
from osmosis_ai.platform.worker.reporter import Reporter
from osmosis_ai.platform.worker.work import Interrupt, Prepared, Work, WorkResult, one_sentence
from osmosis_ai.process_environment import program_environment

_LEVELS: dict[EngineLevel, Level] = {"INFO": "info", "WARNING": "warning", "ERROR": "error"}
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class PreparedEval(Prepared):
    """An evaluation whose inputs are on this machine."""

    request: EvalRequest
    rollout: RolloutSource
    dataset: DatasetInput
    rows: RowSelection
    adapter: TrainedAdapter | None
    secret_values: Mapping[str, str] = field(repr=False)


class EvalWork(Work[PreparedEval]):
    """The work on a shard of an evaluation."""

    def prepare(self) -> PreparedEval:
        """Fetch the inputs, and send what an earlier worker on this machine has recorded."""
        inputs = self._inputs
        self._adopt_journal()
        request = read_eval_request(inputs.run.request)
        secret_values, policy = inputs.secret_values(request.secrets), inputs.policy()
        containment = inputs.containment(request)
        return PreparedEval(
            containment=containment,
            request=request,
            rollout=inputs.rollout(request.experiment.entrypoint, containment),
            dataset=inputs.dataset(),
            rows=inputs.rows,
            adapter=TrainedAdapter(policy.base_model, policy.adapter) if policy.adapter else None,
            secret_values=secret_values,
        )

    async def execute(self, prepared: PreparedEval, interrupt: Interrupt) -> WorkResult:
        """Run the attempts of the shard that are pending."""
        run, shard, reporter = self._inputs.run, self._reporter.assignment.shard, self._reporter
        if interrupt:
            return WorkResult(None)
        hooks = _Hooks(reporter, interrupt, prepared.secret_values, shard)
        runner = EvalRunner(
            spec=prepared.request.spec(commit_sha=run.commit_sha),
            options=EvalRunOptions(
                name=run.name,
                seed=run.seed,
                servers=self._inputs.servers(prepared.request),
                verbose=True,
                previews=previews_enabled(run.request.get("advanced_config")),
                only=_assigned(shard),
                worked_before_s=shard.worked_s,
            ),
            dataset=prepared.dataset,
            selection=prepared.rows.rows(),
            rollout=prepared.rollout,
            output_root=self._directory.output_root,
            hooks=hooks,
            open_model=lambda env, lost: open_policy(run.model_path, env, lost, adapter=prepared.adapter),
            provenance=_provenance(run, prepared),
            environ=program_environment(os.environ),
            cache_dir=None if prepared.containment is None else prepared.containment.cache,
        )
        summary = await runner.run()
        self._report_directory(self._directory.evaluation(run.name))
        if summary is not None and (limited := summary.metrics.estimates.limited_by) is not None:
            reporter.know(limited_by=limited.model_dump(mode="json"))
        return _result(summary)

    def _adopt_journal(self) -> None:
        """Continue the journal of this machine if it begins with the platform's; otherwise download the latter."""
        directory, reporter = self._directory.evaluation(self._inputs.run.name), self._reporter
        stored = reporter.assignment.shard
        if not _begins_with(directory.events, stored.journal_bytes, stored.journal_sha256):
            if directory.events.exists():
                kept = _free_name(directory.events)
                directory.events.rename(kept)
                reporter.log(
                    LogLine(
                        f"this machine's journal differs from the platform's and is kept as {kept.name}",
                        level="warning",
                        step="run",
                    )
                )
            if stored.journal_bytes:
                reporter.fetch_journal(directory.events)
                if not _begins_with(directory.events, stored.journal_bytes, stored.journal_sha256):
                    directory.events.unlink()
                    raise StoredBytesError("the downloaded journal differs from the platform's.")
                message = f"continues from the {_lines(directory.events)} records of the platform's journal"
                reporter.log(LogLine(f"{message}; other attempts run with the same seeds", step="run"))
        reporter.follow(directory)

    def _report_directory(self, directory: RunDirectory) -> None:
        if directory.manifest.exists() and (digest := Manifest.load(directory.manifest).grader_digest):
            self._reporter.know(grader_digest=digest)


class _Hooks(RunHooks):
    """Passes what the engine says to the reporter, and stop requests to the engine."""

    def __init__(
        self, reporter: Reporter, interrupt: Interrupt, secret_values: Mapping[str, str], shard: AssignedShard
    ) -> None:
        self._reporter = reporter
        self._interrupt = interrupt
        self._secret_values = secret_values
        self._shard = shard
        self._logged = ""

    def note(self, message: str) -> None:
        # The engine has just logged some of its notes.
        if " ".join(message.split()) != self._logged:
            self._reporter.log(LogLine(message, step="run"))

    def stage(self, message: str) -> None:
        self._reporter.log(LogLine(message, step="run"))

    def environment(self, description: str) -> None:
        self._reporter.know(environment=description)

    def log_event(self, event: LogEvent) -> None:
        self._logged = event.message
        # Successful attempts are in the samples; a hundred thousand lines of them would bury the rest.
        if event.step != "result" or event.level != "INFO":
            details = dict(event.details) or None
            level = _LEVELS[event.level]
            self._reporter.log(LogLine(event.message, level, event.step, details, timestamp=event.time))

    def recorded(self, record: TerminalRecord) -> None:
        self._reporter.recorded()

    def progress(self, snapshot: ProgressSnapshot) -> None:
        self._reporter.know(worked_s=round(self._shard.worked_s + snapshot.elapsed_s, 1))

    def resolve_secrets(self, names: Sequence[str]) -> dict[str, str]:
        return {name: self._secret_values[name] for name in names}

    def started(self, interrupt: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()

        def end() -> None:
            # By the loop, so that what is about to be started can be interrupted.
            loop.call_soon_threadsafe(interrupt)

        self._interrupt.listen(end)

    def ended(self) -> None:
        self._interrupt.listen(lambda: None)


def _assigned(shard: AssignedShard) -> Callable[[int, int], bool]:
    """Return which attempts belong to a shard."""
    if shard.attempts is None:
        return lambda row, _: row % shard.count == shard.number
    listed = frozenset(shard.attempts)
    return lambda row, number: (row, number) in listed


def _result(summary: RunSummary | None) -> WorkResult:
    assert summary is not None  # dispatch is never declined here
    if summary.complete:
        return WorkResult("finished")
    stop = summary.stop
    if stop is not None and stop.kind == "interrupted":
        return WorkResult(None)
    if stop is not None and isinstance(stop.error, OsmosisError):
        # A failed write is this machine's fault: another worker continues from the platform's journal.
        is_unfit = isinstance(stop.error, JournalWriteError)
        is_infrastructure = stop.error.is_infrastructure or is_unfit
        return WorkResult("failed", one_sentence(stop.error), is_infrastructure, is_unfit)
    reason = stop.reason if stop is not None else f"{summary.pending} attempts are pending"
    return WorkResult("failed", one_sentence(OsmosisError(reason)))


def _begins_with(events: Path, size: int, sha256: str | None) -> bool:
    """Whether a journal begins with the bytes that the platform has."""
    if not size:
        return True
    digest, left = hashlib.sha256(), size
    try:
        with open_regular(events) as file:
            while left and (block := file.read(min(left, _BLOCK_BYTES))):
                digest.update(block)
                left -= len(block)
    except OSError:
        return False
    return not left and digest.hexdigest() == sha256


def _lines(events: Path) -> int:
    with open_regular(events) as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(_BLOCK_BYTES), b""))


def _free_name(events: Path) -> Path:
    number, name = 1, events.with_name(f"{events.name}.diverged")
    while name.exists():
        number += 1
        name = events.with_name(f"{events.name}.diverged-{number}")
    return name


def _provenance(run: AssignedRun, prepared: PreparedEval) -> dict[str, Any]:
    experiment = prepared.request.experiment
    return {
        "sdk_version": __version__,
        "git_head": run.commit_sha,
        "config_branch": experiment.branch,
        "config_commit_sha": experiment.commit_sha,
        "advanced": run.request.get("advanced_config"),
    }
