"""Public path of the driver interface; defined in :mod:`osmosis_ai.controller.callbacks`."""

from osmosis_ai.controller.callbacks import (
    RolloutDriver,
    RolloutOutcome,
    RolloutRunRequest,
)

__all__ = [
    "RolloutDriver",
    "RolloutOutcome",
    "RolloutRunRequest",
]
