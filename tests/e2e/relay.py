"""A way to a platform that can be cut: nothing comes through then, and nobody is told, or everybody is at once."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Relay:
    """Passes connections on to a port of this machine.

    Args:
        port: where to.
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
        """Let nothing through any more: what is connected stays so, and what connects now hears nothing.

        With ``refuses`` all that is connected is gone, and so is at once what connects.
        """
        self._refuses = refuses
        self._whole.clear()
        if refuses:
            self._drop()

    def heal(self, *, forgets: bool) -> None:
        """Let everything through again; with ``forgets``, connections that were there are gone."""
        if forgets:
            self._drop()
        self._refuses = False
        self._whole.set()

    def close(self) -> None:
        """Listen no longer, and end every connection."""
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
                near.close()  # nobody listens there now
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
                other.sendall(block)  # one that was refused is gone by now
        with suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open.discard(one)
        one.close()
