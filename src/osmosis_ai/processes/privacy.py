"""Protect this process's memory, environment and secrets from other programs of the same user.

On Linux, processes of a user can read each other's memory and initial environment unless a process disables this
(`PR_SET_DUMPABLE` in prctl(2)). A variable removed from the environment stays readable until then, so a child
receives secrets through a descriptor.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from threading import Thread

DEBUGGABLE_ENV = "OSMOSIS_DEBUGGABLE"
PRIVATE_VARIABLES_ENV = "_OSMOSIS_HANDED_FD"
_PR_SET_DUMPABLE = 4


def is_debuggable(environ: Mapping[str, str]) -> bool:
    """Return whether the operator allows profilers and core dumps (``OSMOSIS_DEBUGGABLE=1``)."""
    return environ.get(DEBUGGABLE_ENV, "").strip().lower() in ("1", "true", "yes", "on")


def disable_inspection(environ: Mapping[str, str]) -> None:
    """Prevent other programs of this user from reading this process (Linux), unless it is debuggable."""
    if sys.platform == "linux" and not is_debuggable(environ):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def pipe_of(content: bytes) -> int:
    """Return the read end of a pipe that yields ``content``, for a child that inherits it."""
    read_end, write_end = os.pipe()
    _fill(write_end, content)
    return read_end


def private_end(variables: Mapping[str, str]) -> int:
    """Return the descriptor that passes ``variables`` to one child; a socket, which /proc cannot reopen."""
    childs, ours = (end.detach() for end in socket.socketpair())
    _fill(ours, json.dumps(dict(variables)).encode())
    return childs


def _fill(write_end: int, content: bytes) -> None:
    """Write ``content`` in a thread: a pipe takes only so much before it is read."""

    def write() -> None:
        # A child that ends without reading breaks the pipe.
        with suppress(ConnectionError), os.fdopen(write_end, "wb") as pipe:
            pipe.write(content)

    Thread(target=write, name="osmosis-secrets", daemon=True).start()


def take_private_variables() -> dict[str, str]:
    """Return what the parent passed to this process alone; nothing the second time."""
    descriptor = os.environ.pop(PRIVATE_VARIABLES_ENV, None)
    if descriptor is None:
        return {}
    with os.fdopen(int(descriptor), "rb") as stream:
        variables: dict[str, str] = json.loads(stream.read())
    return variables
