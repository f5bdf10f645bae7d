"""A token: who it is, its end, and how a terminal gets one by the two calls of the device flow (RFC 8628)."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from osmosis_ai.api.wire import auth as wire
from osmosis_ai.platform.accounts import Principal
from osmosis_ai.platform.db.tables import DbUser
from osmosis_ai.platform.device_logins import PollRefused
from osmosis_ai.platform.http.authentication import Authenticated, GitHeader, Services, resolve_scope
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.http.page_shell import source_of
from osmosis_ai.platform.http.routing import api_router
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.sign_in import network_of

router = api_router("/api/cli")


@router.get("/verify")
def verify(services: Services, principal: Authenticated, git: GitHeader = None) -> wire.Verification:
    """Tell who the token belongs to, and in which workspace the repository of the header is."""
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
    """Revoke one of the user's own tokens, usually the very one that asks."""
    services.accounts.revoke_token(token_id, user_id=principal.user.id)
    return {}


@router.post("/device/authorize")
def authorize_device(
    request: Request, services: Services, body: wire.DeviceAuthorizeRequest
) -> wire.DeviceAuthorization:
    """Begin a login: a secret for the device, a short code for the person."""
    started = services.device_logins.start(body.deviceName, source=network_of(source_of(request)))
    page = f"{services.config.base_url}/device"
    return wire.DeviceAuthorization(
        device_code=started.device_code,
        user_code=started.user_code,
        verification_uri=page,
        verification_uri_complete=f"{page}?code={started.user_code}",
        expires_in=started.expires_in_s,
        interval=started.interval_s,
    )


@router.post("/device/token")
def poll_device(services: Services, body: wire.DeviceTokenRequest) -> wire.IssuedToken:
    """Give out the token when somebody has approved the login; once."""
    try:
        granted = services.device_logins.poll(body.device_code)
    except PollRefused as refused:
        # Clients look for the bare words of RFC 8628.
        raise ApiError(400, refused.code.upper(), refused.code) from None
    told = {} if granted.token.expires_at is None else {"expires_at": granted.token.expires_at}
    return wire.IssuedToken(
        token=granted.plain, token_id=granted.token.id, user=_wire_user(granted.user), **told
    )


def _wire_user(user: DbUser) -> wire.User:
    """Return a user in wire format."""
    return wire.User(id=user.id, email=user.email, name=user.name)


def _workspace_of_header(
    services: PlatformServices, principal: Principal, git: str | None
) -> wire.WorkspaceMembership | None:
    """A repository that gives no workspace is not an error here: the token is good all the same."""
    try:
        with services.db.session() as session:
            scope = resolve_scope(session, principal, git)
    except ApiError:
        return None
    return wire.WorkspaceMembership(id=scope.workspace.id, name=scope.workspace.name, role=scope.role)


def _first_workspace(services: PlatformServices, principal: Principal) -> wire.WorkspaceMembership | None:
    for workspace, role, _ in services.workspaces.of_user(principal.user.id):
        if principal.token.workspace_id in (None, workspace.id):
            return wire.WorkspaceMembership(id=workspace.id, name=workspace.name, role=role)
    return None
