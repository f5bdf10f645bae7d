"""Workspaces: which there are, which one this directory belongs to, where another one is checked out.

Nobody "is in" a workspace: every command asks the platform whose repository the current directory is a
checkout of. So switching is going to another directory, and what can be done for it is to say which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.api.credentials import require_credentials
from osmosis_ai.api.git_identity import IDENTITY
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.platform_url import DEFAULT_PLATFORM_URL
from osmosis_ai.api.wire.auth import User, Workspace, WorkspaceMembership
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.services.auth import iso, verify_with_workspace
from osmosis_ai.services.context import (
    Checkout,
    PlatformContext,
    Warn,
    connect,
    connect_hint,
    find_checkout_if_any,
    log_warning,
    open_context,
)
from osmosis_ai.services.workspaces.directories import WorkspaceDirectories

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient


@dataclass(frozen=True)
class Membership:
    """A workspace of the user.

    Args:
        workspace: what the platform says of it.
        current: whether the repository around the current directory belongs to it.
        directory: a checkout of it on this machine.
    """

    workspace: Workspace
    current: bool
    directory: Path | None

    @property
    def repository(self) -> str | None:
        """The identity of its repository."""
        connected = self.workspace.connected_repo
        return None if connected is None else connected.repo_full_name

    def item(self) -> dict[str, Any]:
        """Return the workspace as scripts see it."""
        return {
            "id": self.workspace.id,
            "name": self.workspace.name,
            "role": self.workspace.role,
            "repository": self.repository,
            "current": self.current,
            "workspace_directory": None if self.directory is None else str(self.directory),
        }


@dataclass(frozen=True)
class CurrentWorkspace:
    """The workspace of the current directory's repository, and who one is in it."""

    membership: WorkspaceMembership
    user: User
    expires_at: datetime | None
    platform_url: str
    checkout: Checkout

    def data(self) -> dict[str, Any]:
        """Return the workspace as scripts see it."""
        return {
            "id": self.membership.id,
            "name": self.membership.name,
            "role": self.membership.role,
            "email": self.user.email,
            "expires_at": iso(self.expires_at),
            "platform_url": self.platform_url,
            **self.checkout.resource(),
        }


def list_workspaces(start: Path | None = None, *, warn: Warn = log_warning) -> tuple[Membership, ...]:
    """Return every workspace of the user; works anywhere, and marks that of the repository around ``start``.

    Raises:
        OsmosisError: nobody is logged in, or the platform cannot be asked.
    """
    credentials = require_credentials()
    checkout = find_checkout_if_any(start)
    identity = checkout.git.identity if checkout else None
    with connect(credentials, git_identity=identity, warn=warn) as client:
        workspaces = client.workspaces.list().workspaces
        current = _current_of(client)
    directories = WorkspaceDirectories(credentials.platform_url)
    if checkout is not None and current is not None:
        directories.remember(current.id, checkout.workspace.root)
    return tuple(
        Membership(item, current is not None and item.id == current.id, directories.find(item.id))
        for item in workspaces
    )


def current_workspace(start: Path | None = None, *, warn: Warn = log_warning) -> CurrentWorkspace:
    """Return the workspace that the repository around ``start`` belongs to.

    Raises:
        WorkspaceRequiredError: outside a Git work tree.
        NotFoundError: the repository belongs to no workspace of the user.
        OsmosisError: there is no origin, nobody is logged in, or the platform cannot be asked.
    """
    with open_context(start, require_scaffold=False, warn=warn) as context:
        verified = context.client.verify()
    if verified.workspace is None:
        raise _not_connected(context)
    WorkspaceDirectories(context.credentials.platform_url).remember(
        verified.workspace.id, context.workspace.root
    )
    return CurrentWorkspace(
        membership=verified.workspace,
        user=verified.user,
        expires_at=verified.expires_at or context.credentials.expires_at,
        platform_url=context.credentials.platform_url,
        checkout=context.checkout,
    )


def find_workspace_directory(name: str, start: Path | None = None, *, warn: Warn = log_warning) -> Membership:
    """Return the workspace called ``name`` (or with this id), with a checkout of it on this machine.

    Raises:
        NotFoundError: the user has no such workspace, or no checkout of it is known; the hint says how to
            get one.
        OsmosisError: nobody is logged in, or the platform cannot be asked.
    """
    memberships = list_workspaces(start, warn=warn)
    chosen = named_membership(name, memberships)
    if chosen.directory is not None or chosen.current:
        return chosen
    raise NotFoundError(
        f"No checkout of the workspace {chosen.workspace.name} is known on this machine.",
        details=chosen.item(),
        hint=_checkout_hint(chosen),
    )


def named_membership(name: str, memberships: Sequence[Membership]) -> Membership:
    """Return the workspace called ``name`` (or with this id); upper and lower case matter only where they must.

    Raises:
        NotFoundError: there is none, or several differ in nothing else.
    """
    for member in memberships:
        if name in (member.workspace.name, member.workspace.id):
            return member
    names = [member.workspace.name for member in memberships]
    folded = [member for member in memberships if member.workspace.name.lower() == name.lower()]
    if len(folded) == 1:
        return folded[0]
    from difflib import get_close_matches

    near = get_close_matches(name, names, n=1)
    raise NotFoundError(
        f"You have no workspace named '{name}'." + (f" Did you mean '{near[0]}'?" if near else ""),
        details={"name": name, "workspaces": names},
        hint=f"yours: {', '.join(names)}" if names else "ask the owner of a workspace to add you",
    )


def _checkout_hint(member: Membership) -> str:
    if member.repository is None:
        return "connect a repository to it first, then clone that and run `osmosis workspace current` in it"
    # Only what looks like GitHub's own may be: the identity of any other origin is not its address.
    address = (
        f"https://github.com/{member.repository}.git"
        if IDENTITY.fullmatch(member.repository) and _is_hosted()
        else "URL"
    )
    return f"git clone {address}, then run `osmosis workspace current` in the clone"


def _is_hosted() -> bool:
    from osmosis_ai.api.active_platform import active_platform

    return active_platform().url == DEFAULT_PLATFORM_URL


def _current_of(client: PlatformClient) -> WorkspaceMembership | None:
    if client.git_identity is None:
        return None
    try:
        return verify_with_workspace(client).workspace
    except PlatformError:
        return None


def _not_connected(context: PlatformContext) -> OsmosisError:
    url = context.credentials.platform_url
    return NotFoundError(
        f"The repository {context.checkout.git.identity} belongs to no workspace of yours on {url}.",
        details=context.resource(),
        hint=connect_hint(context.checkout.git, url),
    )
