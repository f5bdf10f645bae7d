"""Callback listener under its public import path; defined in :mod:`osmosis_ai.driving`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_ai.driving.callback_server import CallbackListener, create_callback_app

__all__ = ["CallbackListener", "create_callback_app"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from osmosis_ai.driving import callback_server

    return getattr(callback_server, name)
