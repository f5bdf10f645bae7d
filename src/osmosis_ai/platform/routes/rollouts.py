"""Rollouts of a connected repository, synced when they are listed."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import Query
from starlette.concurrency import run_in_threadpool

from osmosis_ai.api.models import rollouts as wire
from osmosis_ai.platform.db.tables import DbRepository
from osmosis_ai.platform.gitsync.git import GitError
from osmosis_ai.platform.http.authentication import Scope, Services, WorkspaceScope
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.http.paging import PageParams, Paging
from osmosis_ai.platform.http.routing import api_router
from osmosis_ai.platform.rollouts import RolloutAt
from osmosis_ai.platform.services import PlatformServices

router = api_router("/api/cli/rollouts")

# Clients time out after 30 s. A longer sync continues, and the next list shows its result.
SYNC_WAIT_S = 20.0


@router.get("")
async def list_rollouts(
    services: Services,
    scope: WorkspaceScope,
    page: Paging,
    branch: Annotated[str | None, Query(max_length=255, description="Default: the default branch.")] = None,
) -> wire.RolloutList:
    """List the rollouts of the repository on its default branch or another one."""
    problem = await _sync(services, scope.repository.id)
    return await run_in_threadpool(_list, services, scope, page, branch, problem)


async def _sync(services: PlatformServices, repository_id: str) -> str | None:
    """Wait for a sync; return why the list may be out of date."""
    syncing = asyncio.wrap_future(services.rollouts.start_sync(repository_id))
    done, _ = await asyncio.wait({syncing}, timeout=SYNC_WAIT_S)
    if done:
        return syncing.result().sync_error
    return "the repository is still being fetched; list again in a moment."


def _list(
    services: PlatformServices, scope: Scope, page: PageParams, branch: str | None, problem: str | None
) -> wire.RolloutList:
    if branch:
        try:
            on_branch = services.rollouts.on_branch(scope.repository, branch)
        except GitError as error:
            raise _not_synced(problem or error.message) from error
        shown, total = on_branch[page.offset : page.offset + page.limit], len(on_branch)
    else:
        shown, total = services.rollouts.page(scope.repository.id, limit=page.limit, offset=page.offset)
    if problem and not total:
        raise _not_synced(problem)
    listed = wire.RolloutList(
        rollouts=[_wire_rollout(rollout, scope.repository) for rollout in shown],
        **page.keys(total, len(shown)),
    )
    if problem:
        listed.sync_error = problem
    return listed


def _not_synced(problem: str) -> ApiError:
    # The failure is neither this server's nor the request's.
    return ApiError(424, "GIT_SYNC_FAILED", problem)


def _wire_rollout(rollout: RolloutAt, repository: DbRepository) -> wire.Rollout:
    row = rollout.row
    return wire.Rollout(
        id=row.id,
        name=row.name,
        description=row.description,
        is_active=rollout.active,
        last_synced_commit_sha=rollout.sha,
        last_synced_at=row.last_synced_at,
        repo_full_name=repository.identity,
        created_at=row.created_at,
    )
