"""Numbers of a platform as JSON can say them: what is no finite number is null, wherever in a reply it stands."""

from __future__ import annotations

import math
from typing import Any


def finite(value: float | None) -> float | None:
    """Return ``value`` where JSON can say it."""
    return value if value is not None and math.isfinite(value) else None


def plain(message: Any) -> Any:
    """Return a message of the platform as the JSON it was, infinities as null."""
    return None if message is None else jsonable(message.to_wire())


def jsonable(value: Any) -> Any:
    """Return a value of JSON without infinities."""
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [jsonable(item) for item in value]
    return finite(value) if isinstance(value, float) else value
