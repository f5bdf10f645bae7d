"""Pages by name where the database's language orders texts otherwise than by their bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from sqlalchemy import String, create_engine, make_url, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool

from osmosis_ai.platform.db.keyset import KeysetOrder, KeysetPlace, read_page, reversed_place
from tests.platform.databases import postgres_database

NAMES = ("a-b", "ab", "a_c", "B", "b-1", "b1", "Zoe", "zoe-2", "zoë", "eval-9", "evala", "éval")
"""Of two kinds in turn: where one goes by bytes and the other by language, pages skip some of them."""
_BY_LANGUAGE = "TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'"


class _Base(DeclarativeBase):
    pass


class _Named(_Base):
    __tablename__ = "named"

    name: Mapped[str] = mapped_column(String(20), primary_key=True)
    kind: Mapped[int]


@pytest.fixture
def session() -> Iterator[Session]:
    with ExitStack() as stack:
        try:
            url = stack.enter_context(postgres_database(_BY_LANGUAGE))
        except DBAPIError as error:
            pytest.skip(
                f"this PostgreSQL knows no languages (OSMOSIS_TEST_POSTGRES_URL names another): {error.orig}"
            )
        engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"), poolclass=NullPool)
        _Base.metadata.create_all(engine)
        session = stack.enter_context(Session(engine))
        session.add_all(_Named(name=name, kind=number % 2) for number, name in enumerate(NAMES))
        session.flush()
        yield session


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_pages_of_several_ranges_show_each_name_once_in_the_order_of_the_database(
    session: Session, limit: int, descending: bool
) -> None:
    order = KeysetOrder(None, (_Named.name,), descending)
    ranges = [select(_Named.name).where(_Named.kind == kind) for kind in (0, 1)]
    direction = _Named.name.desc() if descending else _Named.name
    names = list(session.scalars(select(_Named.name).order_by(direction)))
    assert names != sorted(names, reverse=descending), "the language has an order of its own"
    place: KeysetPlace | None = None
    seen: list[str] = []
    while page := [row.name for row in read_page(session, ranges, order, place, limit=limit)]:
        seen += page
        place = KeysetPlace(None, (page[-1],))
    assert seen == names
    assert place is not None
    back = read_page(session, ranges, order, reversed_place(place), limit=limit)
    assert [row.name for row in back] == names[-2 : -2 - limit : -1]
