"""Callback store under its public import path; defined in :mod:`osmosis_ai.driving`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_ai.driving.callback_registry import (
        CallbackStore,
        DuplicateRegistrationError,
        TerminalCallbackResult,
        UnknownRolloutIdError,
        duplicate_callback_payload,
    )

__all__ = [
    "CallbackStore",
    "DuplicateRegistrationError",
    "TerminalCallbackResult",
    "UnknownRolloutIdError",
    "duplicate_callback_payload",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from osmosis_ai.driving import callback_registry

    return getattr(callback_registry, name)
