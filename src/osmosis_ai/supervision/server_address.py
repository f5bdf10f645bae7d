"""Server addresses on this machine: a port, or a Unix socket in a private directory.

A server without a key is reached through a socket, where directory permissions control access instead.
Its address is ``http+unix://`` plus the percent-encoded socket path, with plain HTTP on top.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    import aiohttp

_SCHEME = "http+unix://"
_PREFIX = "osmosis-socket-"
_SOCKET_NAME = "server.sock"
# `sun_path` holds 108 bytes on Linux and 104 on macOS, the closing zero included (unix(7), unix(4)).
_MAX_PATH_BYTES = 103
_BACKLOG = 2048
# uvicorn closes an idle connection after 5 s; reusing one at that very moment fails the request.
_KEEP_ALIVE_S = 4.0


def socket_path(address: str) -> str | None:
    """Return the path of the socket that an address names; None when it names a port."""
    return unquote(address.removeprefix(_SCHEME)) if address.startswith(_SCHEME) else None


def server_url(address: str, path: str) -> str:
    """Return the URL to ask for, in a session of :func:`open_server_session`, for a path on a server."""
    return f"{'http://localhost' if socket_path(address) else address.rstrip('/')}{path}"


def open_server_session(address: str, *, timeout_s: float) -> aiohttp.ClientSession:
    """Open a session for requests to one server of ours; call it inside a running event loop and close it."""
    import aiohttp

    path = socket_path(address)
    # No limit: callers decide beforehand how many requests run at once.
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


class PrivateSocket:
    """A Unix socket to listen on, in a new directory that only this user may enter."""

    def __init__(self) -> None:
        self._directory, lock = _locked_directory()
        path = self._directory / _SOCKET_NAME
        with contextlib.ExitStack() as made:
            made.callback(os.close, lock)
            made.callback(shutil.rmtree, self._directory, ignore_errors=True)
            self._socket = made.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            self._socket.bind(str(path))
            self._socket.listen(_BACKLOG)
            self._made = made.pop_all()
        self._removing = threading.Lock()
        self.address = f"{_SCHEME}{quote(str(path), safe='')}"

    def fileno(self) -> int:
        """Return the descriptor that a child is handed."""
        return self._socket.fileno()

    def let_go(self) -> None:
        """Listen no longer here: when the child that was handed the socket is gone, connections are refused."""
        self._socket.close()

    def remove(self) -> None:
        """Be done with it; harmless when somebody is already."""
        # Closed twice at once, a descriptor may be another's the second time.
        with self._removing:
            self._made.close()


def _locked_directory() -> tuple[Path, int]:
    """Return a new directory and the descriptor that locks it."""
    while True:
        made = _short_directory()
        # Who sweeps before it is locked takes it for a killed process's.
        try:
            descriptor = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Who swept while that was waited for has removed it.
        if made.is_dir():
            _sweep(made.parent)
            return made, descriptor
        os.close(descriptor)


def _sweep(parent: Path) -> None:
    """Remove what processes of this user have left that were killed."""
    for left in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # in use, another user's, or gone already
            descriptor = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(descriptor)


def _short_directory() -> Path:
    """Return a new directory, of mode 0700, whose path leaves room for the socket's name."""
    made = Path(tempfile.mkdtemp(prefix=_PREFIX))
    if len(bytes(made / _SOCKET_NAME)) <= _MAX_PATH_BYTES:
        return made
    with contextlib.suppress(FileNotFoundError):  # swept
        made.rmdir()
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp"))
