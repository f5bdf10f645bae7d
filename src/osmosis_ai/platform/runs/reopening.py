"""Reopen ended runs: retry an evaluation, or resume a failed or stopped training run.

A retry runs the attempts without a score again, in the same run, with its commit, rows and seeds, whatever has changed in
the branch and dataset since. It is refused if they are no longer available. Attempts with a score never run again, so no
score is replaced. The listed attempts are queued like a new run, and their journal is appended to the former one.

A training run resumes from its last checkpoint. The newest archive that its worker sent has the adapter, optimizer, data
order and step, so any machine can resume. The run's row names it in ``training_state``. Secrets given with the submit are
deleted when a run ends, so a resumed run uses the stored secrets of the same names.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, and_, case, func, or_, select
from sqlalchemy.orm import Session

from osmosis_ai.api.models.base import Named
from osmosis_ai.api.models.eval_runs import RetryCheck
from osmosis_ai.config.execution import EXECUTION
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.errors import ConflictError, NotFoundError
from osmosis_ai.platform.blobs.store import BlobError, BlobNotFound, BlobStore, BlobStoreSilent
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import (
    DbDataset,
    DbRepository,
    DbRun,
    DbRunFile,
    DbRunUpload,
    DbSample,
    DbUser,
)
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.runs.journals import stored_lines
from osmosis_ai.platform.runs.lifecycle import CHECKPOINT_KEPT, OPEN, RESUME, UNFINISHED, VALIDATION
from osmosis_ai.platform.runs.passing_attempts import source_of
from osmosis_ai.platform.runs.requests import (
    RowSelection,
    evaluation_settings,
    read_eval_request,
    read_training_request,
)
from osmosis_ai.platform.runs.run_store import Queue
from osmosis_ai.platform.runs.submitter import CheckedSubmission, RunSubmitter, seal_secrets
from osmosis_ai.platform.secrets import ResolvedScope, resolve_scopes
from osmosis_ai.platform.vault import Vault
from osmosis_ai.ui.numbers import amount

logger = logging.getLogger("osmosis_ai.platform.runs")

_UNSCORED = or_(DbSample.status == "failed", and_(DbSample.status == "success", DbSample.reward.is_(None)))


def resume_archive_of(run: DbRun) -> dict[str, Any] | None:
    """Return the step, key, size and digest of the resume archive; None without one."""
    found: dict[str, Any] | None = (run.training_state or {}).get("resume")
    return found


def forget_resume(run: DbRun) -> None:
    """Clear the reference to the resume archive; the caller that ends the run deletes the blobs."""
    if resume_archive_of(run) is not None:
        run.training_state = _without(run.training_state, "resume")


@dataclass(frozen=True)
class PlannedRetry:
    """A checked retry and what it would repeat; ``budget`` replaces the run's if it has any key."""

    run: DbRun
    repeated: RetryCheck
    checked: CheckedSubmission
    budget: dict[str, float]


@dataclass
class RunReopener:
    _db: Database
    _blobs: BlobStore
    _vault: Vault
    _clock: Clock
    _logs: LogStore
    _submitter: RunSubmitter
    _queue: Queue

    def _reopen(
        self,
        session: Session,
        run: DbRun,
        scopes: Mapping[str, str],
        message: str,
        attempts: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        run.status = "pending"
        run.error = run.completed_at = run.stop_requested_at = None
        run.results = _without(run.results, "ending")
        run.secret_scopes = dict(scopes)
        self._logs.add(session, run.id, [LogLine(message, step="run")])
        self._queue.add(session, run, attempts)

    # -- evaluations -----------------------------------------------------------------------------------

    def require_retryable(self, run_id: str) -> None:
        """Check whether an evaluation may be retried, as far as the database knows, in one statement."""
        named = (DbDataset.workspace_id == DbRun.workspace_id, DbDataset.name == DbRun.dataset_name)
        asked = select(DbRun, DbDataset.sha256).outerjoin(DbDataset, and_(*named)).where(DbRun.id == run_id)
        ((run, sha256),) = self._db.rows(asked)
        if run.imported is not None:
            raise ConflictError(
                f"the evaluation run '{run.name}' was imported: the platform did not execute it, and cannot retry it.",
                hint="retry it where it ran with `osmosis eval run CONFIG --retry-failed`; then delete "
                f"this one (`osmosis eval delete {run.name}`) and upload that",
            )
        _require_ended(run)
        if sha256 != RowSelection.read(run.selection).sha256:
            change = "deleted" if sha256 is None else "replaced"
            raise _impossible(
                run,
                f"its dataset '{run.dataset_name}' was {change}",
                f"upload the original file again, or evaluate it again with `osmosis eval resubmit {run.name}`",
            )

    def plan_retry(
        self, run: DbRun, user: DbUser, provided: Mapping[str, str], budget: dict[str, float]
    ) -> PlannedRetry:
        """Check what a retry would repeat, and whether it can; blocks like a submit."""
        self.require_retryable(run.id)
        n = evaluation_settings(run.request).n
        planned = len(RowSelection.read(run.selection).rows()) * n
        of_run = DbSample.run_id == run.id
        reason = case((DbSample.status == "failed", func.coalesce(DbSample.boundary, "unknown")), else_="")
        with self._db.session() as session:
            made = session.scalar(select(func.count()).where(of_run)) or 0
            counted = session.execute(select(reason, func.count()).where(of_run, _UNSCORED).group_by(reason))
            failed = {str(name): int(count) for name, count in counted}
        no_reward, missing = failed.pop("", 0), planned - made
        if not failed and not no_reward and not missing:
            raise ConflictError(
                f"the evaluation run '{run.name}' has nothing to retry: every attempt has a score or was "
                "skipped by its grader."
            )
        checked = self._check(run, user, provided)
        self._require_journal(run)
        repeated = RetryCheck(
            eval_run=Named(id=run.id, name=run.name),
            samples=sum(failed.values()) + no_reward + missing,
            planned=planned,
            failed=failed,
            no_reward=no_reward,
            missing=missing,
            commit_sha=run.commit_sha,
            resolved_secret_scopes=dict(checked.scopes),
        )
        return PlannedRetry(run, repeated, checked, budget)

    def retry(self, planned: PlannedRetry, *, by: str) -> DbRun:
        """Queue the attempts of a planned retry."""
        checked = planned.checked
        self._submitter.require_source(checked)
        with self._db.transaction() as session:
            run = session.get(DbRun, planned.run.id, with_for_update=True)
            if run is None:
                raise NotFoundError(f"the evaluation run '{planned.run.name}' was deleted meanwhile.")
            _require_ended(run)
            if run.revision != planned.run.revision:
                raise ConflictError(f"the evaluation run '{run.name}' was retried meanwhile.")
            if session.get(DbDataset, checked.dataset.id, with_for_update=True) is None:
                raise NotFoundError(f"the dataset '{run.dataset_name}' was deleted meanwhile.")
            if session.scalar(select(DbRunUpload.name).where(DbRunUpload.run_id == run.id).limit(1)):
                raise ConflictError(
                    f"the evaluation run '{run.name}' cannot be retried yet: its files are still being stored.",
                    hint="try again in a minute",
                )
            run.dataset_id, run.rollout_id = checked.dataset.id, checked.rollout_id
            run.creator_id = checked.user.id
            run.sealed_secrets = seal_secrets(self._vault, run.id, checked.request.provided)
            total, count = planned.repeated.planned, planned.repeated.samples
            run.progress = {"completed": total - count, "total": total}
            run.metrics = {**(run.metrics or {}), "earlier_ms": (run.metrics or {}).get("duration_ms", 0)}
            if planned.budget:
                advanced = run.request.get("advanced_config") or {}
                limits = _without(advanced.get(EXECUTION), "max_cost", "max_tokens") | planned.budget
                run.request = {**run.request, "advanced_config": {**advanced, EXECUTION: limits}}
            run.revision += 1
            run.retried_at = self._clock.now()
            run.reopened_at = run.accepted
            scored, n = _scored(session, run.id), evaluation_settings(run.request).n
            attempts = ((row, number) for row in range(len(checked.rows.rows())) for number in range(n))
            verb = "runs" if count == 1 else "run"
            message = f"{by} retried the run: {amount(count, 'attempt')} without a score {verb} again"
            unscored = [attempt for attempt in attempts if attempt not in scored]
            self._reopen(session, run, checked.scopes, message, unscored)
        return run

    def _require_journal(self, run: DbRun) -> None:
        """Refuse a retry if the journal is damaged or lacks a score: the retried one would as well."""
        with self._db.session() as session:
            lacking = _scored(session, run.id)
        is_damaged = False
        try:
            for line in stored_lines(self._blobs, run.journal_blob) if run.journal_blob is not None else ():
                record = TerminalRecord.from_line(line)
                lacking.discard((record.row_index, record.run_index))
        except (BlobNotFound, ConflictError, ValueError):
            is_damaged = True
        if lacking or is_damaged:
            hint = f"evaluate it again with `osmosis eval resubmit {run.name}`"
            raise _impossible(run, "its journal is damaged or missing", hint)

    def _check(self, run: DbRun, user: DbUser, provided: Mapping[str, str]) -> CheckedSubmission:
        """Check the run's request like a submit, with its commit pinned."""
        with self._db.session() as session:
            repository = session.get(DbRepository, run.repository_id) if run.repository_id else None
            # A worker gets the secrets of the member who submitted the run.
            owner = (session.get(DbUser, run.creator_id) if run.creator_id else None) or user
        if repository is None:
            hint = "connect it with `osmosis platform connect`, then use `osmosis eval resubmit`"
            raise _impossible(run, "its repository is no longer connected", hint)
        experiment = {**_without(run.request["experiment_config"], "branch"), "commit_sha": run.commit_sha}
        body = {**run.request, "experiment_config": experiment}
        if provided:
            body["secrets"] = {**(body.get("secrets") or {}), "provided": dict(provided)}
        checked = self._submitter.check("eval", repository, owner, body)
        personal = [name for name, scope in checked.scopes.items() if scope in ("user", "user_override")]
        if personal and owner.id != user.id:
            raise ConflictError(
                f"the evaluation run '{run.name}' cannot be retried by another member: it uses personal secrets of "
                f"{owner.email} ({', '.join(personal)}).",
                hint="give their values with `--secrets-file`, or evaluate it again with "
                f"`osmosis eval resubmit {run.name}`",
            )
        request = replace(read_eval_request(run.request), provided=dict(provided))
        return replace(checked, request=request, rows=RowSelection.read(run.selection))

    # -- training runs ---------------------------------------------------------------------------------

    def is_resumable(self, run: DbRun) -> bool:
        """Return whether a training run ended early and has a checkpoint and its dataset to continue with."""
        has_checkpoint = run.status in UNFINISHED and self._checkpoint(run) is not None
        return has_checkpoint and self._dataset_problem(run) is None

    def plan_resume(self, run: DbRun) -> tuple[int, dict[str, ResolvedScope]]:
        """Return the checkpoint step to resume from, and the scope of each secret."""
        step = self._step(run)
        if problem := self._dataset_problem(run):
            raise ConflictError(
                f"the run '{run.name}' cannot be resumed: {problem}.",
                hint=f"submit it again: osmosis train resubmit {run.name}",
            )
        names = read_training_request(run.request).secrets
        return step, resolve_scopes(self._db, run.workspace_id, run.creator_id or "", names)

    def resume(self, run: DbRun, *, by: str) -> tuple[DbRun, int]:
        """Queue a training run again; return it with the step after which it resumes."""
        _, scopes = self.plan_resume(run)
        with self._db.transaction() as session:
            run = session.get_one(DbRun, run.id, with_for_update=True)
            step = self._step(run)
            run.training_state = _without(run.training_state, "begun")
            self._reopen(session, run, scopes, f"{by} resumed the run from the checkpoint of step {step}")
        return run, step

    def forget_old(self) -> None:
        """Delete resume archives of finished or old runs, and replaced validation files whose deletion failed earlier."""
        for run_id in self._db.scalars(
            select(DbRun.id).where(DbRun.training_state.is_not(None), self._is_over())
        ):
            self._forget(run_id)

    def _forget(self, run_id: str) -> None:
        mine = select(DbRun).where(DbRun.id == run_id, self._is_over()).with_for_update()
        with self._db.transaction() as session:
            run = session.scalars(mine).one_or_none()
            if run is None:
                return
            run.training_state = {}
            validation = (DbRunFile.run_id == run_id, DbRunFile.kind == VALIDATION)
            kept = set(session.scalars(select(DbRunFile.blob_key).where(*validation)))
        try:
            self._blobs.delete_below(f"runs/{run_id}/{RESUME}")
            for key in self._blobs.keys(f"runs/{run_id}/{VALIDATION}"):
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
        rows, needed = RowSelection.read(run.selection), []
        if source_of(run) is None:  # otherwise it has its own
            needed.append((f"dataset '{run.dataset_name}'", run.dataset_id, rows.sha256))
        if rows.validation:
            needed.append(("validation dataset", *rows.validation[:2]))
        with self._db.session() as session:
            for what, dataset_id, sha256 in needed:
                dataset = session.get(DbDataset, dataset_id) if dataset_id else None
                if dataset is None or dataset.sha256 != sha256:
                    return f"its {what} was {'deleted' if dataset is None else 'replaced'}"
        return None


def _scored(session: Session, run_id: str) -> set[tuple[int, int]]:
    """Return row and number of the attempts that are not repeated."""
    mine = select(DbSample.row_index, DbSample.run_index).where(DbSample.run_id == run_id, ~_UNSCORED)
    return {(row, number) for row, number in session.execute(mine)}


def _require_ended(run: DbRun) -> None:
    if run.status in OPEN:
        raise _impossible(run, f"it is {run.status}", f"wait for it with `osmosis eval watch {run.name}`")


def _impossible(run: DbRun, why: str, hint: str) -> ConflictError:
    return ConflictError(f"the evaluation run '{run.name}' cannot be retried: {why}.", hint=hint)


def _without(known: dict[str, Any] | None, *keys: str) -> dict[str, Any]:
    return {name: value for name, value in (known or {}).items() if name not in keys}


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
