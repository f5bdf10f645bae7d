"""The user of a token: verifying and revoking it, the device flow (RFC 8628), workspaces, and the quickstart."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from fastapi import Request

from osmosis_ai.api.models import auth as wire
from osmosis_ai.platform.accounts import Principal
from osmosis_ai.platform.db.tables import DbRepository, DbWorkspace
from osmosis_ai.platform.http.authentication import Authenticated, GitHeader, Services, resolve_scope
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.http.routing import api_router, client_address
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.sign_in import LIFETIME, PollRefused
from osmosis_ai.platform.workspaces import Role

router = api_router("/api/cli")


@router.get("/workspaces")
def list_workspaces(services: Services, principal: Authenticated) -> wire.WorkspaceList:
    """List the workspaces the user is a member of."""
    return wire.WorkspaceList(
        workspaces=[
            wire.Workspace.of(
                workspace,
                role=role,
                has_billing_setup=True,
                connected_repo=wire.ConnectedRepository.of(first, repo_full_name=first.identity)
                if (first := next(iter(repositories), None))
                else None,
            )
            for workspace, role, repositories in _workspaces(services, principal)
        ]
    )


@router.get("/quickstart")
def quickstart(services: Services, principal: Authenticated, organizationId: str) -> wire.QuickstartStatus:
    """Return the user's quickstart progress in a workspace. Billing is always reported as ready."""
    repositories = _repositories_of(services, principal, organizationId)
    intent = services.workspaces.quickstart_intent(organizationId, principal.user.id)
    repo = wire.QuickstartRepository(connected=False, full_name=None, clone_url=None)
    if repositories:
        repo = wire.QuickstartRepository.of(
            repositories[0], connected=True, full_name=repositories[0].identity
        )
    return wire.QuickstartStatus(repo=repo, billing_ready=True, completed=intent is not None)


@router.post("/quickstart")
def choose_quickstart(
    services: Services, principal: Authenticated, choice: wire.QuickstartChoice
) -> wire.QuickstartRecorded:
    """Record the user's quickstart choice."""
    _repositories_of(services, principal, choice.organizationId)
    services.workspaces.record_quickstart(choice.organizationId, principal.user.id, choice.intent)
    return wire.QuickstartRecorded(completed=True)


@router.get("/verify")
def verify(services: Services, principal: Authenticated, git: GitHeader = None) -> wire.Verification:
    """Return the token's user, and the workspace of the repository in the header."""
    workspace = None
    with suppress(ApiError), services.db.session() as session:
        scope = resolve_scope(session, principal, git)
        workspace = wire.WorkspaceMembership.of(scope.workspace, role=scope.role)
    mine = (
        wire.WorkspaceMembership.of(each, role=role) for each, role, _ in _workspaces(services, principal)
    )
    return wire.Verification.of(
        principal.token,
        nulls=False,
        user=wire.User.of(principal.user),
        token_id=principal.token.id,
        valid=True,
        workspace=workspace,
        organization=workspace or next(mine, None),
    )


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
    return wire.DeviceAuthorization.of(
        login,
        device_code=device_code,
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
    token, user = granted.token, wire.User.of(granted.user)
    return wire.IssuedToken.of(token, nulls=False, token=plain, token_id=token.id, user=user)


def _workspaces(
    services: PlatformServices, principal: Principal
) -> list[tuple[DbWorkspace, Role, list[DbRepository]]]:
    return services.workspaces.of_user(principal.user.id, principal.token.workspace_id)


def _repositories_of(
    services: PlatformServices, principal: Principal, workspace_id: str
) -> list[DbRepository]:
    for workspace, _, repositories in _workspaces(services, principal):
        if workspace.id == workspace_id:
            return repositories
    raise ApiError(404, "WORKSPACE_NOT_FOUND", f"you are not a member of the workspace '{workspace_id}'.")
