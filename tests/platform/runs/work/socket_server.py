"""An ASGI application that answers on a Unix socket, in a thread of the test's own process."""

from __future__ import annotations

import threading
from types import TracebackType

import uvicorn
from starlette.types import ASGIApp

from osmosis_ai.processes import PrivateSocket


class SocketServer:
    """Serves ``app`` while it is entered.

    Attributes:
        address: where it is found.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._socket = PrivateSocket()
        self.address = self._socket.address
        config = uvicorn.Config(app, fd=self._socket.fileno(), log_config=None, lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self) -> SocketServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.remove()
