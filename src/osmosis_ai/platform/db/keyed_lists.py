"""Paged lists of a workspace's datasets, adapters and secrets.

A page starts after the values of a row and not at an offset. A reader therefore sees each remaining row once despite
concurrent changes, and late pages cost no more than early ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, DateTime, select
from sqlalchemy.orm import Session

from osmosis_ai.platform.db.keyset import KeysetOrder, KeysetPlace, read_page
from osmosis_ai.platform.log_lines import storable
from osmosis_ai.viewer.cursors import Scalar, decode, encode, item_page, refused
from osmosis_ai.viewer.source import ItemPage, ItemT


def keyed_page(
    session: Session,
    columns: Sequence[Any],
    ranges: Sequence[Sequence[ColumnElement[bool]]],
    entries: Callable[[Sequence[str]], Mapping[str, ItemT]],
    *,
    descending: bool = False,
    limit: int,
    cursor: str | None,
) -> ItemPage[ItemT]:
    """Return a page of a table's rows."""
    order = KeysetOrder(None, tuple(columns), descending)
    table = columns[0].class_
    name = ":".join((table.__tablename__, *(column.key for column in columns)))
    place = _place(name, columns, cursor) if cursor else None
    rows = select(*dict.fromkeys((*columns, table.id)))
    found = read_page(session, [rows.where(*each) for each in ranges], order, place, limit=limit + 1)
    known = entries([row.id for row in found])
    # What was deleted between the two statements is not on the page.
    return item_page(
        [row for row in found if row.id in known],
        place.backward if place is not None else None,
        limit=limit,
        entry=lambda row: known[row.id],
        cursor=lambda row, back: encode(name, _key(row, columns), backward=back),
    )


def newest_page(
    session: Session,
    table: Any,
    workspace_id: str,
    entries: Callable[[Sequence[str]], Mapping[str, ItemT]],
    *,
    limit: int,
    cursor: str | None,
) -> ItemPage[ItemT]:
    """Return a page of what a workspace has in a table, the newest first; otherwise as :func:`keyed_page`."""
    return keyed_page(
        session,
        (table.created_at, table.id),
        [[table.workspace_id == workspace_id]],
        entries,
        descending=True,
        limit=limit,
        cursor=cursor,
    )


def moment_of(value: Scalar, cursor: str) -> datetime:
    """Return the moment that a part of a cursor's key names."""
    try:
        if isinstance(value, str) and (moment := datetime.fromisoformat(value)).tzinfo is not None:
            return moment
    except ValueError:
        pass
    raise refused(cursor)


def text_of(value: Scalar, cursor: str) -> str:
    """Return the text that a part of a cursor's key is."""
    if not isinstance(value, str) or storable(value) != value:
        raise refused(cursor)
    return value


def _key(row: Any, columns: Sequence[Any]) -> list[Scalar]:
    values = [getattr(row, column.key) for column in columns]
    return [value.isoformat() if isinstance(value, datetime) else value for value in values]


def _place(name: str, columns: Sequence[Any], cursor: str) -> KeysetPlace:
    key, backward = decode(cursor, name, parts=len(columns))
    return KeysetPlace(
        None,
        tuple(_value(column, part, cursor) for column, part in zip(columns, key, strict=True)),
        backward,
    )


def _value(column: Any, part: Scalar, cursor: str) -> datetime | str:
    if isinstance(getattr(column.type, "impl", column.type), DateTime):
        return moment_of(part, cursor)
    return text_of(part, cursor)
