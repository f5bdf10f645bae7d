"""HTTP driver under its public import path; defined in :mod:`osmosis_ai.driving`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_ai.driving.http_driver import HttpRolloutDriver, RolloutProtocolError

__all__ = ["HttpRolloutDriver", "RolloutProtocolError"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from osmosis_ai.driving import http_driver

    return getattr(http_driver, name)
