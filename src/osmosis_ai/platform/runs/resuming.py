"""Resume a failed or stopped training run from its last checkpoint.

The newest archive that its worker sent has the adapter, optimizer, data order and step, so any machine can resume. The
run's row names it in ``training_state``. Secrets given with the submit are deleted when a run ends, so a resumed run uses
the stored secrets of the same names.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, or_, select

from osmosis_ai.errors import ConflictError
from osmosis_ai.platform.blobs.store import BlobError, BlobStore, BlobStoreSilent
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbDataset, DbRun, DbRunFile
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.runs.lifecycle import CHECKPOINT_KEPT, OPEN, UNFINISHED
from osmosis_ai.platform.runs.requests import RowSelection, read_training_request
from osmosis_ai.platform.runs.run_store import Queue, RunStore
from osmosis_ai.platform.runs.training_names import KIND as VALIDATION_FILES
from osmosis_ai.platform.runs.training_names import RESUME
from osmosis_ai.platform.secrets import ResolvedScope, resolve_scopes

logger = logging.getLogger("osmosis_ai.platform.runs")


def resume_archive_of(run: DbRun) -> dict[str, Any] | None:
    """Return the step, key, size and digest of the resume archive; None without one."""
    found: dict[str, Any] | None = (run.training_state or {}).get("resume")
    return found


def forget_resume(run: DbRun) -> None:
    """Clear the reference to the resume archive; the caller that ends the run deletes the blobs."""
    if resume_archive_of(run) is not None:
        run.training_state = _without(run.training_state, "resume")


@dataclass(frozen=True)
class ResumedRun:
    """A run that waits for its worker again, and the step after which it resumes."""

    run: DbRun
    step: int


class TrainingResumption:
    """Resumes ended training runs."""

    def __init__(
        self, db: Database, blobs: BlobStore, clock: Clock, logs: LogStore, runs: RunStore, queue: Queue
    ) -> None:
        self._db = db
        self._blobs = blobs
        self._clock = clock
        self._logs = logs
        self._runs = runs
        self._queue = queue

    def resumable(self, run: DbRun) -> bool:
        """Return whether a run ended early and has a checkpoint and its dataset to continue with."""
        has_checkpoint = run.status in UNFINISHED and self._checkpoint(run) is not None
        return has_checkpoint and self._dataset_problem(run) is None

    def plan(self, run: DbRun) -> tuple[int, dict[str, ResolvedScope]]:
        """Return the checkpoint step to resume from, and the scope of each secret."""
        step = self._step(run)
        if problem := self._dataset_problem(run):
            raise ConflictError(
                f"the run '{run.name}' cannot be resumed: {problem}.",
                hint=f"submit it again: osmosis train resubmit {run.name}",
            )
        names = read_training_request(run.request).secrets
        return step, resolve_scopes(self._db, run.workspace_id, run.creator_id or "", names)

    def resume(self, workspace_id: str, name_or_id: str, *, by: str) -> ResumedRun:
        """Queue a run again."""
        found = self._runs.get(workspace_id, name_or_id).run
        _, scopes = self.plan(found)
        with self._db.transaction() as session:
            run = session.get_one(DbRun, found.id, with_for_update=True)
            step = self._step(run)
            run.status = "pending"
            run.error = run.completed_at = run.stop_requested_at = None
            run.training_state = _without(run.training_state, "begun")
            run.secret_scopes = {**scopes}
            run.results = _without(run.results, "ending")
            line = LogLine(f"{by} resumed the run from the checkpoint of step {step}", step="run")
            self._logs.add(session, run.id, [line])
            self._queue.add(session, run)
        return ResumedRun(run, step)

    def forget_old(self) -> None:
        """Delete resume archives of finished or old runs, and replaced validation files whose deletion failed earlier."""
        with self._db.session() as session:
            over = select(DbRun.id).where(DbRun.training_state.is_not(None), self._is_over())
            found = list(session.scalars(over))
        for run_id in found:
            self._forget(run_id)

    def _forget(self, run_id: str) -> None:
        mine = select(DbRun).where(DbRun.id == run_id, self._is_over()).with_for_update()
        with self._db.transaction() as session:
            run = session.scalars(mine).one_or_none()
            if run is None:
                return
            run.training_state = {}
            validation = (DbRunFile.run_id == run_id, DbRunFile.kind == VALIDATION_FILES)
            kept = set(session.scalars(select(DbRunFile.blob_key).where(*validation)))
        try:
            self._blobs.delete_below(f"runs/{run_id}/{RESUME}")
            for key in self._blobs.keys(f"runs/{run_id}/{VALIDATION_FILES}"):
                if key not in kept:
                    self._blobs.delete(key)
        except BlobStoreSilent:
            raise
        except BlobError as error:  # the archives of other runs are deleted all the same
            logger.warning("the archives and old validations of the run %s stay for now: %s", run_id, error)
            return
        with self._db.transaction() as session:
            run = session.scalars(mine).one_or_none()
            if run is not None:
                run.training_state = None

    def _is_over(self) -> ColumnElement[bool]:
        too_old = DbRun.completed_at < self._clock.now() - CHECKPOINT_KEPT
        return or_(DbRun.status == "finished", and_(DbRun.status.in_(UNFINISHED), too_old))

    def _step(self, run: DbRun) -> int:
        """Return the step of the checkpoint to resume from."""
        if run.status not in UNFINISHED:
            raise _not_resumable(run)
        step = self._checkpoint(run)
        if step is None:
            raise ConflictError(
                f"the run '{run.name}' has no checkpoint to resume from: it {run.status} before one was stored, or more "
                f"than {CHECKPOINT_KEPT.days} days ago.",
                hint='submit it again; [experiment].model_path = "BASE:CHECKPOINT" begins with a saved adapter',
            )
        return step

    def _checkpoint(self, run: DbRun) -> int | None:
        archive = resume_archive_of(run)
        if archive is None or run.completed_at is None:
            return None
        return archive["step"] if self._clock.now() - run.completed_at <= CHECKPOINT_KEPT else None

    def _dataset_problem(self, run: DbRun) -> str | None:
        """Return why the rows of a run are no longer available."""
        with self._db.session() as session:
            dataset = session.get(DbDataset, run.dataset_id) if run.dataset_id else None
        if dataset is not None and dataset.sha256 == RowSelection.read(run.selection).sha256:
            return None
        return f"its dataset '{run.dataset_name}' was {'deleted' if dataset is None else 'replaced'}"


def _without(known: dict[str, Any] | None, key: str) -> dict[str, Any]:
    return {name: value for name, value in (known or {}).items() if name != key}


def _not_resumable(run: DbRun) -> ConflictError:
    if run.status in OPEN and run.stop_requested_at is not None:
        return ConflictError(
            f"the run '{run.name}' is stopping: it can be resumed once it has stopped.",
            hint=f"`osmosis train info {run.name}` shows when it has",
        )
    if run.status in OPEN:
        return ConflictError(
            f"the run '{run.name}' is {run.status}: it continues by itself.",
            hint=f"follow it with `osmosis train watch {run.name}`",
        )
    return ConflictError(
        f"the run '{run.name}' has finished: there is nothing left to do.",
        hint='to train its adapter further, submit a config with model_path = "BASE:CHECKPOINT"',
    )
