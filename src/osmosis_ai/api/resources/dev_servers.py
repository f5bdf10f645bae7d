"""Development rollout servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from osmosis_ai.api import routes
from osmosis_ai.api.event_stream import EVENTS, SILENCE_S, json_events
from osmosis_ai.api.resources.resource import LARGEST_PAGE, Resource
from osmosis_ai.api.wire.base import LogPage
from osmosis_ai.api.wire.dev_servers import (
    DevServerList,
    DevServerReply,
    DevServerRequest,
    StartedDevServer,
)


class DevServers(Resource):
    """The development rollout servers of the repository's workspace."""

    def up(self, request: DevServerRequest) -> StartedDevServer:
        """Have the platform serve the code of a commit."""
        return self._client.post(routes.DEV_SERVERS, request, model=StartedDevServer)

    def list(self, *, limit: int = LARGEST_PAGE, offset: int = 0) -> DevServerList:
        """Return one page."""
        return self._page(routes.DEV_SERVERS, model=DevServerList, limit=limit, offset=offset)

    def down(self, server_id: str) -> DevServerReply:
        """Have the platform end a server."""
        return self._client.request("DELETE", routes.dev_server(server_id), model=DevServerReply, body={})

    def logs(self, server_id: str, *, limit: int, cursor: str | None = None) -> LogPage:
        """Return one page of a server's log, the newest lines without a ``cursor``."""
        path = routes.dev_server_logs(server_id)
        return self._log_page(path, limit=limit, cursor=cursor, direction="older")

    def follow(self, server_id: str, *, tail: int) -> Iterator[dict[str, Any]]:
        """Yield the last ``tail`` lines of a server's log, then every new one, until the platform ends it.

        Raises:
            PlatformError: refused or not reached; or, in the middle, :class:`StreamCut`.
        """
        path = routes.dev_server_log_stream(server_id)
        stream = self._client.stream(path, params={"tail": tail}, accept=EVENTS, silence_s=SILENCE_S)
        return json_events(stream, unreachable=self._client.unreachable)
