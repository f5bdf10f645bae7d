"""A viewer of this machine, from its port to its end."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_ai.errors import OsmosisError
from osmosis_ai.processes.addresses import describe_bind_error, listen, stop_on_signals
from osmosis_ai.viewer.serving.app import viewer_app
from osmosis_ai.viewer.serving.entry import ViewerKeys
from osmosis_ai.viewer.serving.meeting import (
    OpenViewer,
    bracketed,
    forget,
    meeting_file,
    opening_address,
    remove_opening_page,
    say_who_shows,
)

if TYPE_CHECKING:
    from osmosis_ai.viewer.source import RunSource

LOOPBACK = "127.0.0.1"
_SHUTDOWN_S = 3


@dataclass(frozen=True)
class RunningViewer:
    """A viewer whose port is taken."""

    viewer: OpenViewer
    has_own_name: bool
    source: RunSource = field(repr=False)
    keys: ViewerKeys = field(repr=False)
    listener: socket.socket = field(repr=False)
    word: Path = field(repr=False)

    def address(self, path: str) -> str:
        """Return an address that opens ``path`` once."""
        return opening_address(self.viewer.url, self.keys.make(path))

    def run(self) -> None:
        """Serve until a signal asks to end."""
        import uvicorn

        from osmosis_ai.viewer.live_routes import LiveServer

        viewer = self.viewer
        hosts = frozenset({viewer.url.partition("://")[2], f"{bracketed(viewer.host)}:{viewer.port}"})
        app = viewer_app(
            self.source,
            self.keys,
            hosts=hosts,
            secret=viewer.secret,
            on_opened=partial(remove_opening_page, self.word.parent),
        )
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=_SHUTDOWN_S,
        )
        server = LiveServer(config)
        say_who_shows(self.word, viewer)
        try:
            with stop_on_signals(server), closing(self.listener):
                server.run(sockets=[self.listener])
        finally:
            forget(self.word, viewer)


def prepare_viewer(
    source: RunSource, place: Path, *, cache_dir: Path, host: str = LOOPBACK, port: int = 0
) -> RunningViewer:
    """Take a port for a viewer."""
    host = loopback_address(host)
    listener = _listen(host, port)
    port = listener.getsockname()[1]
    name = f"{secrets.token_hex(8)}.localhost"
    has_own_name = host == LOOPBACK and name_leads_here(name)
    viewer = OpenViewer(
        place=str(place),
        url=f"http://{name if has_own_name else bracketed(host)}:{port}",
        host=host,
        port=port,
        secret=secrets.token_urlsafe(32),
    )
    return RunningViewer(viewer, has_own_name, source, ViewerKeys(), listener, meeting_file(place, cache_dir))


def loopback_address(host: str) -> str:
    """Return the address of loopback that ``host`` is."""
    host = LOOPBACK if host == "localhost" else host
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return host
    raise OsmosisError(
        f"a viewer listens on this machine alone, and {host!r} is more than that.",
        hint="to show runs to others: osmosis platform start, and osmosis eval upload RUN",
    )


def name_leads_here(name: str) -> bool:
    """Tell whether the system takes a name below ``localhost`` for this machine (RFC 6761, section 6.3)."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return LOOPBACK in {each[4][0] for each in found}


def _listen(host: str, port: int) -> socket.socket:
    try:
        return listen(host, port)
    except (OSError, OverflowError) as error:
        raise OsmosisError(
            f"cannot listen on {bracketed(host)}:{port}: {describe_bind_error(error)}",
            code="CONFLICT",
            hint="leave out --port: then a free one is taken",
        ) from error
