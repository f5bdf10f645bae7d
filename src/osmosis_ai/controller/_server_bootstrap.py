"""Runs a rollout's entrypoint as ``__main__`` in the rollout's environment, or serves the agent loop that it defines.

The server process starts with ``python _server_bootstrap.py ENTRYPOINT`` in the rollout's directory. The process ends
with its parent, uvicorn listens on the parent's socket instead of a port, and ``/health`` proves which process answers.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import logging
import os
import runpy
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.processes.child_process import watch_parent
from osmosis_ai.rollout.cli_utils import holds_an_agent_loop, names_an_attribute

INSTANCE_ENV = "_OSMOSIS_ROLLOUT_INSTANCE_ID"
LISTENER_ENV = "_OSMOSIS_ROLLOUT_LISTENER_FD"
INSTANCE_HEADER = "x-osmosis-rollout-instance-id"


def main(entrypoint: str) -> None:
    watch_parent()
    # Callbacks need it. A third of its import loads certificates without the interpreter's lock, so it costs less here.
    threading.Thread(target=importlib.import_module, args=("aiohttp",)).start()
    # Imports allocate many objects that stay, so collecting more rarely makes the server start faster.
    gc.set_threshold(20_000)
    # The interpreter's collection before it ends takes up to 0.2 s.
    atexit.register(gc.freeze)
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # A server does not need the command line of httpx, whose imports (rich, click) take 30 ms.
    sys.modules["httpx._main"] = None  # type: ignore[assignment]
    project = Path.cwd()
    is_attribute = names_an_attribute(entrypoint)
    path = Path(entrypoint).resolve()
    _set_import_path(project if is_attribute else path.parent, project)
    if instance_id := os.environ.get(INSTANCE_ENV):
        _prove_ownership(instance_id)
    if listener := os.environ.pop(LISTENER_ENV, None):
        _configure_uvicorn(socket.socket(fileno=int(listener)))
    sys.argv = [entrypoint if is_attribute else str(path)]
    if not is_attribute and not holds_an_agent_loop(path):
        runpy.run_path(str(path), run_name="__main__")
        return
    from osmosis_ai.rollout.hosting import serve_entrypoint, serve_reference

    try:
        serve_reference(entrypoint) if is_attribute else serve_entrypoint(path)
    except OsmosisError as error:
        sys.exit(f"{error.message}" + (f" ({error.hint})" if error.hint else ""))


def _set_import_path(entrypoint_dir: Path, project: Path) -> None:
    """Let the entrypoint import modules from its own directory, from `src` and from the project's directory."""
    ours = dict.fromkeys(str(each) for each in (entrypoint_dir, project / "src", project) if each.is_dir())
    # Python puts this file's directory first, and its modules would hide the project's.
    hidden = {*ours, str(Path(__file__).resolve().parent)}
    sys.path[:] = [*ours, *(each for each in sys.path if each not in hidden)]


def _prove_ownership(instance_id: str) -> None:
    """Add a header with this instance's id to the ``/health`` responses of Starlette and FastAPI applications."""
    try:
        from starlette.applications import Starlette
    except ImportError:  # the entrypoint serves in another way, or fails by itself
        return
    serve = Starlette.__call__
    header = (INSTANCE_HEADER.encode(), instance_id.encode())

    async def serve_with_proof(self: Starlette, scope: Any, receive: Any, send: Any) -> None:
        async def send_with_proof(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), header]}
            await send(message)

        is_health = scope["type"] == "http" and scope["path"] == "/health"
        await serve(self, scope, receive, send_with_proof if is_health else send)

    Starlette.__call__ = serve_with_proof  # type: ignore[method-assign]


def _configure_uvicorn(listener: socket.socket) -> None:
    """Let uvicorn use the listener in place of the rollout's port."""
    listener.set_inheritable(False)  # processes that the agent starts must not have it
    try:
        import uvicorn
    except ImportError:  # the entrypoint serves in another way, on the port
        listener.close()
        return
    serve, bind = uvicorn.Server.serve, uvicorn.Config.bind_socket
    port = os.environ["_OSMOSIS_ROLLOUT_PORT"]

    def is_rollout_port(config: uvicorn.Config) -> bool:
        return str(config.port) == port and config.uds is None and config.fd is None

    async def serve_on_listener(self: uvicorn.Server, sockets: list[socket.socket] | None = None) -> None:
        _share_tls_contexts()
        if sockets is None and is_rollout_port(self.config):
            sockets = [listener]
        await serve(self, sockets)

    def bind_listener(self: uvicorn.Config) -> socket.socket:
        return listener if is_rollout_port(self) else bind(self)  # several workers share the result

    uvicorn.Server.serve = serve_on_listener  # type: ignore[method-assign]
    uvicorn.Config.bind_socket = bind_listener  # type: ignore[method-assign]


def _share_tls_contexts() -> None:
    """Share one default TLS context among HTTP clients: it takes 25 ms, and agents often open a client per rollout."""

    def sharing(create: Callable[..., Any]) -> Callable[..., Any]:
        shared = functools.cache(create)

        def create_once(**options: Any) -> Any:
            is_default = options.get("verify") is True and options.get("cert") is None
            return shared(**options) if is_default else create(**options)

        return create_once

    for library in ("httpx", "httpx2"):  # `openai` uses the second from version 3 on
        transports: Any = sys.modules.get(f"{library}._transports.default")
        if hasattr(transports, "create_ssl_context"):
            # Only the transports' own name: a caller of `httpx.create_ssl_context` may change its context.
            transports.create_ssl_context = sharing(transports.create_ssl_context)


if __name__ == "__main__":
    main(sys.argv[1])
