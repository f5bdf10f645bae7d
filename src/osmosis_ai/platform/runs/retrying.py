"""Retry an evaluation: its attempts without a score run again, in the same run.

A retry uses the commit, rows and seeds of the run, whatever has changed in the branch and dataset since. It is refused if
they are no longer available. Attempts with a score never run again, so no score is replaced. The listed attempts are
queued like a new run, and their journal is appended to the former one at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import and_, case, func, or_, select
from sqlalchemy.orm import Session

from osmosis_ai.config.execution import EXECUTION
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.errors import ConflictError, NotFoundError
from osmosis_ai.platform.blobs.store import BlobNotFound, BlobStore
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbDataset, DbRepository, DbRun, DbRunUpload, DbSample, DbUser
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.runs.journals import stored_lines
from osmosis_ai.platform.runs.lifecycle import OPEN
from osmosis_ai.platform.runs.requests import RowSelection, read_eval_request
from osmosis_ai.platform.runs.run_store import Queue
from osmosis_ai.platform.runs.submitter import CheckedSubmission, RunSubmission, RunSubmitter, seal_secrets
from osmosis_ai.platform.vault import Vault
from osmosis_ai.ui.numbers import amount

_UNSCORED = or_(DbSample.status == "failed", and_(DbSample.status == "success", DbSample.reward.is_(None)))


@dataclass(frozen=True)
class PlannedRetry:
    """A checked retry of ``count`` attempts without a score: failed ones by error source, and those never made.

    ``planned`` counts all attempts of the run; ``budget`` replaces the run's if it has any key.
    """

    run: DbRun
    planned: int
    failed: Mapping[str, int]
    no_reward: int
    missing: int
    checked: CheckedSubmission
    budget: Mapping[str, float]

    @property
    def count(self) -> int:
        """The number of attempts to repeat."""
        return sum(self.failed.values()) + self.no_reward + self.missing


class EvalRetries:
    """Retries ended evaluations."""

    def __init__(
        self,
        db: Database,
        blobs: BlobStore,
        vault: Vault,
        clock: Clock,
        logs: LogStore,
        submitter: RunSubmitter,
        queue: Queue,
    ) -> None:
        self._db = db
        self._blobs = blobs
        self._vault = vault
        self._clock = clock
        self._logs = logs
        self._submitter = submitter
        self._queue = queue

    def require_possible(self, run_id: str) -> None:
        """Check whether a run may be retried, as far as the database knows, in one statement."""
        named = (DbDataset.workspace_id == DbRun.workspace_id, DbDataset.name == DbRun.dataset_name)
        asked = select(DbRun, DbDataset.sha256).outerjoin(DbDataset, and_(*named)).where(DbRun.id == run_id)
        with self._db.session() as session:
            run, sha256 = session.execute(asked).one()
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

    def plan(
        self, run: DbRun, user: DbUser, provided: Mapping[str, str], budget: Mapping[str, float]
    ) -> PlannedRetry:
        """Check what a retry would repeat, and whether it can; blocks like a submit."""
        self.require_possible(run.id)
        n = read_eval_request(run.request).evaluation.n
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
                f"the evaluation run '{run.name}' has nothing to retry: every sample has a score or was "
                "skipped by its grader."
            )
        checked = self._check(run, user, provided)
        self._require_journal(run)
        return PlannedRetry(run, planned, failed, no_reward, missing, checked, budget)

    def reopen(self, planned: PlannedRetry, *, by: str) -> DbRun:
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
            scored = _scored(session, run.id)
            run.status = "pending"
            run.error = run.completed_at = run.stop_requested_at = None
            run.dataset_id, run.rollout_id = checked.dataset.id, checked.rollout_id
            run.creator_id = checked.submission.user.id
            run.secret_scopes = dict(checked.scopes)
            run.sealed_secrets = seal_secrets(self._vault, run.id, checked.request.provided)
            run.progress = {"completed": planned.planned - planned.count, "total": planned.planned}
            run.results = {key: value for key, value in (run.results or {}).items() if key != "ending"}
            run.metrics = {**(run.metrics or {}), "earlier_ms": (run.metrics or {}).get("duration_ms", 0)}
            if planned.budget:
                run.request = _with_budget(run.request, planned.budget)
            run.revision += 1
            run.retried_at = self._clock.now()
            run.reopened_at = run.accepted
            rows, n = len(checked.rows.rows()), read_eval_request(run.request).evaluation.n
            attempts = ((row, number) for row in range(rows) for number in range(n))
            self._queue.add(session, run, [attempt for attempt in attempts if attempt not in scored])
            verb = "runs" if planned.count == 1 else "run"
            message = f"{by} retried the run: {amount(planned.count, 'attempt')} without a score {verb} again"
            self._logs.add(session, run.id, [LogLine(message, step="run")])
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
        experiment = {**run.request["experiment_config"], "commit_sha": run.commit_sha}
        experiment.pop("branch", None)
        body = {**run.request, "experiment_config": experiment}
        if provided:
            body["secrets"] = {**(body.get("secrets") or {}), "provided": dict(provided)}
        checked = self._submitter.check(RunSubmission("eval", run.workspace_id, repository, owner, body))
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


def _scored(session: Session, run_id: str) -> set[tuple[int, int]]:
    """Return row and number of the attempts that are not repeated."""
    mine = select(DbSample.row_index, DbSample.run_index).where(DbSample.run_id == run_id, ~_UNSCORED)
    return {(row, number) for row, number in session.execute(mine)}


def _require_ended(run: DbRun) -> None:
    if run.status in OPEN:
        raise _impossible(run, f"it is {run.status}", f"wait for it with `osmosis eval watch {run.name}`")


def _impossible(run: DbRun, why: str, hint: str) -> ConflictError:
    return ConflictError(f"the evaluation run '{run.name}' cannot be retried: {why}.", hint=hint)


def _with_budget(request: Mapping[str, Any], budget: Mapping[str, float]) -> dict[str, Any]:
    """Return the request of a run with another budget."""
    advanced = request.get("advanced_config") or {}
    known = (advanced.get(EXECUTION) or {}).items()
    kept = {key: value for key, value in known if key not in ("max_cost", "max_tokens")}
    return {**request, "advanced_config": {**advanced, EXECUTION: {**kept, **budget}}}
