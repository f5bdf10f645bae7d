"""Make platform numbers JSON-safe: non-finite numbers become null at any depth."""

from __future__ import annotations

import math
from typing import Any


def finite(value: float | None) -> float | None:
    """Return ``value`` if it is finite, else None."""
    return value if value is not None and math.isfinite(value) else None


def plain(message: Any) -> Any:
    """Return a platform message as JSON data, with non-finite numbers as null."""
    return None if message is None else jsonable(message.to_wire())


def jsonable(value: Any) -> Any:
    """Return JSON data with non-finite numbers as null."""
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [jsonable(item) for item in value]
    return finite(value) if isinstance(value, float) else value
