"""Rollouts: create them from scratch or from templates, list them, and manage registered rollout servers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.services.listing import Listing, fetch_listing
from osmosis_ai.workspace.layout import WorkspaceDirectory, find_workspace
from osmosis_ai.workspace.placement import PlacedRollout, place
from osmosis_ai.workspace.rollout_templates import (
    RolloutTemplate,
    find_template,
    init_example,
    init_rollout,
    template_names,
    templates_root,
)

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.models.rollouts import (
        ListedRolloutServer,
        RegisteredRolloutServer,
        Rollout,
        RolloutList,
    )
    from osmosis_ai.services.listing import Listing

_KEYS = ("id", "name", "is_active", "repo_full_name", "last_synced_commit_sha", "created_at")


AGENT_KEY_ENV = "OSMOSIS_ROLLOUT_SERVER_KEY"
"""The variable with the key of a remote agent, registered by hand or run on this machine."""


@dataclass(frozen=True)
class InitializedRollout:
    """A new rollout and the workspace it was written to."""

    workspace: WorkspaceDirectory
    written: PlacedRollout

    def resource(self) -> dict[str, Any]:
        """Return what was written as the JSON output shows it; paths are relative to the workspace directory."""
        name = self.written.name
        return {
            "name": name,
            "workspace_directory": str(self.workspace.root),
            "rollout_dir": f"rollouts/{name}",
            "configs": {kind: f"configs/{kind}/{name}.toml" for kind in ("eval", "training")},
            "files": list(self.written.files),
            "gitignore": {"added": list(self.written.ignored)},
        }


def initialize_rollout(
    name: str | None, *, example: bool = False, force: bool = False, start: Path | None = None
) -> InitializedRollout:
    """Write a rollout's skeleton and configs into the workspace that contains ``start``.

    Args:
        name: the rollout's name; None for the name of the example.
        example: write a working agent with its data instead of a skeleton.
        force: replace existing files of the same name.
        start: a directory of the workspace (default: the current directory).

    Raises:
        WorkspaceRequiredError: outside a Git work tree.
        ConflictError: a rollout or file of this name exists.
        OsmosisError: the name is invalid, or the workspace lacks a directory.
    """
    workspace = find_workspace(start)
    if example:
        return InitializedRollout(workspace, init_example(workspace, name, force=force))
    if name is None:
        raise OsmosisError("A new rollout needs a name.")
    return InitializedRollout(workspace, init_rollout(workspace, name, force=force))


@dataclass(frozen=True)
class RolloutListing:
    """The rollouts of a repository, as the platform last read them.

    Attributes:
        listing: one page of the rollouts.
        sync_error: why the list may be out of date; None if it is current.
    """

    listing: Listing[Rollout]
    sync_error: str | None


def list_rollouts(
    client: PlatformClient, *, branch: str | None, limit: int, everything: bool
) -> RolloutListing:
    """Return the rollouts of ``branch`` (default: the default branch); other arguments as in ``fetch_listing``."""
    from osmosis_ai.services.listing import fetch_listing

    problems: list[str] = []

    def fetch(size: int, offset: int) -> RolloutList:
        page = client.rollouts.list(branch=branch, limit=size, offset=offset)
        problems.extend([page.sync_error] if page.sync_error else [])
        return page

    listing = fetch_listing(fetch, lambda page: page.rollouts, limit=limit, everything=everything)
    return RolloutListing(listing, problems[-1] if problems else None)


def rollout_item(rollout: Rollout) -> dict[str, Any]:
    """Return a rollout as the JSON output shows it."""
    known = rollout.model_dump(mode="json", include=set(_KEYS))
    return {key: known[key] for key in _KEYS}


def agent_key(env: Mapping[str, str] = os.environ) -> str | None:
    """Return the key of a remote agent, if the user has set one."""
    return env.get(AGENT_KEY_ENV, "").strip() or None


def list_servers(client: PlatformClient, *, limit: int, everything: bool) -> Listing[ListedRolloutServer]:
    """Return the registered agents; arguments as in ``fetch_listing``."""
    return fetch_listing(
        lambda size, offset: client.rollout_servers.list(limit=size, offset=offset),
        lambda page: page.rollout_servers,
        limit=limit,
        everything=everything,
    )


def server_item(server: ListedRolloutServer) -> dict[str, Any]:
    """Return a registered agent as the JSON output shows it."""
    return server.model_dump(mode="json")


def register_server(
    client: PlatformClient, name: str, address: str, *, api_key: str | None
) -> RegisteredRolloutServer:
    """Register an agent served at ``HOST:PORT``. The platform checks its health.

    Raises:
        OsmosisError: the address is invalid.
        PlatformError: the platform refuses it.
    """
    from osmosis_ai.api.models.rollouts import RolloutServerRegistration
    from osmosis_ai.controller.remote_agents import AgentAddress

    found = AgentAddress.parse(address)
    registration = RolloutServerRegistration(host=found.host, port=found.port, agent_loop_name=name)
    if api_key is not None:
        registration.api_key = api_key
    return client.rollout_servers.register(registration)


def probe_server(client: PlatformClient, name: str) -> RegisteredRolloutServer:
    """Have the platform check an agent's health.

    Raises:
        PlatformError: no agent has this name.
    """
    return client.rollout_servers.probe(name)


def remove_server(client: PlatformClient, name: str) -> None:
    """Remove an agent from the platform.

    Raises:
        PlatformError: no agent has this name.
    """
    client.rollout_servers.remove(name)


def health_of(found: RegisteredRolloutServer) -> dict[str, Any]:
    """Return an agent's health as the JSON output shows it."""
    return {
        "id": found.id,
        "status": found.status,
        "health_check_result": found.health_check_result.model_dump(mode="json", exclude_none=True),
    }


@dataclass(frozen=True)
class AppliedTemplate:
    """A template that was copied into a workspace.

    Attributes:
        configs: its configs, relative to the workspace's root.
    """

    written: PlacedRollout
    configs: tuple[str, ...]

    def resource(self) -> dict[str, Any]:
        """Return what was written as the JSON output shows it; paths are relative to the workspace directory."""
        return {
            "name": self.written.name,
            "destinations": list(self.written.destinations),
            "files": list(self.written.files),
            "gitignore": {"added": list(self.written.ignored)},
        }


def list_templates() -> list[RolloutTemplate]:
    """Return all templates, sorted by name.

    Raises:
        OsmosisError: the directory that the environment names has no templates.
    """
    root = templates_root()
    return [RolloutTemplate(root, name) for name in template_names()]


def apply_template(name: str, *, force: bool = False, start: Path | None = None) -> AppliedTemplate:
    """Copy a template into the workspace that contains ``start``; missing directories are created.

    Args:
        name: the template's name.
        force: replace an existing rollout, configs and data of the same names.
        start: a directory of the work tree (default: the current directory).

    Raises:
        WorkspaceRequiredError: outside a Git work tree.
        NotFoundError: there is no such template.
        ConflictError: one of its files exists with different content.
    """
    workspace = find_workspace(start, require_scaffold=False)
    template = find_template(name)
    return AppliedTemplate(
        place(workspace, template.read(), force=force, keep_same=True), template.config_paths
    )
