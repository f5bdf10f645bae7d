"""Development rollout servers: the code of a pushed commit, served by the hosted platform for a while."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.wire.dev_servers import DevServer, DevServerRequest
    from osmosis_ai.services.context import PlatformContext
    from osmosis_ai.services.listing import Listing

ENTRYPOINT = "main.py"
LONGEST_TAIL = 200
RECONNECT_AFTER_S = (1.0, 2.0, 4.0, 8.0, 16.0)
"""The waits before a log that was cut off is asked for again, for as long as nothing new comes of it."""

LogLine = tuple[str | None, str | None]


@dataclass(frozen=True)
class PreparedDevServer:
    """What is about to be served.

    Attributes:
        dirty: whether the checkout has changes that will not be served.
        doubt: why the platform may not find the commit; None when it will.
    """

    request: DevServerRequest
    dirty: bool
    doubt: str | None


def prepare_dev_server(
    context: PlatformContext, directory: Path, *, ttl_hours: int | None
) -> PreparedDevServer:
    """Find out what a rollout's directory would be served as.

    Args:
        context: workspace directory, login and platform.
        directory: of a rollout, in the workspace.
        ttl_hours: after how many hours it is taken down; None for never.

    Raises:
        PlatformError: ``NOT_OFFERED``, where the platform has no such servers.
        OsmosisError: this is no rollout's directory, or its commit is not where the platform fetches from.
    """
    from osmosis_ai.api.capabilities import Capability
    from osmosis_ai.api.wire.dev_servers import DevServerRequest
    from osmosis_ai.services.capabilities import require_offered
    from osmosis_ai.services.runs.pinned_commit import check_pinned_commit
    from osmosis_ai.workspace.git import read_git_state

    workspace = context.workspace
    here = directory.resolve()
    if here.parent != workspace.rollouts_dir.resolve() or not (here / ENTRYPOINT).is_file():
        raise OsmosisError(
            f"This is no directory of a rollout with a {ENTRYPOINT}: {directory}",
            hint=f"cd {workspace.rollouts_dir}/NAME, and run the command there",
        )
    require_offered(context.client, Capability.DEV_SERVERS)
    state = read_git_state(workspace.root)
    if state.head is None:
        raise OsmosisError("Nothing is committed here yet.", hint="commit the rollout and push it")
    return PreparedDevServer(
        request=DevServerRequest(
            rollout_name=here.name,
            commit_sha=state.head,
            repository_path=f"{workspace.rollouts_dir.name}/{here.name}",
            entrypoint=ENTRYPOINT,
            ttl_hours=ttl_hours,
        ),
        dirty=state.dirty,
        doubt=check_pinned_commit(workspace.root, state.head, context.checkout.git),
    )


def list_dev_servers(client: PlatformClient, *, limit: int, everything: bool) -> Listing[DevServer]:
    """Return the servers of the workspace; arguments as in ``fetch_listing``."""
    from osmosis_ai.services.listing import fetch_listing

    return fetch_listing(
        lambda size, offset: client.dev_servers.list(limit=size, offset=offset),
        lambda page: page.dev_rollout_servers,
        limit=limit,
        everything=everything,
    )


def last_lines(client: PlatformClient, server_id: str, *, tail: int) -> Iterator[LogLine]:
    """Yield the last ``tail`` lines of a server's log.

    Raises:
        PlatformError: no such server, or as every call.
    """
    for entry in client.dev_servers.logs(server_id, limit=tail).logs:
        yield entry.timestamp, entry.message


def follow_lines(
    client: PlatformClient,
    server_id: str,
    *,
    tail: int,
    tell: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[LogLine]:
    """Yield the last ``tail`` lines of a server's log, then every new one, until the platform ends the log.

    A log that is cut off is asked for again; lines that were there before are not repeated.

    Args:
        client: the platform.
        server_id: of the server.
        tail: lines to begin with.
        tell: told when the log is asked for again.
        sleep: waits some seconds.

    Raises:
        PlatformError: no such server; or the log was cut off again and again.
    """
    from osmosis_ai.api.event_stream import StreamCut
    from osmosis_ai.api.http_errors import PlatformError
    from osmosis_ai.services.runs.lifecycle import is_away

    seen: deque[LogLine] = deque(maxlen=LONGEST_TAIL)
    waits = iter(RECONNECT_AFTER_S)
    begun = False
    while True:
        known = frozenset(seen)
        try:
            for event in client.dev_servers.follow(server_id, tail=LONGEST_TAIL if begun else tail):
                begun = True
                line = _text(event.get("timestamp")), _text(event.get("message"))
                if line in known:
                    continue
                # What follows a new line is new, too: two lines of one moment may well be alike.
                known, waits = frozenset(), iter(RECONNECT_AFTER_S)
                seen.append(line)
                yield line
            return
        except PlatformError as error:
            lost = isinstance(error, StreamCut) or (begun and is_away(error))
            if not lost or (wait_s := next(waits, None)) is None:
                raise
            tell(f"{error.message.rstrip('.')}; asking for the log again")
            begun = True
            sleep(wait_s)


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
