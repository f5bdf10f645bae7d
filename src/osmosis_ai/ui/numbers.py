"""Formats of numbers, durations, sizes and dates, for terminal, pages and reports."""

from __future__ import annotations

import math
from datetime import datetime, timezone, tzinfo
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_ai.statistics.estimates import Estimate

MISSING = "–"
NOT_RECORDED = "not recorded"
"""A value that is lost; :data:`MISSING` is one that does not exist."""
_SIZE_UNITS = ("B", "KB", "MB", "GB", "TB")


def number(value: float | None, digits: int = 3) -> str:
    """Return ``0.418`` or ``1.000``; NaN and infinity by their names. Whole numbers have :func:`count`."""
    return MISSING if value is None else f"{_decimal(value):,.{digits}f}"


def _decimal(value: float) -> Decimal | float:
    """Return a number as written, so that 0.4175, 41.75% and a mean of 0.4174999999999999 round alike."""
    return Decimal(repr(round(float(value), 12))) if math.isfinite(value) else value


def compact(value: float | None) -> str:
    """Return a number with three significant decimals, or a count."""
    if value is None:
        return MISSING
    if (abs(value) >= 2 and float(value).is_integer()) or 1000 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    if not value:
        return "0.000"
    return f"{value:.3f}" if 0.001 <= abs(value) < 1000 else f"{value:.3g}"


def duration(seconds: float | None) -> str:
    """Return ``340 ms``, ``1.5s``, ``12m 34s``, ``2h 45m`` or ``1d 1h`` for a number of seconds."""
    if seconds is None:
        return MISSING
    if not math.isfinite(seconds):
        return f"{seconds}"
    if seconds < 0.9995:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour}h"
    return f"{hours}h {minute}m" if hours else f"{minutes}m {second}s"


def size(byte_count: int | None) -> str:
    """Return ``512 B``, ``1.5 KB`` … ``TB`` for a number of bytes (1 KB = 1,024 bytes)."""
    if byte_count is None:
        return MISSING
    value, unit = float(byte_count), 0
    # 1023.96 KB would round to the odd `1024.0 KB`.
    while value >= 1023.95 and unit < len(_SIZE_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_SIZE_UNITS[unit]}" if unit else f"{byte_count} B"


def count(number: int | None) -> str:
    return MISSING if number is None else f"{number:,}"


def setting(value: Any) -> str:
    """Return a setting of a config: ``true``, ``wandb, trackio``, ``1e-05``."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(map(setting, value)) or "none"
    return str(value)


def amount(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def partial_count(total: int, missing: int, of: int, noun: str) -> str:
    """Return ``1,234``, ``1,234 (3 of 4 runs)`` if some did not report, or ``unknown`` if none did."""
    if not missing:
        return count(total)
    return f"{count(total)} ({of - missing:,} of {of:,} {noun})" if total else "unknown"


def percent(fraction: float | None, *, digits: int = 1) -> str:
    """Return ``41.3%`` for a fraction of 0.413."""
    return MISSING if fraction is None else f"{_decimal(fraction) * 100:.{digits}f}%"


def percent_range(low: float, high: float) -> str:
    """Return ``37.2–46.3%`` for fractions of 0.372 and 0.463."""
    return f"{_decimal(low) * 100:.1f}–{_decimal(high) * 100:.1f}%"


def interval(estimate: Estimate, *, percent: bool = False) -> str:
    """Return the 95% confidence interval of an estimate, or why it has none."""
    if estimate.low is None or estimate.high is None:
        return f"none: {estimate.reason}" if estimate.reason else MISSING
    if percent:
        return percent_range(estimate.low, estimate.high)
    return number_range(estimate.low, estimate.high)


def number_range(low: float, high: float) -> str:
    """Return ``0.372–0.463``, or ``-0.100 to 0.463`` with a negative bound."""
    return f"{_decimal(low):.3f}{' to ' if low < 0 else '–'}{_decimal(high):.3f}"


def money(usd: float | None) -> str:
    """Return ``$1.23``; small amounts keep four or six digits so that they do not read as nothing."""
    if usd is None:
        return MISSING
    if abs(usd) >= 0.1 or not usd:
        return f"${usd:,.2f}"
    return f"${usd:.4f}" if abs(usd) >= 0.001 else f"${usd:.6f}"


def date(moment: datetime | str | None, *, seconds: bool = False, zone: tzinfo | None = None) -> str:
    """Format as ``2026-05-01 1:05 PM UTC`` in the local zone or ``zone``; text that is not a date is unchanged."""
    local = _in_zone(moment, zone)
    if isinstance(local, str):
        return local
    clock = f"{local.hour % 12 or 12}:{local:%M:%S}" if seconds else f"{local.hour % 12 or 12}:{local:%M}"
    return f"{local:%Y-%m-%d} {clock} {'AM' if local.hour < 12 else 'PM'} {local.tzname() or ''}".rstrip()


def iso(moment: datetime | str | None) -> str:
    """Format as ``2026-05-01T13:05:00Z`` in UTC, with milliseconds if any; text that is not a date is unchanged."""
    utc = _in_zone(moment, timezone.utc)
    if isinstance(utc, str):
        return utc
    return utc.isoformat(timespec="milliseconds" if utc.microsecond else "seconds").replace("+00:00", "Z")


def _in_zone(moment: datetime | str | None, zone: tzinfo | None) -> datetime | str:
    """Convert to a zone; a missing or invalid moment becomes its text."""
    known = parse_date(moment) if isinstance(moment, str) else moment
    if known is None:
        return moment if isinstance(moment, str) else MISSING
    try:
        return known.astimezone(zone)
    except (OverflowError, ValueError):
        return known


def parse_date(text: str) -> datetime | None:
    """Parse an ISO 8601 date, in UTC by default; None if invalid."""
    try:
        # Python 3.10 reads neither `Z` nor a fraction that has not 3 or 6 digits.
        parsed = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError:
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=timezone.utc)
