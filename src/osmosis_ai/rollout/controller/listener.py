"""The callback listener under the path rollout code knows; it lives in :mod:`osmosis_ai.controller`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_ai.controller.listener import CallbackListener, create_callback_app

__all__ = ["CallbackListener", "create_callback_app"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from osmosis_ai.controller import listener

    return getattr(listener, name)
