"""Agents that are served elsewhere: registered with the platform, listed, asked how they do, forgotten."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from osmosis_ai.services.listing import Listing, fetch_listing

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.wire.rollout_servers import ListedRolloutServer, RegisteredRolloutServer

AGENT_KEY_ENV = "OSMOSIS_ROLLOUT_SERVER_KEY"
"""Has the key of a served agent: of one that is registered by hand, or run from this machine."""


def agent_key(env: Mapping[str, str] = os.environ) -> str | None:
    """Return the key of a served agent, where the user has set one."""
    return env.get(AGENT_KEY_ENV, "").strip() or None


def list_servers(client: PlatformClient, *, limit: int, everything: bool) -> Listing[ListedRolloutServer]:
    """Return the registered agents; the rest as in ``fetch_listing``."""
    return fetch_listing(
        lambda size, offset: client.rollout_servers.list(limit=size, offset=offset),
        lambda page: page.rollout_servers,
        limit=limit,
        everything=everything,
    )


def server_item(server: ListedRolloutServer) -> dict[str, Any]:
    """Return a registered agent as scripts see it."""
    return server.model_dump(mode="json")


def register_server(
    client: PlatformClient, name: str, address: str, *, api_key: str | None
) -> RegisteredRolloutServer:
    """Register an agent that is served at ``HOST:PORT``; the platform asks it how it does.

    Raises:
        OsmosisError: it is no such address.
        PlatformError: the platform refuses it.
    """
    from osmosis_ai.api.wire.rollout_servers import RolloutServerRegistration

    host, port = _parse(address)
    registration = RolloutServerRegistration(host=host, port=port, agent_loop_name=name)
    if api_key is not None:
        registration.api_key = api_key
    return client.rollout_servers.register(registration)


def _parse(address: str) -> tuple[str, int]:
    from osmosis_ai.driving.agent_address import AgentAddress

    found = AgentAddress.parse(address)
    return found.host, found.port


def probe_server(client: PlatformClient, name: str) -> RegisteredRolloutServer:
    """Have the platform ask an agent how it does.

    Raises:
        PlatformError: there is none of this name.
    """
    return client.rollout_servers.probe(name)


def remove_server(client: PlatformClient, name: str) -> None:
    """Have the platform forget an agent.

    Raises:
        PlatformError: there is none of this name.
    """
    client.rollout_servers.remove(name)


def health_of(found: RegisteredRolloutServer) -> dict[str, Any]:
    """Return how an agent does as scripts see it."""
    return {
        "id": found.id,
        "status": found.status,
        "health_check_result": found.health_check_result.model_dump(mode="json", exclude_none=True),
    }
