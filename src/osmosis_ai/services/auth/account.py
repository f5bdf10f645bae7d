"""Who one is to the platform, and where one is at home there."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from osmosis_ai.api import routes
from osmosis_ai.api.active_platform import active_platform
from osmosis_ai.api.client import PlatformClient
from osmosis_ai.api.credentials import Credentials, CredentialStore, require_credentials
from osmosis_ai.api.credentials.login import TokenStoreKind
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.wire.auth import User, Verification, Workspace, WorkspaceMembership
from osmosis_ai.errors import OsmosisError
from osmosis_ai.services.context import Warn, connect, find_checkout_if_any, log_warning


@dataclass(frozen=True)
class Account:
    """Who the platform says one is.

    Args:
        credentials: what one asked with.
        directory: the one whose platform it is; None where the environment or the default chose it.
        user: whose they are.
        expires_at: when the token ends; None when nobody says.
        token_id: its name at the platform.
        saved_in: where a login for this platform is saved, in use or not; None when none is.
        workspace: that of the repository one is in.
        workspaces: all of the user's; None when the platform would not tell.
    """

    credentials: Credentials
    directory: Path | None
    user: User
    expires_at: datetime | None
    token_id: str | None
    saved_in: TokenStoreKind | None
    workspace: WorkspaceMembership | None
    workspaces: tuple[Workspace, ...] | None

    def data(self) -> dict[str, Any]:
        """Return the account as scripts see it."""
        facts: dict[str, Any] = {
            "email": self.user.email,
            "name": self.user.name,
            "expires_at": iso(self.expires_at),
            "platform_url": self.credentials.platform_url,
            "source": self.credentials.source,
            "effective_source": self.credentials.source,
            "persistent_login": self.saved_in is not None,
        }
        return {
            "account": facts if self.token_id is None else {**facts, "token_id": self.token_id},
            **facts,
            "platform_directory": None if self.directory is None else str(self.directory),
            "workspace": None if self.workspace is None else _membership(self.workspace),
            "workspaces": None
            if self.workspaces is None
            else [_membership(item) for item in self.workspaces],
        }


def whoami(
    start: Path | None = None, store: CredentialStore | None = None, *, warn: Warn = log_warning
) -> Account:
    """Return who the platform says one is, and in which workspace the repository around ``start`` is.

    Raises:
        OsmosisError: ``AUTH_REQUIRED`` when nobody is logged in or the token is no longer valid.
        PlatformError: the platform cannot be asked.
    """
    store = store or CredentialStore()
    credentials = require_credentials(store)
    checkout = find_checkout_if_any(start)
    identity = checkout.git.identity if checkout else None
    with connect(credentials, git_identity=identity, warn=warn) as client:
        verified = verify_with_workspace(client)
        workspaces = _workspaces_of(client)
    return Account(
        credentials=credentials,
        directory=active_platform().directory,
        user=known_user(verified.user),
        expires_at=verified.expires_at or credentials.expires_at,
        token_id=verified.token_id or credentials.token_id,
        saved_in=_saved_in(store, credentials),
        workspace=verified.workspace,
        workspaces=workspaces,
    )


def verify_with_workspace(client: PlatformClient) -> Verification:
    """Return whose token this is; without a workspace when the platform refuses the repository.

    Raises:
        PlatformError: the token is not accepted, or the platform cannot be asked.
    """
    try:
        return client.verify()
    except PlatformError as error:
        if not error.refuses_git_scope:
            raise
        return client.get(routes.VERIFY, model=Verification, git="never")


def known_user(user: User | None) -> User:
    """Return the user of a reply.

    Raises:
        PlatformError: the reply names nobody.
    """
    if user is None or not user.id or not user.email:
        raise PlatformError("the platform does not say whose token this is.")
    return user


def iso(moment: datetime | None) -> str | None:
    """Return a moment as scripts see it: UTC, to the second."""
    if moment is None:
        return None
    return moment.astimezone(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def _membership(workspace: Workspace | WorkspaceMembership) -> dict[str, Any]:
    return {"id": workspace.id, "name": workspace.name, "role": workspace.role}


def _workspaces_of(client: PlatformClient) -> tuple[Workspace, ...] | None:
    try:
        return tuple(client.workspaces.list().workspaces)
    except PlatformError:
        return None


def _saved_in(store: CredentialStore, credentials: Credentials) -> TokenStoreKind | None:
    if credentials.source != "environment":
        return credentials.source
    try:
        saved = {login.platform_url: login.token_store for login in store.all()}
    except OsmosisError:
        return None
    return saved.get(credentials.platform_url)
