"""The HTTP server around a backend; needs the `server` extra."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .app import create_rollout_server
    from .auth import ControllerAuth

_HOMES = {"ControllerAuth": ".auth", "create_rollout_server": ".app"}
_EXTRA_MODULES = frozenset({"click", "fastapi", "starlette", "uvicorn"})

__all__ = ["ControllerAuth", "create_rollout_server"]


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
