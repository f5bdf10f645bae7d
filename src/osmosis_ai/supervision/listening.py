"""A server in this process: its port is taken before anything is said of it, and a signal ends it as it should end."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

_BACKLOG = 2048


class StoppableServer(Protocol):
    """A server that stops soon after it is asked to (``uvicorn.Server``)."""

    should_exit: bool


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address, port 0 at a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def why_not(error: Exception) -> str:
    """Return the system's reason why an address cannot be bound."""
    # Python adds the address to what the system says; where none was found, only Python says so.
    number = getattr(error, "errno", None)
    if isinstance(number, int) and number > 0:
        return os.strerror(number)
    return getattr(error, "strerror", None) or str(error)


@contextmanager
def ended_by_signals(server: StoppableServer) -> Iterator[None]:
    """Have signals end ``server`` and not the process: uvicorn raises those it got once more when all is closed."""

    def end() -> None:
        server.should_exit = True

    with told_of_signals(end):
        yield


@contextmanager
def told_of_signals(tell: Callable[[], None]) -> Iterator[None]:
    """Have Ctrl-C and SIGTERM call ``tell``, and not end the process; off the main thread nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: tell()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
