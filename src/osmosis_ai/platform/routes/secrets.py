"""Environment secrets: list, set and delete them. No reply contains a value."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query

from osmosis_ai.api.models import secrets as wire
from osmosis_ai.platform.http.authentication import Scope, Services, WorkspaceScope
from osmosis_ai.platform.http.routing import Paging, api_router, page_url
from osmosis_ai.platform.secrets import SECRET_SCOPES, SecretScope

router = api_router("/api/cli/environment-secrets")


class SetRequest(wire.SecretSetRequest):
    """A secret to be stored."""

    scope: SecretScope


class DeleteRequest(wire.SecretDeleteRequest):
    """A secret to be deleted."""

    scope: SecretScope


@router.get("")
def list_secrets(
    services: Services,
    scope: WorkspaceScope,
    page: Paging,
    scope_filter: Annotated[Literal["all", "workspace", "user"], Query(alias="scope")] = "all",
) -> wire.SecretList:
    """List the workspace's secrets and the caller's own."""
    scopes = SECRET_SCOPES if scope_filter == "all" else (scope_filter,)
    found = services.secrets.page(
        scope.workspace_id, scope.user.id, scopes, limit=page.limit, offset=page.offset
    )
    return wire.SecretList(
        environment_secrets=list(map(wire.Secret.of, found.items)),
        platform_url=page_url(services, scope.workspace, "secrets"),
        **page.keys(found.counts["total"], len(found.items)),
    )


@router.get("/audit")
def list_handouts(services: Services, scope: WorkspaceScope, page: Paging) -> wire.SecretHandoutList:
    """List the secret access log: which workers received which secrets, by name, newest first."""
    found = services.secrets.accesses(scope.workspace_id, limit=page.limit, offset=page.offset)
    return wire.SecretHandoutList(
        handouts=[wire.SecretHandout.of(row, handed_at=row.created_at) for row in found.items],
        platform_url=page_url(services, scope.workspace, "secrets"),
        **page.keys(found.counts["total"], len(found.items)),
    )


@router.post("")
def set_secret(services: Services, scope: WorkspaceScope, request: SetRequest) -> wire.Secret:
    """Store a secret or replace its value. Only an admin or owner can set a workspace secret."""
    _require_write_access(scope, request.scope)
    stored = services.secrets.put(
        scope.workspace_id, scope.user.id, request.name, request.value, request.scope
    )
    return wire.Secret.of(stored, platform_url=page_url(services, scope.workspace, "secrets"))


@router.delete("")
def delete_secret(services: Services, scope: WorkspaceScope, request: DeleteRequest) -> dict[str, Any]:
    """Delete a secret. Only an admin or owner can delete a workspace secret."""
    _require_write_access(scope, request.scope)
    services.secrets.delete(scope.workspace_id, scope.user.id, request.name, request.scope)
    return {}


def _require_write_access(scope: Scope, secret_scope: SecretScope) -> None:
    if secret_scope == "workspace":
        scope.require_role("admin")
