"""Keyset pagination in index order, without sorting or skipping rows, and text search in lists.

A page starts after the values of a row and not at an offset. A reader therefore sees each remaining row once despite
concurrent changes, and late pages cost no more than early ones.

An order has two parts in either direction, rows with a value and then rows without one: SQLite and PostgreSQL put NULL
at opposite ends, and each part is a range of the same index. Several ranges (two parts, two kinds of runs) are read
in one statement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Generic, TypeVar

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Select,
    String,
    and_,
    bindparam,
    func,
    literal,
    or_,
    select,
    tuple_,
    union_all,
)
from sqlalchemy.orm import Session
from sqlalchemy.sql.base import ExecutableOption

from osmosis_ai.platform.db.base import Base, UtcDateTime
from osmosis_ai.platform.log_lines import storable
from osmosis_ai.sqlite_text import ESCAPE, HOLDS, like_pattern
from osmosis_ai.viewer.source import ItemPage, Scalar, decode, encode, item_page, refused

RowT = TypeVar("RowT", bound=Base)
# PostgreSQL's plans that do not walk the index: a merge joins sorted rows from their beginning on, and what is
# materialized is a join's inner side, read for each row.
_OTHER_PLANS = ("enable_sort", "enable_incremental_sort", "enable_mergejoin", "enable_material")


@dataclass(frozen=True, slots=True)
class KeysetOrder:
    """An order of rows. If ``few`` rows match, PostgreSQL chooses its own plan."""

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


class PagedRows(Generic[RowT]):
    """A list of a table's rows in the order of some columns, by cursor or by offset.

    Clients ask for lists all the time: statements that are built once are also compiled once.
    """

    def __init__(
        self,
        table: type[RowT],
        which: ColumnElement[bool],
        *columns: Any,
        descending: bool = False,
        options: Sequence[ExecutableOption] = (),
    ) -> None:
        self._columns = columns
        self._name = ":".join((columns[0].class_.__tablename__, *(column.key for column in columns)))
        self._count = select(func.count()).select_from(table).where(which)
        rows = select(table).where(which).options(*options).limit(bindparam("limit"))
        place = tuple_(*(bindparam(column.key, type_=column.type) for column in columns))
        upward, downward = rows.order_by(*columns), rows.order_by(*(column.desc() for column in columns))
        self._from_start = (downward if descending else upward).offset(bindparam("offset"))
        above = upward.where(tuple_(*columns) > place)
        below = downward.where(tuple_(*columns) < place)
        self._behind, self._before = (below, above) if descending else (above, below)

    @classmethod
    def newest(cls, table: Any, *options: ExecutableOption) -> PagedRows[Any]:
        """Return the list of the rows of a workspace, newest first."""
        mine = table.workspace_id == bindparam("workspace_id")
        return PagedRows(table, mine, table.created_at, table.id, descending=True, options=options)

    def page(
        self,
        session: Session,
        bound: Mapping[str, Any],
        *,
        limit: int,
        offset: int | None = None,
        cursor: str | None = None,
    ) -> ItemPage[RowT]:
        """Return a page, with the ``total`` if an offset is given; ``bound`` are the values of the conditions."""
        if offset is not None:
            rows = session.scalars(self._from_start, {**bound, "limit": limit, "offset": offset}).all()
            return ItemPage(rows, counts={"total": session.scalar(self._count, bound) or 0})
        asked, backward = {**bound, "limit": limit + 1}, None
        if cursor:
            key, backward = decode(cursor, self._name, parts=len(self._columns))
            for column, part in zip(self._columns, key, strict=True):
                is_moment = isinstance(column.type, UtcDateTime)
                asked[column.key] = moment_of(part, cursor) if is_moment else text_of(part, cursor)
            found = session.scalars(self._before if backward else self._behind, asked)
        else:
            found = session.scalars(self._from_start, {**asked, "offset": 0})
        return item_page(found.all(), backward, limit=limit, cursor=self._cursor_of)

    def _cursor_of(self, row: RowT, backward: bool) -> str:
        values = [getattr(row, column.key) for column in self._columns]
        key = [value.isoformat() if isinstance(value, datetime) else value for value in values]
        return encode(self._name, key, backward=backward)


def moment_of(value: Scalar, cursor: str) -> datetime:
    try:
        if isinstance(value, str) and (moment := datetime.fromisoformat(value)).tzinfo is not None:
            return moment
    except ValueError:
        pass
    raise refused(cursor)


def text_of(value: Scalar, cursor: str) -> str:
    if not isinstance(value, str) or storable(value) != value:
        raise refused(cursor)
    return value


def one_holds(session: Session, columns: Iterable[Any], text: str) -> ColumnElement[bool]:
    """Return the condition that a text is in one of some columns, in any case.

    PostgreSQL folds case by its database's locale. SQLite uses a function that :mod:`osmosis_ai.platform.db.engine`
    adds to every connection.
    """
    wanted = storable(text)
    if session.get_bind().dialect.name != "sqlite":
        return or_(*(column.icontains(wanted, autoescape=True) for column in columns))
    pattern, holds = like_pattern(wanted), getattr(func, HOLDS)
    return or_(*(and_(column.like(pattern, escape=ESCAPE), holds(column, wanted) == 1) for column in columns))


def read_page(
    session: Session,
    ranges: Sequence[Select[Any]],
    order: KeysetOrder,
    place: KeysetPlace | None,
    *,
    limit: int,
) -> list[Any]:
    """Return the first rows behind (or before) a place, nearest first, in one statement."""
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
    """Return the rows of :func:`read_page` for each of some places, in one statement."""
    parts = [(number, part) for number, place in enumerate(places) for part in _parts(order, place)]
    pieces = [part.of(rows, tag, limit) for tag, (_, part) in enumerate(parts) for rows in ranges]
    found: list[list[Any]] = [[] for _ in parts]
    if pieces:
        with nullcontext() if order.few else _index_walk(session, is_last=is_last):
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


def reversed_place(place: KeysetPlace) -> KeysetPlace:
    return replace(place, backward=not place.backward)


@dataclass(frozen=True, slots=True)
class _Part:
    """One range of an index: the rows with a value, or those without, from a place on."""

    conditions: tuple[ColumnElement[bool], ...]
    columns: tuple[Any, ...]
    descending: bool
    missing: tuple[Any, ...] = ()

    def of(self, rows: Select[Any], tag: int, limit: int) -> Select[Any]:
        """Select its first rows, each with ``tag`` before its columns."""
        columns = (*self.missing, *self.columns)
        order = [column.desc() if self.descending else column for column in columns]
        piece = (
            rows.where(*self.conditions).add_columns(literal(tag).label("part")).order_by(*order).limit(limit)
        )
        return select(piece.subquery())


@contextmanager
def _index_walk(session: Session, *, is_last: bool) -> Iterator[None]:
    """Force PostgreSQL to scan the order's index, whatever its cost estimate."""
    if session.get_bind().dialect.name == "sqlite":
        yield
        return

    def setting(values: Iterable[str]) -> list[ColumnElement[str]]:
        # For the rest of the transaction.
        return [func.set_config(name, value, True) for name, value in zip(_OTHER_PLANS, values, strict=True)]

    before = [func.current_setting(name) for name in _OTHER_PLANS]
    found = session.execute(select(*before, *setting(["off"] * len(before)))).one()
    yield
    if not is_last:
        session.execute(select(*setting(found[: len(before)])))


def _ranks(session: Session, values: Collection[Any]) -> Mapping[Any, Any]:
    """Return keys that sort values as the database does, which may follow the rules of a language."""
    is_bytewise = session.get_bind().dialect.name == "sqlite"
    if is_bytewise or not any(isinstance(value, str) for value in values):
        return {value: value for value in values}
    listed = func.unnest(literal(list(values), ARRAY(String))).column_valued("listed")
    return {value: rank for rank, value in enumerate(session.scalars(select(listed).order_by(listed)))}


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
    values = tuple_(*(literal(value, column.type) for value, column in zip(key, columns, strict=True)))
    behind = tuple_(*columns) < values if descending else tuple_(*columns) > values
    return _Part((and_(*conditions, behind),), columns, descending)
