"""Public path of the callback store; defined in :mod:`osmosis_ai.controller.callbacks`."""

from osmosis_ai.controller.callbacks import (
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
