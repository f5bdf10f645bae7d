"""An evaluation, as a worker executes it: the same engine that `osmosis eval run` uses, on what the platform stores.

Everything the run needs is put into its working directory first and used from there, so that a worker that
continues it later meets the same bytes, whatever happened to the repository or the dataset meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from sqlalchemy import select

from osmosis_ai._version import __version__
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.hooks import RunHooks
from osmosis_ai.evaluation.policy import open_policy
from osmosis_ai.evaluation.run_state import ProgressSnapshot
from osmosis_ai.evaluation.runner import LocalEvalRunner
from osmosis_ai.evaluation.spec import DatasetInput, LocalEvalOptions
from osmosis_ai.evaluation.summary import RunSummary
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.datasets.copies import open_dataset
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.models import Repository, Run, RunFile
from osmosis_ai.platform.gitsync.mirror import MirrorStore
from osmosis_ai.platform.logs import Level, Line
from osmosis_ai.platform.runs.leases import Lease
from osmosis_ai.platform.runs.parts import open_blobs, open_vault
from osmosis_ai.platform.runs.process_environment import rollout_environment
from osmosis_ai.platform.runs.publisher import Publisher
from osmosis_ai.platform.runs.request import EvalRequest, read_request
from osmosis_ai.platform.runs.sample_files import SampleFiles
from osmosis_ai.platform.runs.selection import RowChoice
from osmosis_ai.platform.runs.sentence import one_sentence
from osmosis_ai.platform.runs.status import Outcome
from osmosis_ai.platform.runs.submit import secrets_context
from osmosis_ai.platform.runs.working_directory import WorkingDirectory
from osmosis_ai.platform.secrets import resolve_secrets
from osmosis_ai.redaction import Redactor

_ENGINE_LINE = re.compile(r"(\S+) (INFO|WARNING|ERROR) \[([^\]]*)\] (.*) (\{.*\})", re.DOTALL)


@dataclass(frozen=True)
class Verdict:
    """How a worker's turn ended: with an outcome of the run, or without one when it was told to leave."""

    outcome: Outcome | None
    error: str | None = None


@dataclass(frozen=True)
class Prepared:
    """A run whose code, rows and secrets are at hand."""

    run: Run
    request: EvalRequest
    commit_sha: str
    rollout_dir: Path
    dataset: DatasetInput
    rows: RowChoice
    stored: frozenset[str]
    blobs: BlobStore
    secret_values: Mapping[str, str] = field(repr=False)
    redactor: Redactor = field(repr=False)


class Interrupt:
    """Says once, from any thread, that the run is to end; whoever listens is told, also afterwards."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._listener: Callable[[], None] | None = None
        self._is_set = False

    def set(self) -> None:
        """Say it."""
        with self._lock:
            if not self._is_set:
                self._is_set = True
                if self._listener is not None:
                    self._listener()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` when it is said; at once when it has been."""
        with self._lock:
            self._listener = listener
            if self._is_set:
                listener()

    def __bool__(self) -> bool:
        return self._is_set


class EvaluationWork:
    """The work on one evaluation run.

    Args:
        config, db: the platform's.
        directory: where the run works.
        lease: the right to it.
    """

    def __init__(
        self, config: PlatformConfig, db: Database, directory: WorkingDirectory, lease: Lease
    ) -> None:
        self._config = config
        self._db = db
        self._directory = directory
        self._lease = lease
        self._vault = open_vault(config)

    def prepare(self) -> Prepared:
        """Get hold of everything the run needs; blocking.

        Raises:
            OsmosisError: something is no longer there.
        """
        with self._db.session() as session:
            run = session.get_one(Run, self._lease.run_id)
            repository = session.get(Repository, run.repository_id) if run.repository_id else None
            stored = frozenset(session.scalars(select(RunFile.path).where(RunFile.run_id == run.id)))
        request = read_request(run.request)
        rows = RowChoice.read(run.selection or {})
        blobs = open_blobs(self._config, SystemClock())
        assert run.commit_sha is not None
        secret_values = self._secret_values(run, request)
        return Prepared(
            run=run,
            request=request,
            commit_sha=run.commit_sha,
            rollout_dir=self._source(repository, run.commit_sha) / "rollouts" / run.rollout_name,
            dataset=self._dataset(blobs, run, rows),
            rows=rows,
            stored=stored,
            blobs=blobs,
            secret_values=secret_values,
            redactor=Redactor(secret_values.values()),
        )

    async def execute(self, prepared: Prepared, publisher: Publisher, interrupt: Interrupt) -> Verdict:
        """Run the evaluation, or continue it.

        Raises:
            OsmosisError: it could not be started; the model, the environment or the rollout's server says why.
        """
        run, directory = prepared.run, self._directory.evaluation(prepared.run.name)
        if interrupt and not directory.events.exists():
            return Verdict(None)
        files = SampleFiles(run.id, directory, prepared.blobs, prepared.redactor, prepared.stored)
        publisher.follow(directory, files)
        runner = LocalEvalRunner(
            spec=prepared.request.spec(commit_sha=prepared.commit_sha),
            options=LocalEvalOptions(name=run.name, seed=run.seed, verbose=True),
            dataset=prepared.dataset,
            selection=prepared.rows.rows(),
            rollout_dir=prepared.rollout_dir,
            output_root=self._directory.output_root,
            hooks=_Hooks(publisher, interrupt, prepared.secret_values),
            open_model=lambda env, lost: open_policy(run.model_path, env, lost),
            provenance=_provenance(run, prepared),
            environ=rollout_environment(os.environ),
        )
        return _verdict(await runner.run())

    def _source(self, repository: Repository | None, sha: str) -> Path:
        """Export the commit anew: an agent may have written into its own directory since the last time."""
        source = self._directory.source
        if repository is None:
            if source.is_dir():
                return source
            raise OsmosisError(
                "the repository of this run was disconnected before the run began.",
                hint="connect it with `osmosis platform connect`, then submit again",
            )
        shutil.rmtree(source, ignore_errors=True)
        mirrors = MirrorStore(self._config.git_dir)
        try:
            mirrors.export(repository, sha, source)
        finally:
            mirrors.close()
        return source

    def _dataset(self, blobs: BlobStore, run: Run, rows: RowChoice) -> DatasetInput:
        path = self._directory.dataset(rows.extension)
        if not path.exists():
            partial = path.with_name(f".{path.name}.partial")
            row = open_dataset(self._db, blobs, run.dataset_id or "", partial)
            if row.sha256 != rows.sha256:
                partial.unlink()
                raise OsmosisError(
                    f"the dataset '{run.dataset_name}' was replaced before the run began.",
                    hint="submit the run again",
                )
            partial.replace(path)
        return DatasetInput(path, run.dataset_name, rows.sha256, "platform")

    def _secret_values(self, run: Run, request: EvalRequest) -> dict[str, str]:
        """Return the value of every secret: those given with the submit, and those stored by now."""
        given: dict[str, str] = {}
        if run.sealed_secrets is not None:
            opened = self._vault.open(run.sealed_secrets, context=secrets_context(run.id))
            given = json.loads(opened)
        names = [name for name in request.secrets if name not in given]
        stored = resolve_secrets(self._db, self._vault, run.workspace_id, run.creator_id or "", names)
        return {**{name: secret.value for name, secret in stored.items()}, **given}


class _Hooks(RunHooks):
    """Carries what the engine says to the publisher, and what the platform says to the engine."""

    def __init__(self, publisher: Publisher, interrupt: Interrupt, secret_values: Mapping[str, str]) -> None:
        self._publisher = publisher
        self._interrupt = interrupt
        self._secret_values = secret_values
        self._logged = ""

    def note(self, message: str) -> None:
        # Some of what the engine notes it has just logged.
        if message != self._logged:
            self._publisher.log(Line(message, step="run"))

    def stage(self, message: str) -> None:
        self._publisher.log(Line(message, step="run"))

    def log_line(self, line: str) -> None:
        parsed = _parsed(line)
        self._logged = parsed.message
        # What went well is in the samples; a hundred thousand lines of it would bury the rest.
        if parsed.step != "result" or parsed.level != "info":
            self._publisher.log(parsed)

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


def _verdict(summary: RunSummary | None) -> Verdict:
    assert summary is not None  # dispatch is never declined here
    if summary.complete:
        return Verdict("finished")
    stop = summary.stop
    if stop is not None and stop.kind == "interrupted":
        return Verdict(None)
    if stop is not None and isinstance(stop.error, OsmosisError):
        return Verdict("failed", one_sentence(stop.error))
    reason = stop.reason if stop is not None else f"{summary.pending} rollouts were left undone"
    return Verdict("failed", one_sentence(OsmosisError(reason)))


def _parsed(line: str) -> Line:
    match = _ENGINE_LINE.fullmatch(line)
    if match is None:
        return Line(line, step="run")
    moment, level, step, message, details = match.groups()
    return Line(
        message,
        level=cast(Level, level.lower()),
        step=step,
        details=json.loads(details) or None,
        timestamp=datetime.fromisoformat(moment.replace("Z", "+00:00")),
    )


def _provenance(run: Run, prepared: Prepared) -> dict[str, Any]:
    experiment = prepared.request.experiment
    return {
        "sdk_version": __version__,
        "git_head": prepared.commit_sha,
        "config_branch": experiment.branch,
        "config_commit_sha": experiment.commit_sha,
        "advanced": run.request.get("advanced_config"),
    }
