"""Keyset pagination in index order, without sorting or skipping rows.

An order has two parts in either direction, rows with a value and then rows without one: SQLite and PostgreSQL put NULL
at opposite ends, and each part is a range of the same index. Several ranges (two parts, two kinds of runs) are read
in one statement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ARRAY, ColumnElement, Select, String, and_, func, literal, select, tuple_, union_all
from sqlalchemy.orm import Session

# A merge joins sorted rows from their beginning on; what is materialized is a join's inner side, gone through for each row.
_WAYS_TO_SORT = ("enable_sort", "enable_incremental_sort", "enable_mergejoin", "enable_material")


@dataclass(frozen=True, slots=True)
class KeysetOrder:
    """An order of rows."""

    value: Any | None
    ties: tuple[Any, ...]
    descending: bool = False
    nullable: bool = True
    few: bool = False


@dataclass(frozen=True, slots=True)
class KeysetPlace:
    """A place in an order: behind the row with this value and these ties, or before it."""

    value: Any
    ties: tuple[Any, ...]
    backward: bool = False


@dataclass(frozen=True, slots=True)
class _Part:
    """One range of an index: the rows with a value, or those without, from a place on."""

    conditions: tuple[ColumnElement[bool], ...]
    columns: tuple[Any, ...]
    descending: bool
    missing: tuple[Any, ...] = ()

    def of(self, rows: Select[Any], tag: int, limit: int) -> Select[Any]:
        """Return its first rows, each with ``tag`` before its columns."""
        columns = (*self.missing, *self.columns)
        order = [column.desc() if self.descending else column for column in columns]
        piece = (
            rows.where(*self.conditions).add_columns(literal(tag).label("part")).order_by(*order).limit(limit)
        )
        return select(piece.subquery())


def read_page(
    session: Session,
    ranges: Sequence[Select[Any]],
    order: KeysetOrder,
    place: KeysetPlace | None,
    *,
    limit: int,
) -> list[Any]:
    """Return the first rows behind (or before) a place, the nearest first; one statement."""
    return read_pages(session, ranges, order, [place], limit=limit)[0]


def read_pages(
    session: Session,
    ranges: Sequence[Select[Any]],
    order: KeysetOrder,
    places: Sequence[KeysetPlace | None],
    *,
    limit: int,
    is_last: bool = False,
) -> list[list[Any]]:
    """As :func:`read_page` for each of some places, in one statement."""
    parts = [(number, part) for number, place in enumerate(places) for part in _parts(order, place)]
    pieces = [part.of(rows, tag, limit) for tag, (_, part) in enumerate(parts) for rows in ranges]
    found: list[list[Any]] = [[] for _ in parts]
    if pieces:
        with nullcontext() if order.few else _walking(session, is_last=is_last):
            for row in session.execute(union_all(*pieces) if len(pieces) > 1 else pieces[0]):
                found[row.part].append(row)
    pages: list[list[Any]] = [[] for _ in places]
    for (number, part), rows in zip(parts, found, strict=True):
        if len(ranges) > 1:
            first, *rest = (column.key for column in part.columns)
            ranks = _ranks(session, {getattr(row, first) for row in rows})
            rows.sort(
                key=lambda row: (ranks[getattr(row, first)], *(getattr(row, name) for name in rest)),
                reverse=part.descending,
            )
        pages[number] += rows
    return [page[:limit] for page in pages]


@contextmanager
def _walking(session: Session, *, is_last: bool) -> Iterator[None]:
    """Force PostgreSQL to scan the order's index, whatever its cost estimate."""
    if session.get_bind().dialect.name == "sqlite":
        yield
        return
    before = [func.current_setting(name) for name in _WAYS_TO_SORT]
    found = session.execute(select(*before, *_set(["off"] * len(before)))).one()
    yield
    if not is_last:
        session.execute(select(*_set(found[: len(before)])))


def _set(values: Sequence[str]) -> list[ColumnElement[str]]:
    """Return what sets the planner's ways, for as long as the transaction lasts."""
    return [func.set_config(name, value, True) for name, value in zip(_WAYS_TO_SORT, values, strict=True)]


def _ranks(session: Session, values: Collection[Any]) -> Mapping[Any, Any]:
    """Return what orders values as the database does: texts by the rules of its language, where it has one."""
    is_bytewise = session.get_bind().dialect.name == "sqlite"
    if is_bytewise or not any(isinstance(value, str) for value in values):
        return {value: value for value in values}
    listed = func.unnest(literal(list(values), ARRAY(String))).column_valued("listed")
    return {value: rank for rank, value in enumerate(session.scalars(select(listed).order_by(listed)))}


def reversed_place(place: KeysetPlace) -> KeysetPlace:
    """Return the same place, looked back from."""
    return replace(place, backward=not place.backward)


def _parts(order: KeysetOrder, place: KeysetPlace | None) -> list[_Part]:
    backward = place is not None and place.backward
    if order.value is None:
        return [_part((), order.ties, order.descending != backward, place.ties if place else None)]
    key = (order.value, *order.ties)
    has_value = (order.value.is_not(None),) if order.nullable else ()
    begins_at = None if place is None or place.value is None else (place.value, *place.ties)
    valued = _part(has_value, key, order.descending != backward, begins_at)
    at_missing = place is not None and place.value is None
    if not order.nullable:
        return [] if at_missing and not backward else [valued]
    missing = replace(
        _part((order.value.is_(None),), order.ties, backward, place.ties if place and at_missing else None),
        missing=(order.value,),
    )
    if place is None:
        return [valued, missing]
    if backward:
        return [missing, valued] if at_missing else [valued]
    return [missing] if at_missing else [valued, missing]


def _part(
    conditions: Sequence[ColumnElement[bool]],
    columns: tuple[Any, ...],
    descending: bool,
    key: tuple[Any, ...] | None,
) -> _Part:
    if key is None:
        return _Part(tuple(conditions), columns, descending)
    if len(columns) == 1:
        column, value = columns[0], key[0]
        behind = column < value if descending else column > value
    else:
        values = tuple_(*(literal(value, column.type) for value, column in zip(key, columns, strict=True)))
        behind = tuple_(*columns) < values if descending else tuple_(*columns) > values
    return _Part((and_(*conditions, behind),), columns, descending)
