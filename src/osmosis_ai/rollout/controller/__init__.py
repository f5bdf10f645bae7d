"""Controller classes under their public import path, loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_ai.controller.callbacks import CallbackListener, CallbackStore, TerminalCallbackResult
    from osmosis_ai.controller.model_proxy import LiteLLMBridge

__all__ = ["CallbackListener", "CallbackStore", "LiteLLMBridge", "TerminalCallbackResult"]

_MODULES = {
    "CallbackListener": "osmosis_ai.controller.callbacks",
    "CallbackStore": "osmosis_ai.controller.callbacks",
    "LiteLLMBridge": "osmosis_ai.controller.model_proxy",
    "TerminalCallbackResult": "osmosis_ai.controller.callbacks",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
