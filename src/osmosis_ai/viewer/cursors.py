"""Cursors of paged lists, in terms of their sort key, and of followed runs, with their last state."""

from __future__ import annotations

import base64
import binascii
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from osmosis_ai.errors import OsmosisError
from osmosis_ai.viewer.source import ItemPage, ItemT, RunQuery, SampleEntry, SampleQuery

RowT = TypeVar("RowT")
CHANGES = "changes"
"""What stands in place of an order in the cursors of what is new in a run."""
_POSITIONS = re.compile(r"\d{1,18}(?:\.\d{1,18})*", re.ASCII)
_LONGEST = 32_768
_LARGEST = 2**31 - 1
_LARGEST_AMOUNT = sys.float_info.max
Scalar = str | int | float | None

SORTED_BY: Mapping[str, str | None] = {
    "row": None,
    "reward": "reward",
    "duration": "duration_ms",
    "tokens": "tokens",
    "cost": "cost_usd",
}
"""What of a sample each sort goes by; None for the order of rows."""


@dataclass(frozen=True, slots=True)
class SamplePosition:
    """A place in a list of samples."""

    value: float | None
    row: int
    attempt: int
    backward: bool = False


def item_page(
    found: Sequence[RowT],
    backward: bool | None,
    *,
    limit: int,
    entry: Callable[[RowT], ItemT],
    cursor: Callable[[RowT, bool], str],
) -> ItemPage[ItemT]:
    """Return a page of ``found``, which has one row more than the page where there are more."""
    rows, more = list(found[:limit]), len(found) > limit
    if backward:
        rows.reverse()
    if not rows:
        return ItemPage(())
    follows, precedes = (True, more) if backward else (more, backward is not None)
    return ItemPage(
        [entry(row) for row in rows],
        next=cursor(rows[-1], False) if follows else None,
        previous=cursor(rows[0], True) if precedes else None,
    )


def encode(order: str, key: Sequence[Scalar], *, backward: bool = False) -> str:
    """Return a cursor: opaque, of letters, digits, ``-`` and ``_``."""
    text = json.dumps([order, int(backward), *key], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode(cursor: str, order: str, *, parts: int) -> tuple[list[Scalar], bool]:
    """Return (key, backward) of a cursor."""
    try:
        if len(cursor) > _LONGEST:
            raise ValueError("too long")
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        made_for, backward, *key = json.loads(raw)
        if made_for != order or backward not in (0, 1) or len(key) != parts:
            raise ValueError("of another order")
        if not all(part is None or isinstance(part, str) or _is_amount(part) for part in key):
            raise ValueError("no key")
    except (ValueError, TypeError, RecursionError, binascii.Error):
        raise refused(cursor, order) from None
    return key, bool(backward)


def changes_cursor(standing: str, positions: Sequence[int], log: int) -> str:
    """Return the cursor of how a run stands, of how far its files are read, and of its log."""
    return encode(CHANGES, (standing, ".".join(map(str, positions)), log))


def positions_in(cursor: str) -> list[int]:
    """Return the positions that :func:`changes_cursor` was given."""
    positions = str(decode(cursor, CHANGES, parts=3)[0][1])
    if _POSITIONS.fullmatch(positions) is None:
        raise refused(cursor, CHANGES)
    return [int(position) for position in positions.split(".")]


def order_of(query: RunQuery | SampleQuery) -> str:
    """Return the name of a query's order, for :func:`encode`."""
    listed = "runs" if isinstance(query, RunQuery) else "samples"
    return f"{listed}:{query.sort}:{'desc' if query.descending else 'asc'}"


def sample_cursor(query: SampleQuery, position: SamplePosition) -> str:
    """Return the cursor of a place in a list of samples."""
    key = (position.value, position.row, position.attempt)
    return encode(order_of(query), key, backward=position.backward)


def position_of(query: SampleQuery, entry: SampleEntry, *, backward: bool = False) -> SamplePosition:
    """Return where a sample stands in the order of a query; ``backward`` where the page before it is meant."""
    value = getattr(entry, SORTED_BY[query.sort] or "", None)
    return SamplePosition(value, entry.row, entry.attempt, backward=backward)


def sample_position(cursor: str, query: SampleQuery) -> SamplePosition:
    """Return the place that a cursor names."""
    (value, row, attempt), backward = decode(cursor, order_of(query), parts=3)
    numbers = all(type(part) is int and 0 <= part <= _LARGEST for part in (row, attempt))
    if not numbers or not (value is None or _is_amount(value)):
        raise refused(cursor)
    return SamplePosition(
        None if value is None else float(value), int(row or 0), int(attempt or 0), backward=backward
    )


def _is_amount(value: Scalar) -> bool:
    """Tell whether a value is one that a list can be sorted by: JSON's whole numbers may be larger than any float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _LARGEST_AMOUNT


def refused(cursor: str, order: str = "") -> OsmosisError:
    """Return what to say of a cursor that makes no sense: of a list, or of :data:`CHANGES`."""
    of, hint = "this list in this order", "begin at the list's first page"
    if order == CHANGES:
        of, hint = "a run's changes", "ask without one"
    return OsmosisError(f"the cursor is none of {of}.", details={"cursor": cursor[:80]}, hint=hint)
