"""Parse how long a server asks its clients to wait."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime


def retry_after_s(headers: Mapping[str, str], *, now: datetime | None = None) -> float | None:
    """Read ``retry-after-ms``, or ``Retry-After`` in seconds or as a date (RFC 9110, 10.2.3)."""
    scale, value = 1000.0, headers.get("retry-after-ms")
    if value is None:
        scale, value = 1.0, headers.get("retry-after")
    if value is None:
        return None
    try:
        wait_s = float(value) / scale
    except ValueError:
        try:
            moment = parsedate_to_datetime(value)
        except (TypeError, ValueError):
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=timezone.utc)
        wait_s = (moment - (now or datetime.now(timezone.utc))).total_seconds()
    return max(0.0, wait_s) if math.isfinite(wait_s) else None
