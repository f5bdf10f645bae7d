"""Protect this process's memory, environment and descriptors from programs of the same user.

On Linux, a user's processes can read each other's memory and initial environment, unless a process
disables this (`PR_SET_DUMPABLE` in prctl(2)); root can read everything. The protection starts with that call, and a
variable removed from the environment stays readable until then. Secrets for a child are therefore passed through
a descriptor.
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
HANDED_ENV = "_OSMOSIS_HANDED_FD"
_PR_SET_DUMPABLE = 4
# What a pipe or socket surely takes before anybody reads it: the least is a socket's 8 KiB on macOS.
AT_ONCE_BYTES = 4 * 1024


def is_debuggable(environ: Mapping[str, str]) -> bool:
    """Tell whether the operator wants profilers and core dumps of our own processes (``OSMOSIS_DEBUGGABLE=1``)."""
    return environ.get(DEBUGGABLE_ENV, "").strip().lower() in ("1", "true", "yes", "on")


def keep_to_itself(environ: Mapping[str, str]) -> None:
    """Let no other program of this user read this process, unless ``environ`` says that it may; Linux alone has it."""
    if sys.platform == "linux" and not is_debuggable(environ):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def pipe_of(content: bytes) -> int:
    """Return the read end of a pipe that gives ``content``, for a child that inherits it."""
    return _filled(*os.pipe(), content)


def handed_end(handed: Mapping[str, str]) -> int:
    """Return the descriptor that tells a child what it alone is to know."""
    childs, ours = (end.detach() for end in socket.socketpair())
    return _filled(childs, ours, json.dumps(dict(handed)).encode())


def _filled(read_end: int, write_end: int, content: bytes) -> int:
    if len(content) <= AT_ONCE_BYTES:
        _write_all(write_end, content)
    else:
        Thread(target=_write_all, args=(write_end, content), name="osmosis-handing", daemon=True).start()
    return read_end


def _write_all(write_end: int, content: bytes) -> None:
    # A child that ends unread breaks the pipe: nobody is left who would miss the rest.
    with suppress(ConnectionError), os.fdopen(write_end, "wb", buffering=0) as pipe:
        left = memoryview(content)
        while left:
            left = left[pipe.write(left) or 0 :]


def take_handed() -> dict[str, str]:
    """Return what the parent handed to this process alone; nothing the second time."""
    descriptor = os.environ.pop(HANDED_ENV, None)
    if descriptor is None:
        return {}
    with os.fdopen(int(descriptor), "rb") as told:
        handed: dict[str, str] = json.loads(told.read())
    return handed
