"""Retries of evaluation runs: what one would make, the retry itself, and the numbers of all together."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

from osmosis_ai.api.wire import eval_runs as wire
from osmosis_ai.api.wire.runs import RunAgain, SubmittedRun
from osmosis_ai.platform.http import runs
from osmosis_ai.platform.http.authentication import Scope, Services, WorkspaceScope
from osmosis_ai.platform.http.routing import api_router
from osmosis_ai.platform.runs.eval_results import rows_of
from osmosis_ai.platform.runs.read.merging import family_of, merge
from osmosis_ai.platform.runs.submit.retrying import PlannedRetry
from osmosis_ai.platform.services import PlatformServices

router = api_router("/api/cli/eval-runs")


@router.post("/{name_or_id}/retry/check")
async def check_retry(
    services: Services, scope: WorkspaceScope, name_or_id: str, again: RunAgain
) -> wire.RetryCheck:
    """Tell what a retry of a run would make, or why there is none, and make no run."""
    planning = services.submitter.in_thread(lambda: plan_retry(services, scope, name_or_id, again))
    with runs.refusals(services, scope):
        planned = await asyncio.wrap_future(planning)
    original, left = planned.family.original, planned.left
    return wire.RetryCheck(
        eval_run=wire.RelatedRun(id=original.id, name=original.name, status=original.status),
        samples=len(left.items),
        planned=planned.family.planned,
        failed=dict(left.failed),
        no_reward=left.no_reward,
        missing=left.missing,
        commit_sha=original.commit_sha,
        resolved_secret_scopes=dict(planned.checked.scopes),
    )


@router.post("/{name_or_id}/retry")
async def retry(services: Services, scope: WorkspaceScope, name_or_id: str, again: RunAgain) -> SubmittedRun:
    """Submit a run that makes the failed and unscored samples of another one again, on the same commit and rows."""
    submitting = services.submitter.in_thread(
        lambda: services.submitter.create(plan_retry(services, scope, name_or_id, again).checked)
    )
    with runs.refusals(services, scope):
        return runs.submitted(services, scope, await asyncio.wrap_future(submitting))


@router.get("/{name_or_id}/merged")
def merged(services: Services, scope: WorkspaceScope, name_or_id: str) -> wire.MergedEvaluation:
    """Return the numbers of a run and its retries together: of each sample the newest result counts."""
    family = family_of(services.db, services.eval_runs.get(scope.workspace_id, name_or_id).run)
    found, rows = merge(services.db, services.blobs, family), rows_of(family.original)
    return wire.MergedEvaluation(
        runs=[
            wire.MergedRun(id=run.id, name=run.name, status=run.status, samples=found.counted[run.id])
            for run in family.runs
        ],
        estimates=found.estimates.model_dump(mode="json"),
        rows_drawn=asdict(rows) if rows is not None else None,
    )


def plan_retry(services: PlatformServices, scope: Scope, name_or_id: str, again: RunAgain) -> PlannedRetry:
    """Find out what a retry of a run would make."""
    run = services.eval_runs.get(scope.workspace_id, name_or_id).run
    provided = again.secrets.provided if again.secrets is not None else {}
    return services.eval_retries.plan(run, scope.user, provided)
