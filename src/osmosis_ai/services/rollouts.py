"""Rollouts: create them from scratch or from templates, list them, and manage registered rollout servers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from osmosis_ai.api.models.rollouts import (
    RegisteredRolloutServer,
    RolloutList,
    RolloutServerList,
    RolloutServerRegistration,
)
from osmosis_ai.errors import OsmosisError
from osmosis_ai.services.listing import fetch_listing
from osmosis_ai.workspace.layout import find_workspace
from osmosis_ai.workspace.rollout_templates import (
    RolloutTemplate,
    find_template,
    init_example,
    init_rollout,
    place,
    template_names,
    templates_root,
)

if TYPE_CHECKING:  # `rollout init` needs no HTTP
    from osmosis_ai.api.client import PlatformClient

_SERVERS = "/api/cli/rollout-servers"
AGENT_KEY_ENV = "OSMOSIS_ROLLOUT_SERVER_KEY"
"""The variable with the key of a remote agent, registered by hand or run on this machine."""


def initialize_rollout(name: str | None, *, example: bool, force: bool) -> dict[str, Any]:
    """Write a rollout's skeleton and configs, or a working example with its data, into the current workspace.

    ``name`` may be None for an example, which has its own. ``force`` replaces existing files of the same name. The
    result is what was written, as the JSON output shows it; paths are relative to the workspace directory.
    """
    workspace = find_workspace()
    if example:
        written = init_example(workspace, name, force=force)
    elif name is not None:
        written = init_rollout(workspace, name, force=force)
    else:
        raise OsmosisError("A new rollout needs a name.")
    return {
        "name": written.name,
        "workspace_directory": str(workspace.root),
        "rollout_dir": f"rollouts/{written.name}",
        "configs": {kind: f"configs/{kind}/{written.name}.toml" for kind in ("eval", "training")},
        "files": list(written.files),
        "gitignore": {"added": list(written.ignored)},
    }


def list_rollouts(client: PlatformClient, *, branch: str | None, limit: int, everything: bool) -> RolloutList:
    """Return the rollouts of ``branch`` (default: the default branch)."""
    pages = client.pages("/api/cli/rollouts", RolloutList, branch=branch)
    return fetch_listing(pages, limit=limit, everything=everything)


def agent_key() -> str | None:
    """Return the key of a remote agent, if the user has set one."""
    return os.environ.get(AGENT_KEY_ENV, "").strip() or None


def list_servers(client: PlatformClient, *, limit: int, everything: bool) -> RolloutServerList:
    """Return the registered agents; arguments as in ``fetch_listing``."""
    pages = client.pages(_SERVERS, RolloutServerList, git="optional")
    return fetch_listing(pages, limit=limit, everything=everything)


def register_server(
    client: PlatformClient, name: str, address: str, *, api_key: str | None
) -> RegisteredRolloutServer:
    """Register an agent served at ``HOST:PORT``. The platform checks its health."""
    from osmosis_ai.controller.remote_agents import AgentAddress
    from osmosis_ai.rollout.server.registration import send_registration

    found = AgentAddress.parse(address)
    registration = RolloutServerRegistration(host=found.host, port=found.port, agent_loop_name=name)
    if api_key is not None:
        registration.api_key = api_key
    return send_registration(client, registration)


def probe_server(client: PlatformClient, name: str) -> RegisteredRolloutServer:
    """Have the platform check an agent's health."""
    from osmosis_ai.api.client import segment
    from osmosis_ai.api.connections import REPEATING

    path = f"{_SERVERS}/{segment(name)}/probe"
    return client.post(path, model=RegisteredRolloutServer, git="optional", retry=REPEATING)


def remove_server(client: PlatformClient, name: str) -> None:
    from osmosis_ai.api.client import segment

    client.delete(f"{_SERVERS}/{segment(name)}", git="optional")


def health_of(found: RegisteredRolloutServer) -> dict[str, Any]:
    """Return an agent's health as the JSON output shows it."""
    health = found.health_check_result.model_dump(mode="json", exclude_none=True)
    return {"id": found.id, "status": found.status, "health_check_result": health}


def list_templates() -> list[RolloutTemplate]:
    """Return all templates, sorted by name."""
    root = templates_root()
    return [RolloutTemplate(root, name) for name in template_names()]


def apply_template(name: str, *, force: bool) -> tuple[RolloutTemplate, dict[str, Any]]:
    """Copy a template into the current workspace; missing directories are created.

    ``force`` replaces an existing rollout, configs and data of the same names. The result is what was written, as the
    JSON output shows it; paths are relative to the workspace directory.
    """
    workspace = find_workspace(require_scaffold=False)
    template = find_template(name)
    written = place(workspace, template.read(), force=force, keep_same=True)
    return template, {
        "name": written.name,
        "destinations": list(written.destinations),
        "files": list(written.files),
        "gitignore": {"added": list(written.ignored)},
    }
