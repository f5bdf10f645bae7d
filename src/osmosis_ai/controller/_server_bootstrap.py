"""Runs a rollout's entrypoint as ``__main__`` inside the rollout's own environment, or hosts the agent loop it holds.

Started as a file by :mod:`osmosis_ai.controller.server_process`: ``python _server_bootstrap.py
<entrypoint>`` in the rollout's directory, where the entrypoint is a file or the ``module:attribute``
of an agent loop. The process ends when its parent does, uvicorn listens on the socket that the parent
made in place of the rollout's port, ``/health`` proves whose server it is, and the project's modules can be imported wherever they lie: beside the
entrypoint, in ``src/``, or in the project's directory.
"""

from __future__ import annotations

import logging
import os
import runpy
import socket
import sys
from pathlib import Path
from typing import Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.rollout.loop.entrypoints import holds_an_agent_loop, names_an_attribute
from osmosis_ai.supervision import watch_parent

INSTANCE_ENV = "_OSMOSIS_ROLLOUT_INSTANCE_ID"
LISTENER_ENV = "_OSMOSIS_ROLLOUT_LISTENER_FD"
INSTANCE_HEADER = "x-osmosis-rollout-instance-id"
_CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")


def main(entrypoint: str) -> None:
    """Become the entrypoint."""
    watch_parent()
    project = Path.cwd()
    is_attribute = names_an_attribute(entrypoint)
    path = Path(entrypoint).resolve()
    beside = project if is_attribute else path.parent
    places = dict.fromkeys(str(place) for place in (beside, project / "src", project) if place.is_dir())
    # Python put this file's directory first, whose modules must not shadow the project's.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [*places, *(place for place in sys.path if place not in places and place != here)]
    _make_clients_cheap()
    instance_id = os.environ.get(INSTANCE_ENV)
    if instance_id:
        _prove_ownership(instance_id)
    listener = os.environ.pop(LISTENER_ENV, None)
    if listener:
        _listen_on(socket.socket(fileno=int(listener)), os.environ["_OSMOSIS_ROLLOUT_PORT"])
    if is_attribute:
        _host("serve_reference", entrypoint)
    elif holds_an_agent_loop(path):
        _host("serve_entrypoint", path)
    else:
        sys.argv = [str(path)]
        runpy.run_path(str(path), run_name="__main__")


def _host(how: str, entrypoint: Any) -> None:
    """Serve an agent loop; what is wrong with it is said in one line, which the log ends with."""
    from osmosis_ai.rollout.loop import hosting

    sys.argv = [str(entrypoint)]
    try:
        getattr(hosting, how)(entrypoint)
    except OsmosisError as error:
        sys.exit(f"{error.message}" + (f" ({error.hint})" if error.hint else ""))


def _make_clients_cheap() -> None:
    """Let the clients that agents open by themselves, often one a rollout, cost and write less."""
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        from httpx._transports import default
    except ImportError:
        return
    create = getattr(default, "create_ssl_context", None)
    if create is None:
        # Another release keeps it elsewhere; its clients cost what they cost.
        return
    contexts: dict[tuple[str | None, ...], Any] = {}

    def create_once(verify: Any = True, cert: Any = None, trust_env: bool = True) -> Any:
        if verify is not True or cert is not None:
            return create(verify=verify, cert=cert, trust_env=trust_env)
        key = tuple(os.environ.get(name) for name in _CERTIFICATE_VARIABLES) if trust_env else ()
        if key not in contexts:
            contexts[key] = create(verify=verify, cert=cert, trust_env=trust_env)
        return contexts[key]

    # Its own transports' name alone: who asks httpx for a context, to change it, gets one of their own.
    default.create_ssl_context = create_once  # type: ignore[attr-defined]


def _prove_ownership(instance_id: str) -> None:
    """Make every Starlette or FastAPI application name this instance on ``/health``."""
    try:
        from starlette.applications import Starlette
    except ImportError:
        # The entrypoint fails on it by itself, or serves by other means.
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


def _listen_on(listener: socket.socket, port: str) -> None:
    """Have uvicorn take ``listener`` wherever the entrypoint asks it for the rollout's port."""
    # What the agent starts has no business with it.
    listener.set_inheritable(False)
    try:
        import uvicorn
    except ImportError:
        # It serves by other means, on the port.
        listener.close()
        return
    serve, bind = uvicorn.Server.serve, uvicorn.Config.bind_socket

    def is_meant(config: uvicorn.Config) -> bool:
        return str(config.port) == port and config.uds is None and config.fd is None

    async def serve_there(self: uvicorn.Server, sockets: list[socket.socket] | None = None) -> None:
        await serve(self, [listener] if sockets is None and is_meant(self.config) else sockets)

    def bind_there(self: uvicorn.Config) -> socket.socket:
        # Called where there are several workers, each of which is handed what this returns.
        return listener if is_meant(self) else bind(self)

    uvicorn.Server.serve = serve_there  # type: ignore[method-assign]
    uvicorn.Config.bind_socket = bind_there  # type: ignore[method-assign]


if __name__ == "__main__":
    main(sys.argv[1])
