"""Served agents on other machines. Every member of a workspace may register, list, probe and remove them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends

from osmosis_ai.api.models import rollout_servers as wire
from osmosis_ai.controller.remote_agents import AgentAddress
from osmosis_ai.platform.db.tables import DbRolloutServer
from osmosis_ai.platform.http.authentication import (
    Authenticated,
    GitHeader,
    Services,
    resolve_scope,
)
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.http.paging import Paging
from osmosis_ai.platform.http.routing import api_router

router = api_router("/api/cli")


def _workspace_id(services: Services, principal: Authenticated, git: GitHeader = None) -> str:
    """Return the repository's workspace, or the token's if no connected repository is named (a dependency)."""
    if git is not None and git.strip():
        try:
            with services.db.session() as session:
                return resolve_scope(session, principal, git).workspace_id
        except ApiError as error:
            # An agent may be served from a repository that the platform does not know.
            if error.status != 404:
                raise
    own = [workspace.id for workspace, _, _ in services.workspaces.of_user(principal.user.id)]
    wanted = principal.token.workspace_id
    if wanted is not None:
        own = [workspace_id for workspace_id in own if workspace_id == wanted]
    if not own:
        raise ApiError(403, "WORKSPACE_ACCESS_DENIED", "you are not a member of the workspace of this token.")
    if len(own) > 1:
        raise ApiError(
            400,
            "WORKSPACE_REQUIRED",
            "you are a member of several workspaces; run the command in a checkout of a repository that is connected "
            "to one of them.",
        )
    return own[0]


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
    listed, total = services.rollout_servers.page(workspace_id, limit=page.limit, offset=page.offset)
    return wire.RolloutServerList(
        rollout_servers=[_wire_server(server, creator) for server, creator in listed],
        **page.keys(total, len(listed)),
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
    return wire.RegisteredRolloutServer(
        id=server.id, status=server.status, health_check_result=health, name=server.name
    )


def _wire_server(server: DbRolloutServer, creator_name: str | None) -> wire.ListedRolloutServer:
    return wire.ListedRolloutServer(
        id=server.id,
        name=server.name,
        host=server.host,
        port=server.port,
        status=server.status,
        has_key=server.sealed is not None,
        error=server.error,
        probed_at=server.probed_at,
        created_at=server.created_at,
        updated_at=server.updated_at,
        creator_name=creator_name,
    )
