"""Public path of the HTTP driver; defined in :mod:`osmosis_ai.controller.callbacks`."""

from osmosis_ai.controller.callbacks import (
    HttpRolloutDriver,
    RolloutProtocolError,
)

__all__ = [
    "HttpRolloutDriver",
    "RolloutProtocolError",
]
