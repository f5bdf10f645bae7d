"""HTTP servers for backends and agent loops; they need the `server` extra."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..utils.imports import needs_extra

if TYPE_CHECKING:
    from .agent_loop import create_app as create_app
    from .app import ControllerAuth as ControllerAuth
    from .app import create_rollout_server as create_rollout_server
    from .serve import ServeError as ServeError
    from .serve import serve_agent_loop as serve_agent_loop
    from .serve import validate_and_report as validate_and_report
    from .state import AppState as AppState

_MODULES = {
    "AppState": ".state",
    "ControllerAuth": ".app",
    "ServeError": ".serve",
    "create_app": ".agent_loop",
    "create_rollout_server": ".app",
    "serve_agent_loop": ".serve",
    "validate_and_report": ".serve",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs_extra("server", "a rollout server"):
        module = importlib.import_module(_MODULES[name], __name__)
    return getattr(module, name)
