"""Controller classes under their public import path, loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_ai.driving.bridge_litellm import LiteLLMBridge
    from osmosis_ai.driving.callback_registry import CallbackStore, TerminalCallbackResult
    from osmosis_ai.driving.callback_server import CallbackListener

__all__ = ["CallbackListener", "CallbackStore", "LiteLLMBridge", "TerminalCallbackResult"]

_MODULES = {
    "CallbackListener": "osmosis_ai.driving.callback_server",
    "CallbackStore": "osmosis_ai.driving.callback_registry",
    "LiteLLMBridge": "osmosis_ai.driving.bridge_litellm",
    "TerminalCallbackResult": "osmosis_ai.driving.callback_registry",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
