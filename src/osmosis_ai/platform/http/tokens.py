"""Who a token is, and its end."""

from __future__ import annotations

from typing import Any

from osmosis_ai.api.wire import auth as wire
from osmosis_ai.platform.accounts import Principal
from osmosis_ai.platform.db.tables import User
from osmosis_ai.platform.http.authentication import Authenticated, GitHeader, Services, resolve_scope
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.http.routing import api_router
from osmosis_ai.platform.services import PlatformServices

router = api_router("/api/cli")


@router.get("/verify")
def verify(services: Services, principal: Authenticated, git: GitHeader = None) -> wire.Verification:
    """Tell who the token belongs to, and in which workspace the repository of the header is."""
    known: dict[str, Any] = {"user": wire_user(principal.user), "token_id": principal.token.id, "valid": True}
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


def wire_user(user: User) -> wire.User:
    """Return how a user is told to clients."""
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
