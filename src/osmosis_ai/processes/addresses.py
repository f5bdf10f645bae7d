"""Server addresses: ports, and Unix sockets in private directories.

A server without a key listens on a socket, whose directory permissions control access.
Its address is ``http+unix://`` plus the percent-encoded socket path, with plain HTTP on top.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from osmosis_ai.errors import reason_of

if TYPE_CHECKING:
    import aiohttp
    import uvicorn

_SCHEME = "http+unix://"
_PREFIX = "osmosis-socket-"
_SOCKET_NAME = "server.sock"
# `sun_path` holds 108 bytes on Linux and 104 on macOS, the closing zero included (unix(7), unix(4)).
_MAX_PATH_BYTES = 103
_BACKLOG = 2048
# uvicorn closes an idle connection after 5 s; reusing one at that very moment fails the request.
_KEEP_ALIVE_S = 4.0


def socket_path(address: str) -> str | None:
    return unquote(address.removeprefix(_SCHEME)) if address.startswith(_SCHEME) else None


def server_url(address: str, path: str) -> str:
    """Return the URL of a path on a server, for a session of :func:`open_server_session`."""
    return f"{'http://localhost' if socket_path(address) else address.rstrip('/')}{path}"


def open_server_session(address: str, *, timeout_s: float) -> aiohttp.ClientSession:
    """Open a session for one server of ours; the caller limits concurrent requests."""
    import aiohttp

    path = socket_path(address)
    connector = (
        aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S)
        if path is None
        else aiohttp.UnixConnector(path, limit=0, keepalive_timeout=_KEEP_ALIVE_S)
    )
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        cookie_jar=aiohttp.DummyCookieJar(),
    )


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 chooses a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def describe_bind_error(error: Exception) -> str:
    """Return the system's reason why an address cannot be bound, without the address that Python adds."""
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number and number > 0 else reason_of(error)


@contextlib.contextmanager
def on_stop_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` on SIGINT and SIGTERM instead of ending the process; only on the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_on_signals(server: uvicorn.Server) -> contextlib.AbstractContextManager[None]:
    """Let signals stop a uvicorn server and not the process: uvicorn raises them again once all is closed."""
    return on_stop_signals(lambda: setattr(server, "should_exit", True))


class PrivateSocket:
    """A listening Unix socket in a new directory that only this user can enter."""

    def __init__(self) -> None:
        directory, lock = _locked_directory()
        with contextlib.ExitStack() as resources:
            resources.callback(os.close, lock)
            resources.callback(shutil.rmtree, directory, ignore_errors=True)
            self._socket = resources.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            self._socket.bind(str(directory / _SOCKET_NAME))
            self._socket.listen(_BACKLOG)
            self._resources = resources.pop_all()
        self._removing = threading.Lock()
        self.address = f"{_SCHEME}{quote(str(directory / _SOCKET_NAME), safe='')}"

    def fileno(self) -> int:
        return self._socket.fileno()

    def let_go(self) -> None:
        """Leave the socket to the child alone: when the child ends, connections are refused."""
        self._socket.close()

    def remove(self) -> None:
        """Close the socket and remove its directory; can be called twice."""
        # The lock: closed twice at once, a descriptor may belong to another file the second time.
        with self._removing:
            self._resources.close()


def _locked_directory() -> tuple[Path, int]:
    """Return a new directory and the descriptor that locks it; a sweep may remove it until it is locked."""
    while True:
        made = Path(tempfile.mkdtemp(prefix=_PREFIX))
        if len(bytes(made / _SOCKET_NAME)) > _MAX_PATH_BYTES:
            with contextlib.suppress(FileNotFoundError):  # swept
                made.rmdir()
            made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp"))
        try:
            descriptor = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if made.is_dir():
            _sweep(made.parent)
            return made, descriptor
        os.close(descriptor)


def _sweep(parent: Path) -> None:
    """Remove the directories of killed processes of this user."""
    for left in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # in use, another user's, or gone already
            descriptor = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(descriptor)
