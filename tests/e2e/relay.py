"""A connection to a platform that can be cut, silently or with all connections closed."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Relay:
    """Passes connections on to a port of this machine.

    Args:
        port: The port on this machine.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._whole = threading.Event()
        self._whole.set()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._refuses = False
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, *, refuses: bool = False) -> None:
        """Stop passing data on: connections stay open, and new ones get no reply.

        With ``refuses``, all connections are closed, and new ones immediately.
        """
        self._refuses = refuses
        self._whole.clear()
        if refuses:
            self._drop()

    def heal(self, *, forgets: bool) -> None:
        """Pass data on again; with ``forgets``, existing connections are closed."""
        if forgets:
            self._drop()
        self._refuses = False
        self._whole.set()

    def close(self) -> None:
        """Stop listening, and close every connection."""
        self._listener.close()
        self.heal(forgets=True)

    def _drop(self) -> None:
        with self._lock:
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                near.close()  # the port is closed now
                continue
            if self._refuses:
                near.close()
                far.close()
                continue
            with self._lock:
                self._open |= {near, far}
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while block := one.recv(1 << 16):
                self._whole.wait()
                other.sendall(block)  # a refused connection is closed by now
        with suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open.discard(one)
        one.close()
