"""Network of sandboxed programs: the machine's network, or only the run's model and callbacks.

Without the machine's network, a program still has its own loopback. One socket listens there at the address that the
model and the callbacks have outside, and this process answers on it, so the address means the same inside. The
sandbox's first program (:mod:`.inner_listener`) creates the socket, sends it out and exits before user code is loaded.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, cast, get_args

from osmosis_ai.errors import OsmosisError
from osmosis_ai.sandbox import inner_listener

Network = Literal["host", "none"]
NETWORK_ENV = "OSMOSIS_NETWORK"
_UNEXPECTED_FILE = "the file from the sandbox is not a listening socket"


def network_setting(environ: Mapping[str, str]) -> Network | None:
    """Return ``OSMOSIS_NETWORK``, if set; raises OsmosisError."""
    written = environ.get(NETWORK_ENV, "").strip()
    if written and written not in get_args(Network):
        raise OsmosisError(f"{NETWORK_ENV} must be one of {', '.join(get_args(Network))}, not '{written}'.")
    return cast(Network, written) if written else None


def narrower(machine: Network | None, asked: Network | None) -> Network:
    """Return the narrower one of the machine's setting and the run's request."""
    return "none" if "none" in (machine, asked) else "host"


class InnerListener:
    """A socket that listens on a sandbox's loopback and is sent out of it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._here, self._there = socket.socketpair()

    @property
    def authority(self) -> str:
        """The only ``host:port`` that can be reached inside."""
        return f"{inner_listener.LOOPBACK}:{self._port}"

    def fileno(self) -> int:
        return self._there.fileno()

    def command(self, python: Path, program: Sequence[str]) -> list[str]:
        """Return the command that creates the socket and becomes ``program``."""
        script = str(inner_listener.__file__)
        return [str(python), "-I", "-S", script, str(self.fileno()), str(self._port), *program]

    def take(self) -> socket.socket:
        """Return the socket, once the program runs; raises OSError."""
        self._there.close()
        self._here.setblocking(False)
        _, descriptors, *_ = socket.recv_fds(self._here, 1, 1)
        if not descriptors:
            raise OSError("no socket came from the sandbox")
        # The sandbox may send any file: accept only the expected listening socket.
        try:
            listening = socket.socket(fileno=descriptors[0])
        except OSError:
            os.close(descriptors[0])
            raise OSError(_UNEXPECTED_FILE) from None
        is_listening = listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
        if not is_listening or listening.getsockname() != (inner_listener.LOOPBACK, self._port):
            listening.close()
            raise OSError(_UNEXPECTED_FILE)
        return listening

    def close(self) -> None:
        self._there.close()
        self._here.close()
