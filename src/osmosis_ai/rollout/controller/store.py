"""The callback store under the path rollout code knows; it lives in :mod:`osmosis_ai.controller`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_ai.controller.store import (
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
    from osmosis_ai.controller import store

    return getattr(store, name)
