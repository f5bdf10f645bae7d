"""Public path of the callback listener; defined in :mod:`osmosis_ai.controller.callbacks`."""

from osmosis_ai.controller.callbacks import (
    CallbackListener,
    create_callback_app,
)

__all__ = [
    "CallbackListener",
    "create_callback_app",
]
