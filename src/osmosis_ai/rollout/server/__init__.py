"""HTTP servers for backends and agent loops; they need the `server` extra."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..extras import needs_extra

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
    with needs_extra("server", "a rollout server"):
        module = importlib.import_module(_HOMES[name], __name__)
    value = getattr(module, name)
    globals()[name] = value
    return value
