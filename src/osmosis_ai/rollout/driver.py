"""Driver interface under its public import path; defined in :mod:`osmosis_ai.driving`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_ai.driving.driver import RolloutDriver, RolloutOutcome, RolloutRunRequest

__all__ = ["RolloutDriver", "RolloutOutcome", "RolloutRunRequest"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from osmosis_ai.driving import driver

    return getattr(driver, name)
