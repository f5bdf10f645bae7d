"""Development rollout servers: the hosted platform serves a pushed commit for a limited time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from osmosis_ai.api.capabilities import Capability
from osmosis_ai.api.client import PlatformClient, segment
from osmosis_ai.api.models.dev_servers import DevServerList, DevServerReply, StartedDevServer
from osmosis_ai.errors import OsmosisError
from osmosis_ai.services.capabilities import require_offered
from osmosis_ai.services.context import PlatformContext
from osmosis_ai.services.listing import fetch_listing
from osmosis_ai.services.runs.lifecycle import plain
from osmosis_ai.services.runs.submit import check_pinned_commit
from osmosis_ai.workspace.git import read_git_state

_ENTRYPOINT = "main.py"
_SERVERS = "/api/cli/dev-rollout-server"


def prepare_dev_server(
    context: PlatformContext, directory: Path, *, ttl_hours: int | None
) -> tuple[dict[str, Any], bool, str | None]:
    """Check that the last commit of a rollout's directory is pushed and can be served.

    Return the request that starts the server, whether changes are uncommitted, and why the platform may not find the
    commit.
    """
    workspace, here = context.workspace, directory.resolve()
    if here.parent != workspace.rollouts_dir.resolve() or not (here / _ENTRYPOINT).is_file():
        raise OsmosisError(
            f"This directory is not a rollout with a {_ENTRYPOINT}: {directory}.",
            hint=f"cd {workspace.rollouts_dir}/NAME",
        )
    require_offered(context.client, Capability.DEV_SERVERS)
    state = read_git_state(workspace.root)
    if state.head is None:
        raise OsmosisError("Repository has no commits.", hint="commit and push the rollout")
    body = {
        "rollout_name": here.name,
        "commit_sha": state.head,
        "repository_path": f"{workspace.rollouts_dir.name}/{here.name}",
        "entrypoint": _ENTRYPOINT,
        "ttl_hours": ttl_hours,
    }
    doubt = check_pinned_commit(workspace.root, state.head, context.git)
    return body, state.dirty, doubt


def start_dev_server(client: PlatformClient, body: dict[str, Any]) -> dict[str, Any]:
    """Start a server and return the platform's reply, which has at least ``url``."""
    started: dict[str, Any] = plain(client.post(_SERVERS, body, model=StartedDevServer))
    return started


def end_dev_server(client: PlatformClient, server_id: str) -> dict[str, Any]:
    path = f"{_SERVERS}/{segment(server_id)}"
    ended: dict[str, Any] = plain(client.request("DELETE", path, model=DevServerReply, body={}))
    return ended


def list_dev_servers(client: PlatformClient, *, limit: int, everything: bool) -> DevServerList:
    """Return the servers of the workspace; arguments as in ``fetch_listing``."""
    return fetch_listing(client.pages(_SERVERS, DevServerList), limit=limit, everything=everything)


def log_lines(client: PlatformClient, server_id: str, *, tail: int, follow: bool) -> Iterator[dict[str, Any]]:
    """Yield the last ``tail`` lines of a log; with ``follow``, also new ones until the platform ends the stream."""
    path = f"{_SERVERS}/{segment(server_id)}/logs"
    if not follow:
        page = client.log_pages(path)(tail, None)
        yield from (entry.model_dump(include={"timestamp", "message"}) for entry in page.logs)
        return
    for event in client.events(f"{path}/stream", params={"tail": tail}):
        yield {name: _text(event.get(name)) for name in ("timestamp", "message")}


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
