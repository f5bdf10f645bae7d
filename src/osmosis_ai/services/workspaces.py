"""Workspaces: list them, find the current one and checkouts of others, clone their repositories.

The current directory's repository determines the current workspace; commands ask the platform which one it is. To
switch workspaces, change to another directory. Recorded checkouts are only hints: a directory that no longer exists
is ignored, and an unreadable file counts as empty.

Addresses from a platform are checked before Git sees them: options and remote helpers are rejected, and so are local
paths unless the platform runs on this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from osmosis_ai.api.credentials import require_credentials
from osmosis_ai.api.git_identity import IDENTITY, identify_origin
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.models.auth import Workspace, WorkspaceMembership
from osmosis_ai.api.platform_url import DEFAULT_PLATFORM_URL, active_platform
from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.files import config_dir, write_json
from osmosis_ai.services.auth import iso, list_memberships, verify_with_workspace
from osmosis_ai.services.context import (
    Warn,
    connect,
    connect_hint,
    find_checkout_if_any,
    log_warning,
    open_context,
)
from osmosis_ai.workspace.git import read_origin, run_git, without_credentials, worktree_root

FILE_VERSION = 1
CLONE_TIMEOUT_S = 900.0
_GITHUB = "github.com"
_FROM_AFAR = ("https", "ssh")
_NEARBY = (*_FROM_AFAR, "http", "file")


@dataclass(frozen=True)
class Membership:
    """A workspace of the user, whether the current repository belongs to it, and a checkout of it on this machine."""

    workspace: Workspace
    current: bool
    directory: Path | None

    @property
    def repository(self) -> str | None:
        """The identity of its repository."""
        connected = self.workspace.connected_repo
        return None if connected is None else connected.repo_full_name

    def item(self) -> dict[str, Any]:
        """Return the workspace as the JSON output shows it."""
        return {
            **self.workspace.model_dump(include={"id", "name", "role"}),
            "repository": self.repository,
            "current": self.current,
            "workspace_directory": None if self.directory is None else str(self.directory),
        }


def list_workspaces(start: Path | None = None, *, warn: Warn = log_warning) -> tuple[Membership, ...]:
    """Return every workspace of the user and mark the current one; also works outside a repository."""
    credentials = require_credentials()
    checkout = find_checkout_if_any(start)
    identity = checkout.git.identity if checkout else None
    with connect(credentials, git_identity=identity, warn=warn) as client:
        workspaces = list_memberships(client)
        current: WorkspaceMembership | None = None
        if identity is not None:
            with contextlib.suppress(PlatformError):
                current = verify_with_workspace(client).workspace
    directories = WorkspaceDirectories(credentials.platform_url)
    if checkout is not None and current is not None:
        directories.remember(current.id, checkout.workspace.root)
    return tuple(
        Membership(item, current is not None and item.id == current.id, directories.find(item.id))
        for item in workspaces
    )


def current_workspace(start: Path | None = None, *, warn: Warn = log_warning) -> dict[str, Any]:
    """Return the workspace that the repository around ``start`` belongs to, as the JSON output shows it.

    Raises NotFoundError if there is none.
    """
    with open_context(start, require_scaffold=False, warn=warn) as context:
        verified = context.client.verify()
    if verified.workspace is None:
        git, url = context.git, context.credentials.platform_url
        raise NotFoundError(
            f"The repository {git.identity} belongs to no workspace of yours on {url}.",
            details=context.resource(),
            hint=connect_hint(git, url),
        )
    WorkspaceDirectories(context.credentials.platform_url).remember(
        verified.workspace.id, context.workspace.root
    )
    return {
        **verified.workspace.model_dump(),
        "email": verified.user.email,
        "expires_at": iso(verified.expires_at or context.credentials.expires_at),
        "platform_url": context.credentials.platform_url,
        **context.resource(),
    }


def find_workspace_directory(name: str, *, warn: Warn = log_warning) -> Membership:
    """Return the workspace with this name or id, and a checkout of it on this machine.

    Raises NotFoundError without such a workspace or checkout; the hint says how to get one.
    """
    memberships = list_workspaces(warn=warn)
    chosen = named_membership(name, memberships)
    if chosen.directory is not None or chosen.current:
        return chosen
    raise NotFoundError(
        f"No checkout of the workspace {chosen.workspace.name} is known on this machine.",
        details=chosen.item(),
        hint=_checkout_hint(chosen),
    )


def named_membership(name: str, memberships: Sequence[Membership]) -> Membership:
    """Return the workspace with this name or id. Case matters only if names differ in nothing else."""
    for member in memberships:
        if name in (member.workspace.name, member.workspace.id):
            return member
    names = [member.workspace.name for member in memberships]
    folded = [member for member in memberships if member.workspace.name.lower() == name.lower()]
    if len(folded) == 1:
        return folded[0]
    near = get_close_matches(name, names, n=1)
    raise NotFoundError(
        f"You have no workspace named '{name}'." + (f" Did you mean '{near[0]}'?" if near else ""),
        details={"name": name, "workspaces": names},
        hint=f"yours: {', '.join(names)}" if names else "ask the owner of a workspace to add you",
    )


def _checkout_hint(member: Membership) -> str:
    if member.repository is None:
        return "connect a repository to it first, then clone that and run `osmosis workspace current` in it"
    # Only for an address that looks like GitHub's: the identity of any other origin is not its address.
    address = (
        f"https://github.com/{member.repository}.git"
        if IDENTITY.fullmatch(member.repository) and active_platform().url == DEFAULT_PLATFORM_URL
        else "URL"
    )
    return f"git clone {address}, then run `osmosis workspace current` in the clone"


class WorkspaceDirectories:
    """The recorded checkouts of one platform's workspaces."""

    def __init__(self, platform_url: str) -> None:
        self.path = config_dir() / "workspace-directories.json"
        self._platform_url = platform_url

    def find(self, workspace_id: str) -> Path | None:
        """Return the checkout of a workspace if it still exists."""
        recorded = self._read().get(self._platform_url, {}).get(workspace_id)
        if not isinstance(recorded, str):
            return None
        directory = Path(recorded)
        return directory if directory.is_absolute() and (directory / ".git").exists() else None

    def remember(self, workspace_id: str, directory: Path) -> None:
        """Record that ``directory`` is a checkout of the workspace."""
        platforms = self._read()
        known = platforms.get(self._platform_url, {})
        if known.get(workspace_id) == str(directory):
            return
        changed = {**platforms, self._platform_url: {**known, workspace_id: str(directory)}}
        with contextlib.suppress(OSError, UnicodeEncodeError):
            write_json(self.path, {"version": FILE_VERSION, "platforms": changed})

    def _read(self) -> dict[str, Mapping[str, Any]]:
        try:
            content = json.loads(self.path.read_bytes())
            platforms = content["platforms"] if content["version"] == FILE_VERSION else {}
            return {url: known for url, known in platforms.items() if isinstance(known, dict)}
        except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
            return {}


def github_urls(full_name: str) -> dict[str, str]:
    """Return the addresses of a GitHub repository by transport."""
    if not IDENTITY.fullmatch(full_name) or full_name.endswith(("/.", "/..")):
        raise OsmosisError("Repository name from the platform is invalid.", code="PLATFORM_ERROR")
    return {"HTTPS": f"https://{_GITHUB}/{full_name}.git", "SSH": f"git@{_GITHUB}:{full_name}.git"}


def checked_clone_url(url: str, *, nearby: bool) -> str:
    """Return an address from a platform if it is safe to clone.

    If the platform runs ``nearby``, on this machine, its paths are local paths.
    """
    identify_origin(url)
    if url.startswith("-") or _transport(url) not in (_NEARBY if nearby else _FROM_AFAR):
        raise OsmosisError(
            f"Clone URL from the platform is not accepted: {without_credentials(url)}.",
            code="PLATFORM_ERROR",
            hint="clone the repository yourself, then run `osmosis quickstart` in the clone",
        )
    return url


def clone_into(url: str, target: Path) -> Path:
    """Clone a checked ``url`` into ``target``, completely or not at all; an existing clone of it is reused."""
    if target.exists() or target.is_symlink():
        return _existing_clone(url, target)
    allowed = [word for name in _NEARBY for word in ("-c", f"protocol.{name}.allow=always")]
    options = ("clone", "--quiet", "--template=", "--no-recurse-submodules")
    ssh = {} if os.environ.get("GIT_SSH_COMMAND") else {"GIT_SSH_COMMAND": "ssh -oBatchMode=yes"}
    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as place:
            done = run_git(
                ["-c", "protocol.allow=never", *allowed, *options, "--", url, "clone"],
                cwd=Path(place),
                env=ssh,
                timeout_s=CLONE_TIMEOUT_S,
            )
            if done.returncode == 0:
                (Path(place) / "clone").rename(target)
                return target
    except OSError as error:
        raise OsmosisError(f"Cannot write {target}: {error.strerror}.") from None
    said = [line for line in done.stderr.splitlines() if line.strip()]
    raise OsmosisError(
        f"Git cannot clone {without_credentials(url)}: {said[-1].strip() if said else 'it does not say why'}",
        code="NETWORK",
        hint=f"git clone {without_credentials(url)}",
    )


def _transport(url: str) -> str:
    if "://" in url:
        return urlsplit(url).scheme
    if Path(url).is_absolute():
        return "file"
    return "ssh" if ":" in url.partition("/")[0] else ""


def _existing_clone(url: str, target: Path) -> Path:
    root = worktree_root(target) if target.is_dir() else None
    origin = read_origin(root) if root is not None and root == target.resolve() else None
    try:
        same = origin is not None and identify_origin(origin).identity == identify_origin(url).identity
    except OsmosisError:
        same = False
    if not same:
        raise ConflictError(
            f"{target} already exists and is not a clone of {without_credentials(url)}.",
            hint="run `osmosis quickstart` in another directory",
        )
    return target
