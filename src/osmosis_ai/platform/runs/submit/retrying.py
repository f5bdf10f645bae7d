"""Retry an evaluation's failed and unscored attempts in a new run.

The retry uses the commit, rows and seeds of its original, whatever has changed in the branch and dataset, so
that both can be read as one evaluation (``read.merging``). If these are no longer available, the retry is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from osmosis_ai.errors import ConflictError
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRepository, DbRun, DbUser
from osmosis_ai.platform.runs.read.merging import (
    RunFamily,
    Unscored,
    family_of,
    require_ended,
    unscored_items,
)
from osmosis_ai.platform.runs.submit.eval_request import read_eval_request
from osmosis_ai.platform.runs.submit.row_selection import RowSelection
from osmosis_ai.platform.runs.submit.submitter import (
    CheckedSubmission,
    RetryOf,
    RunSubmission,
    RunSubmitter,
)


@dataclass(frozen=True)
class PlannedRetry:
    """A retry that nothing is wrong with."""

    family: RunFamily
    left: Unscored
    checked: CheckedSubmission


class EvalRetries:
    """Makes retries."""

    def __init__(self, db: Database, submitter: RunSubmitter) -> None:
        self._db = db
        self._submitter = submitter

    def plan(self, run: DbRun, user: DbUser, provided: Mapping[str, str]) -> PlannedRetry:
        """Find out what a retry would make, and whether it can; blocks as a submit does."""
        if run.imported is not None:
            raise ConflictError(
                f"the evaluation run '{run.name}' was imported: the platform did not execute it, and cannot retry it.",
                hint="retry it where it ran with `osmosis eval run CONFIG --retry-failed`; then delete "
                f"this one (`osmosis eval delete {run.name}`) and upload that",
            )
        family = family_of(self._db, run)
        require_ended(family)
        left = unscored_items(self._db, family)
        if not left.items:
            raise ConflictError(
                f"the evaluation run '{family.original.name}' has nothing to retry: every sample has a score or was "
                "skipped by its grader."
            )
        return PlannedRetry(family, left, self._check(family.original, left, user, provided))

    def _check(
        self, original: DbRun, left: Unscored, user: DbUser, provided: Mapping[str, str]
    ) -> CheckedSubmission:
        body = _body(original, provided)
        repository = self._repository(original)
        checked = self._submitter.check(RunSubmission("eval", original.workspace_id, repository, user, body))
        rows = RowSelection.read(original.selection or {})
        if checked.dataset.sha256 != rows.sha256:
            raise ConflictError(
                f"the evaluation run '{original.name}' cannot be retried: the dataset '{original.dataset_name}' was "
                "replaced since, and its rows are others.",
                hint=f"evaluate it again with `osmosis eval resubmit {original.name}`",
            )
        # As it was written: only the code is pinned, to the commit that was resolved then.
        request = replace(read_eval_request(original.request), provided=dict(provided))
        return replace(checked, request=request, rows=rows, retry=RetryOf(original, left.items))

    def _repository(self, original: DbRun) -> DbRepository:
        with self._db.session() as session:
            found = session.get(DbRepository, original.repository_id) if original.repository_id else None
        if found is None:
            raise ConflictError(
                f"the evaluation run '{original.name}' cannot be retried: its repository is not connected any more.",
                hint="connect it with `osmosis platform connect`, then use `osmosis eval resubmit`",
            )
        return found


def _body(original: DbRun, provided: Mapping[str, str]) -> dict[str, Any]:
    """Return the submit of the run with its commit pinned."""
    experiment = {**original.request["experiment_config"], "commit_sha": original.commit_sha}
    experiment.pop("branch", None)
    body = {**original.request, "experiment_config": experiment}
    if provided:
        body["secrets"] = {**(body.get("secrets") or {}), "provided": dict(provided)}
    return body
