"""The HTTP servers: around a backend, and around an agent loop; they need the `server` extra."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_ai.rollout.loop.server.app import create_app

    from .app import create_rollout_server
    from .auth import ControllerAuth
    from .serve import ServeError, serve_agent_loop, validate_and_report
    from .state import AppState

_LOOP = "osmosis_ai.rollout.loop.server"
_HOMES = {
    "AppState": f"{_LOOP}.state",
    "ControllerAuth": ".auth",
    "ServeError": f"{_LOOP}.serve",
    "create_app": f"{_LOOP}.app",
    "create_rollout_server": ".app",
    "serve_agent_loop": f"{_LOOP}.serve",
    "validate_and_report": f"{_LOOP}.serve",
}
_EXTRA_MODULES = frozenset({"click", "fastapi", "starlette", "uvicorn"})

__all__ = [
    "AppState",
    "ControllerAuth",
    "ServeError",
    "create_app",
    "create_rollout_server",
    "serve_agent_loop",
    "validate_and_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(_HOMES[name], __name__)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _EXTRA_MODULES:
            raise
        from osmosis_ai.errors import install_command

        raise ModuleNotFoundError(
            f"a rollout server needs the `server` extra (no module named '{error.name}'). "
            f"Install it with: {install_command('server')}",
            name=error.name,
        ) from error
    value = getattr(module, name)
    globals()[name] = value
    return value
