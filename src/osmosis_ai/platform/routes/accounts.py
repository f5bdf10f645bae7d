"""The user of a token: verifying and revoking it, the device flow (RFC 8628), workspaces, and the quickstart."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from osmosis_ai.api.models import auth as wire
from osmosis_ai.api.models.quickstart import (
    QuickstartChoice,
    QuickstartRecorded,
    QuickstartRepository,
    QuickstartStatus,
)
from osmosis_ai.platform.accounts import Principal
from osmosis_ai.platform.db.tables import DbRepository, DbUser, DbWorkspace
from osmosis_ai.platform.http.addresses import client_address
from osmosis_ai.platform.http.authentication import Authenticated, GitHeader, Services, resolve_scope
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.http.routing import api_router
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.sign_in import LIFETIME, PollRefused
from osmosis_ai.platform.workspaces import Role

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
            for workspace, role, repositories in _workspaces_of(services, principal)
        ]
    )


@router.get("/quickstart")
def quickstart(services: Services, principal: Authenticated, organizationId: str) -> QuickstartStatus:
    """Return the user's quickstart progress in a workspace. Billing is always reported as ready."""
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
    """Record the user's quickstart choice."""
    _repositories_of(services, principal, choice.organizationId)
    services.workspaces.record_quickstart(choice.organizationId, principal.user.id, choice.intent)
    return QuickstartRecorded(completed=True)


@router.get("/verify")
def verify(services: Services, principal: Authenticated, git: GitHeader = None) -> wire.Verification:
    """Return the token's user, and the workspace of the repository in the header."""
    known: dict[str, Any] = {
        "user": _wire_user(principal.user),
        "token_id": principal.token.id,
        "valid": True,
    }
    if principal.token.expires_at is not None:
        known["expires_at"] = principal.token.expires_at
    workspace = _workspace_of_header(services, principal, git)
    organization = workspace or _first_workspace(services, principal)
    if workspace is not None:
        known["workspace"] = workspace
    if organization is not None:
        known["organization"] = organization
    return wire.Verification(**known)


@router.delete("/tokens/{token_id}")
def revoke_token(services: Services, principal: Authenticated, token_id: str) -> dict[str, Any]:
    """Revoke one of the user's own tokens; a token of one workspace revokes only tokens of that workspace."""
    services.accounts.revoke_token(token_id, by=principal)
    return {}


@router.post("/device/authorize")
def authorize_device(
    request: Request, services: Services, body: wire.DeviceAuthorizeRequest
) -> wire.DeviceAuthorization:
    """Start a device login. Returns a secret for the device and a short code for the user."""
    login, device_code = services.device_logins.start(body.deviceName, source=client_address(request))
    page = f"{services.config.base_url}/device"
    return wire.DeviceAuthorization(
        device_code=device_code,
        user_code=login.user_code,
        verification_uri=page,
        verification_uri_complete=f"{page}?code={login.user_code}",
        expires_in=LIFETIME.total_seconds(),
        interval=login.interval_s,
    )


@router.post("/device/token")
def poll_device(services: Services, body: wire.DeviceTokenRequest) -> wire.IssuedToken:
    """Return the token after the login has been approved. Each login returns its token once."""
    try:
        granted, plain = services.device_logins.poll(body.device_code)
    except PollRefused as refused:
        # Clients expect the bare codes of RFC 8628.
        raise ApiError(400, refused.code.upper(), refused.code) from None
    expiry = {} if granted.token.expires_at is None else {"expires_at": granted.token.expires_at}
    return wire.IssuedToken(token=plain, token_id=granted.token.id, user=_wire_user(granted.user), **expiry)


def _wire_user(user: DbUser) -> wire.User:
    return wire.User(id=user.id, email=user.email, name=user.name)


def _workspace_of_header(
    services: PlatformServices, principal: Principal, git: str | None
) -> wire.WorkspaceMembership | None:
    try:
        with services.db.session() as session:
            scope = resolve_scope(session, principal, git)
    except ApiError:
        return None
    return wire.WorkspaceMembership(id=scope.workspace.id, name=scope.workspace.name, role=scope.role)


def _first_workspace(services: PlatformServices, principal: Principal) -> wire.WorkspaceMembership | None:
    for workspace, role, _ in _workspaces_of(services, principal):
        return wire.WorkspaceMembership(id=workspace.id, name=workspace.name, role=role)
    return None


def _workspaces_of(
    services: PlatformServices, principal: Principal
) -> list[tuple[DbWorkspace, Role, list[DbRepository]]]:
    """Return the user's workspaces that the token gives access to."""
    found = services.workspaces.of_user(principal.user.id)
    return [each for each in found if principal.token.workspace_id in (None, each[0].id)]


def _repositories_of(
    services: PlatformServices, principal: Principal, workspace_id: str
) -> list[DbRepository]:
    for workspace, _, repositories in _workspaces_of(services, principal):
        if workspace.id == workspace_id:
            return repositories
    raise ApiError(404, "WORKSPACE_NOT_FOUND", f"you are not a member of the workspace '{workspace_id}'.")


def _wire_repository(repositories: list[DbRepository]) -> wire.ConnectedRepository | None:
    if not repositories:
        return None
    return wire.ConnectedRepository(id=repositories[0].id, repo_full_name=repositories[0].identity)
