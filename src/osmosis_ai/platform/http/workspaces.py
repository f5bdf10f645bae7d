"""The workspaces of a user, and the first steps in one."""

from __future__ import annotations

from osmosis_ai.api.wire import auth as wire
from osmosis_ai.api.wire.quickstart import (
    QuickstartChoice,
    QuickstartRecorded,
    QuickstartRepository,
    QuickstartStatus,
)
from osmosis_ai.platform.accounts import Principal
from osmosis_ai.platform.db.tables import DbRepository
from osmosis_ai.platform.http.authentication import Authenticated, Services
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.http.routing import api_router
from osmosis_ai.platform.services import PlatformServices

router = api_router("/api/cli")


@router.get("/workspaces")
def list_workspaces(services: Services, principal: Authenticated) -> wire.WorkspaceList:
    """List the workspaces the user is a member of."""
    return wire.WorkspaceList(
        workspaces=[
            wire.Workspace(
                id=workspace.id,
                name=workspace.name,
                role=role,
                has_billing_setup=True,
                connected_repo=_wire_repository(repositories),
            )
            for workspace, role, repositories in services.workspaces.of_user(principal.user.id)
            if principal.token.workspace_id in (None, workspace.id)
        ]
    )


@router.get("/quickstart")
def quickstart(services: Services, principal: Authenticated, organizationId: str) -> QuickstartStatus:
    """Tell how far the user's first steps in a workspace have got; there is nothing to pay for."""
    repositories = _repositories_of(services, principal, organizationId)
    first = repositories[0] if repositories else None
    intent = services.workspaces.quickstart_intent(organizationId, principal.user.id)
    return QuickstartStatus(
        repo=QuickstartRepository(
            connected=first is not None,
            full_name=first.identity if first is not None else None,
            clone_url=first.clone_url if first is not None else None,
        ),
        billing_ready=True,
        completed=intent is not None,
    )


@router.post("/quickstart")
def choose_quickstart(
    services: Services, principal: Authenticated, choice: QuickstartChoice
) -> QuickstartRecorded:
    """Take note of what the user is about to do; asking again changes nothing but that."""
    _repositories_of(services, principal, choice.organizationId)
    services.workspaces.record_quickstart(choice.organizationId, principal.user.id, choice.intent)
    return QuickstartRecorded(completed=True)


def _repositories_of(
    services: PlatformServices, principal: Principal, workspace_id: str
) -> list[DbRepository]:
    for workspace, _, repositories in services.workspaces.of_user(principal.user.id):
        if workspace.id == workspace_id:
            return repositories
    raise ApiError(404, "WORKSPACE_NOT_FOUND", f"you are not a member of a workspace '{workspace_id}'.")


def _wire_repository(repositories: list[DbRepository]) -> wire.ConnectedRepository | None:
    if not repositories:
        return None
    return wire.ConnectedRepository(id=repositories[0].id, repo_full_name=repositories[0].identity)
