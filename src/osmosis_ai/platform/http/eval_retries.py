"""Retries of evaluation runs: what one would repeat, and the retry itself."""

from __future__ import annotations

import asyncio

from osmosis_ai.api.wire import eval_runs as wire
from osmosis_ai.api.wire.base import Named
from osmosis_ai.api.wire.runs import EvalRetry, SubmittedRun
from osmosis_ai.platform.http import runs
from osmosis_ai.platform.http.authentication import Scope, Services, WorkspaceScope
from osmosis_ai.platform.http.routing import api_router
from osmosis_ai.platform.runs.submit.retrying import PlannedRetry
from osmosis_ai.platform.services import PlatformServices

router = api_router("/api/cli/eval-runs")


@router.post("/{name_or_id}/retry/check")
async def check_retry(
    services: Services, scope: WorkspaceScope, name_or_id: str, again: EvalRetry
) -> wire.RetryCheck:
    """Tell what a retry of a run would repeat, or why there is none, and change nothing."""
    planning = services.submitter.in_thread(lambda: plan_retry(services, scope, name_or_id, again))
    with runs.refusals(services, scope):
        planned = await asyncio.wrap_future(planning)
    run, left = planned.run, planned.left
    return wire.RetryCheck(
        eval_run=Named(id=run.id, name=run.name),
        samples=left.count,
        planned=planned.planned,
        failed=dict(left.failed),
        no_reward=left.no_reward,
        missing=left.missing,
        commit_sha=run.commit_sha,
        resolved_secret_scopes=dict(planned.checked.scopes),
    )


@router.post("/{name_or_id}/retry")
async def retry(services: Services, scope: WorkspaceScope, name_or_id: str, again: EvalRetry) -> SubmittedRun:
    """Reopen a run: its failed and unscored attempts run again, on the same commit and rows."""
    reopening = services.submitter.in_thread(
        lambda: services.eval_retries.reopen(
            plan_retry(services, scope, name_or_id, again), by=scope.user.email
        )
    )
    with runs.refusals(services, scope):
        return runs.submitted(services, scope, await asyncio.wrap_future(reopening))


def plan_retry(services: PlatformServices, scope: Scope, name_or_id: str, again: EvalRetry) -> PlannedRetry:
    """Find out what a retry of a run would repeat."""
    run = services.eval_runs.get(scope.workspace_id, name_or_id).run
    provided = again.secrets.provided if again.secrets is not None else {}
    budget = again.model_dump(include={"max_cost", "max_tokens"}, exclude_none=True)
    return services.eval_retries.plan(run, scope.user, provided, budget)
