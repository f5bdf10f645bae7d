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
        self._marker: bytes | None = None
        self._refuses = False
        self.was_cut = threading.Event()
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

    def cut_at(self, marker: bytes, *, refuses: bool) -> None:
        """Be cut when a request that has this in its first line is about to pass; ``was_cut`` tells."""
        self.was_cut.clear()
        self._refuses_then, self._marker = refuses, marker

    def heal(self, *, forgets: bool, cut_next: tuple[bytes, bool] | None = None) -> None:
        """Let everything through again; with ``forgets``, connections that were there are gone.

        ``cut_next``, a marker and whether to refuse, arms :meth:`cut_at` before anything is let through.
        """
        if forgets:
            self._drop()
        if cut_next is not None:
            self.cut_at(cut_next[0], refuses=cut_next[1])
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

    def _look_at(self, block: bytes) -> None:
        """Be cut where this is the request that was waited for."""
        with self._lock:
            is_it = self._marker is not None and self._marker in block.partition(b"\r\n")[0]
            if is_it:
                self._marker = None
        if is_it:
            self.cut(refuses=self._refuses_then)
            self.was_cut.set()

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
            for one, other, asks in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._pass, args=(one, other, asks), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket, asks: bool) -> None:
        with suppress(OSError):
            while block := one.recv(1 << 16):
                if asks:
                    self._look_at(block)
                self._whole.wait()
                other.sendall(block)  # one that was refused is gone by now
        with suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open.discard(one)
        one.close()
