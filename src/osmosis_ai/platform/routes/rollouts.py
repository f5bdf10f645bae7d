"""Rollouts of a connected repository, synced when they are listed, and remote agents.

Every member of a workspace may register, list, probe and remove its agents.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import Depends, Query
from starlette.concurrency import run_in_threadpool

from osmosis_ai.api.models import rollouts as wire
from osmosis_ai.controller.remote_agents import AgentAddress
from osmosis_ai.platform.db.tables import DbRolloutServer
from osmosis_ai.platform.gitsync.git import GitError
from osmosis_ai.platform.http.authentication import (
    Authenticated,
    GitHeader,
    Scope,
    Services,
    WorkspaceHeader,
    WorkspaceScope,
    resolve_scope,
)
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.http.routing import PageParams, Paging, api_router
from osmosis_ai.platform.services import PlatformServices

router = api_router("/api/cli")

# Clients time out after 30 s. A longer sync continues, and the next list shows its result.
SYNC_WAIT_S = 20.0


@router.get("/rollouts")
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
    more: dict[str, Any] = {"repo_full_name": scope.repository.identity}
    if branch:
        try:
            on_branch, sha = services.rollouts.on_branch(scope.repository, branch)
        except GitError as error:
            raise _not_synced(problem or error.message) from error
        shown, total = on_branch[page.offset : page.offset + page.limit], len(on_branch)
        more |= {"is_active": True, "last_synced_commit_sha": sha}
    else:
        found = services.rollouts.page(scope.repository.id, limit=page.limit, offset=page.offset)
        shown, total = found.items, found.counts["total"]
    if problem and not total:
        raise _not_synced(problem)
    listed = wire.RolloutList(
        rollouts=[wire.Rollout.of(rollout, **more) for rollout in shown], **page.keys(total, len(shown))
    )
    if problem:
        listed.sync_error = problem
    return listed


def _not_synced(problem: str) -> ApiError:
    # The failure is neither this server's nor the request's.
    return ApiError(424, "GIT_SYNC_FAILED", problem)


# -- remote agents -------------------------------------------------------------------------------------


def _workspace_id(
    services: Services, principal: Authenticated, git: GitHeader = None, workspace: WorkspaceHeader = None
) -> str:
    """Return the named workspace, or the token's if no connected repository is named (a dependency)."""
    if (git or "").strip() or workspace:
        try:
            with services.db.session() as session:
                return resolve_scope(session, principal, git, workspace).workspace_id
        except ApiError as error:
            # An agent may be served from a repository that the platform does not know.
            if error.status != 404:
                raise
    own = services.workspaces.of_user(principal.user.id, principal.token.workspace_id)
    if not own:
        raise ApiError(403, "WORKSPACE_ACCESS_DENIED", "you are not a member of the workspace of this token.")
    if len(own) > 1:
        raise ApiError(
            400,
            "WORKSPACE_REQUIRED",
            "you are a member of several workspaces; run the command in a checkout of a repository that is connected "
            "to one of them.",
        )
    return own[0][0].id


ServerWorkspace = Annotated[str, Depends(_workspace_id)]


@router.post("/rollout-server/register")
def register(
    services: Services,
    principal: Authenticated,
    workspace_id: ServerWorkspace,
    body: wire.RolloutServerRegistration,
) -> wire.RegisteredRolloutServer:
    """Register a served agent, and return the result of a probe. Replaces an agent of the same name."""
    server, health = services.rollout_servers.register(
        workspace_id,
        principal.user.id,
        name=body.agent_loop_name,
        address=AgentAddress(body.host, body.port, body.api_key),
    )
    return _probed(server, health)


@router.get("/rollout-servers")
def list_servers(services: Services, workspace_id: ServerWorkspace, page: Paging) -> wire.RolloutServerList:
    """List the served agents of the workspace."""
    found = services.rollout_servers.page(workspace_id, limit=page.limit, offset=page.offset)
    return wire.RolloutServerList(
        rollout_servers=[
            wire.ListedRolloutServer.of(server, has_key=server.sealed is not None) for server in found.items
        ],
        **page.keys(found.counts["total"], len(found.items)),
    )


@router.post("/rollout-servers/{name}/probe")
def probe(services: Services, workspace_id: ServerWorkspace, name: str) -> wire.RegisteredRolloutServer:
    """Probe a served agent."""
    return _probed(*services.rollout_servers.probe(workspace_id, name))


@router.delete("/rollout-servers/{name}")
def remove(services: Services, workspace_id: ServerWorkspace, name: str) -> dict[str, Any]:
    """Remove a served agent."""
    services.rollout_servers.remove(workspace_id, name)
    return {}


def _probed(server: DbRolloutServer, health: wire.HealthCheckResult) -> wire.RegisteredRolloutServer:
    return wire.RegisteredRolloutServer.of(server, health_check_result=health)
