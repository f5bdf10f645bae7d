"""Executes a shard of an evaluation: the engine of `osmosis eval run`, on the platform's inputs."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from osmosis_ai._version import __version__
from osmosis_ai.api.models.workers import AssignedShard, FinishRequest, ReleaseRequest
from osmosis_ai.config.sections import previews_enabled, served_agent
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.hooks import ProgressSnapshot, RunHooks, RunSummary
from osmosis_ai.evaluation.journal import committed_lines
from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.evaluation.run_log import Level as EngineLevel
from osmosis_ai.evaluation.run_log import LogEvent
from osmosis_ai.evaluation.runner import EvalRunner
from osmosis_ai.evaluation.sources import ProjectSource, RolloutSource, open_policy
from osmosis_ai.evaluation.spec import EvalRunOptions, EvalRunSpec
from osmosis_ai.files import open_regular
from osmosis_ai.platform.log_lines import Level, LogLine
from osmosis_ai.platform.runs.requests import read_eval_request
from osmosis_ai.platform.worker.client import StoredBytesError
from osmosis_ai.platform.worker.reporter import Reporter
from osmosis_ai.platform.worker.work import Interrupt, ShardEnd, Work, failed
from osmosis_ai.process_environment import program_environment

_LEVELS: dict[EngineLevel, Level] = {"INFO": "info", "WARNING": "warning", "ERROR": "error"}
_BLOCK_BYTES = 1 << 20


class EvalWork(Work):
    def prepare(self) -> None:
        """Fetch the inputs, and send what an earlier worker on this machine has recorded."""
        self._adopt_journal()
        self._request = read_eval_request(self._run.request)
        self.secret_values(self._request.secrets)
        policy = self.policy()
        self.contain(self._request)
        self._rollout: RolloutSource
        if (agent := served_agent(self._request.experiment.entrypoint)) is not None:
            self._rollout = self.served(agent)
        else:
            sandbox = self.containment.sandbox if self.containment is not None else None
            self._rollout = ProjectSource(self.source() / "rollouts" / self._run.rollout_name, sandbox)
        self._rows_file = self.dataset()
        self._adapter = policy if policy.directory is not None else None

    async def execute(self, interrupt: Interrupt) -> ShardEnd:
        run, shard, reporter = self._run, self._assignment.shard, self.reporter
        if interrupt:
            return ReleaseRequest()
        experiment, advanced = self._request.experiment, run.request.get("advanced_config")
        listed = None if shard.attempts is None else frozenset(shard.attempts)
        runner = EvalRunner(
            spec=EvalRunSpec(
                experiment.model_copy(update={"commit_sha": run.commit_sha}),
                self._request.evaluation,
                env=self._request.env,
                secret_names=self._request.secrets,
            ),
            options=EvalRunOptions(
                name=run.name,
                seed=run.seed,
                servers=self.servers(self._request),
                verbose=True,
                previews=previews_enabled(advanced),
                only=lambda row, number: (
                    row % shard.count == shard.number if listed is None else (row, number) in listed
                ),
                worked_before_s=shard.worked_s,
            ),
            dataset=self._rows_file,
            selection=self._rows.rows(),
            rollout=self._rollout,
            output_root=self.directory.output_root,
            hooks=_Hooks(self, reporter, interrupt),
            open_model=lambda env, lost: open_policy(run.model_path, env, lost, adapter=self._adapter),
            provenance={
                "sdk_version": __version__,
                "git_head": run.commit_sha,
                "config_branch": experiment.branch,
                "config_commit_sha": experiment.commit_sha,
                "advanced": advanced,
            },
            environ=program_environment(os.environ),
            cache_dir=None if self.containment is None else self.containment.cache,
        )
        summary = await runner.run()
        manifest = self.directory.evaluation(run.name).manifest
        if manifest.exists() and (digest := Manifest.load(manifest).grader_digest):
            reporter.know(grader_digest=digest)
        if summary is not None and (limited := summary.metrics.estimates.limited_by) is not None:
            reporter.know(limited_by=limited.model_dump(mode="json"))
        return _end(summary)

    def _adopt_journal(self) -> None:
        """Continue the journal of this machine if it begins with the platform's; otherwise download the latter."""
        directory, reporter = self.directory.evaluation(self._run.name), self.reporter
        events, stored = directory.events, self._assignment.shard
        if not _begins_with(events, stored):
            if events.exists():
                number, kept = 1, events.with_name(f"{events.name}.diverged")
                while kept.exists():
                    number += 1
                    kept = events.with_name(f"{events.name}.diverged-{number}")
                events.rename(kept)
                message = f"this machine's journal differs from the platform's and is kept as {kept.name}"
                reporter.log(LogLine(message, level="warning", step="run"))
            if stored.journal_bytes:
                reporter.fetch_journal(events)
                if not _begins_with(events, stored):
                    events.unlink()
                    raise StoredBytesError("the downloaded journal differs from the platform's.")
                records = sum(1 for _ in committed_lines(events))
                message = f"continues from the {records} records of the platform's journal"
                reporter.log(LogLine(f"{message}; other attempts run with the same seeds", step="run"))
        reporter.follow(directory)


class _Hooks(RunHooks):
    """Passes the engine's messages to the reporter, and stop requests to the engine."""

    def __init__(self, work: EvalWork, reporter: Reporter, interrupt: Interrupt) -> None:
        self._work = work
        self._reporter = reporter
        self._interrupt = interrupt
        self._worked_before_s = reporter.assignment.shard.worked_s
        self._logged = ""

    def note(self, message: str) -> None:
        # The engine has just logged some of its notes.
        if " ".join(message.split()) != self._logged:
            self.stage(message)

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
        self._reporter.know(worked_s=round(self._worked_before_s + snapshot.elapsed_s, 1))

    def resolve_secrets(self, names: Sequence[str]) -> dict[str, str]:
        return self._work.secret_values(names)

    def started(self, interrupt: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        # By the loop, so that what is about to be started can be interrupted.
        self._interrupt.listen(lambda: loop.call_soon_threadsafe(interrupt))

    def ended(self) -> None:
        self._interrupt.listen(lambda: None)


def _end(summary: RunSummary | None) -> ShardEnd:
    assert summary is not None  # dispatch is never declined here
    stop = summary.stop
    if summary.complete:
        return FinishRequest(outcome="finished")
    if stop is None:
        return failed(OsmosisError(f"{summary.pending} attempts are pending"))
    if stop.kind == "interrupted":
        return ReleaseRequest()
    return failed(stop.error if isinstance(stop.error, OsmosisError) else OsmosisError(stop.reason))


def _begins_with(events: Path, stored: AssignedShard) -> bool:
    """Whether a journal begins with the bytes that the platform has."""
    digest, left = hashlib.sha256(), stored.journal_bytes
    if not left:
        return True
    try:
        with open_regular(events) as file:
            while left and (block := file.read(min(left, _BLOCK_BYTES))):
                digest.update(block)
                left -= len(block)
    except OSError:
        return False
    return not left and digest.hexdigest() == stored.journal_sha256
