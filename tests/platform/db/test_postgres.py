"""A PostgreSQL database that is none for a platform is refused in a sentence that says what mends it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import quote

import pytest
from sqlalchemy import String, create_engine, make_url, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.db.engine import Database, DatabaseUnreachableError
from osmosis_ai.platform.db.keyset import KeysetOrder, KeysetPlace, read_page, reversed_place
from osmosis_ai.platform.db.tables import DbWorkspace
from osmosis_ai.platform.readiness import Readiness
from osmosis_ai.platform.services import PlatformServices
from tests.platform.databases import postgres_database
from tests.platform.db.test_database import names, workspace
from tests.platform.postgres_server import PostgresCluster


@pytest.mark.integration
@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_not_every_text_can_be_kept_in_is_refused(encoding: str) -> None:
    with postgres_database(f"ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0") as url:
        database = Database(url)
        with pytest.raises(OsmosisError, match=f"keeps text as {encoding}") as refused:
            database.migrate()
        database.dispose()
    assert refused.value.hint == "make a database with ENCODING 'UTF8'"


@pytest.mark.integration
def test_a_user_who_may_not_make_tables_is_told_of_the_right_it_needs() -> None:
    visitor = f"visitor_{secrets.token_hex(4)}"
    with postgres_database() as url:
        owner = Database(url)
        with owner.transaction() as session:
            session.execute(text(f"CREATE ROLE {visitor} LOGIN PASSWORD 'canary-4711'"))
        as_visitor = make_url(url).set(username=visitor, password="canary-4711")
        database = Database(as_visitor.render_as_string(hide_password=False))
        with pytest.raises(OsmosisError, match="refuses what a platform needs: permission denied") as refused:
            database.migrate()
        database.dispose()
        with owner.transaction() as session:
            session.execute(text(f"DROP ROLE {visitor}"))
        owner.dispose()
    assert "GRANT CREATE ON SCHEMA public" in (refused.value.hint or "")
    assert "canary" not in f"{refused.value.message} {refused.value.hint}"


def test_the_short_name_of_postgresql_is_answered_with_the_long_one() -> None:
    with pytest.raises(OsmosisError, match="not on 'postgres'") as refused:
        Database("postgres://osmosis@db.example/osmosis")
    assert refused.value.hint == "a URL of PostgreSQL begins with postgresql://"


pytestmark = pytest.mark.integration


@pytest.fixture
def url() -> Iterator[str]:
    with postgres_database() as found:
        db = Database(found)
        db.migrate()
        db.dispose()
        yield found


def with_setting(url: str, setting: str) -> Database:
    """Open a database whose connections begin with a setting of the server's."""
    return Database(f"{url}{'&' if '?' in url else '?'}options={quote(f'-c {setting}')}")


def test_a_database_that_was_made_read_only_is_read_and_says_so_of_writes(url: str) -> None:
    db = with_setting(url, "default_transaction_read_only=on")
    try:
        with pytest.raises(DatabaseUnreachableError, match="takes no writes"), db.transaction() as session:
            session.add(workspace("fern"))
        assert names(db) == []
        # What reads and writes all the same is a mistake of ours, and no outage.
        with pytest.raises(DBAPIError, match="read-only"), db.session() as session:
            session.execute(text("DELETE FROM workspaces"))
    finally:
        db.dispose()


def test_what_waits_longer_for_a_lock_than_the_server_lets_it_may_be_tried_again(url: str) -> None:
    holder, db = Database(url), with_setting(url, "lock_timeout=50ms")
    try:
        with holder.transaction() as holding:
            holding.add(workspace("fern"))
        with holder.transaction() as holding:
            holding.scalar(select(DbWorkspace).with_for_update())
            with (
                pytest.raises(DatabaseUnreachableError, match="gave up what it was asked") as failed,
                db.transaction() as session,
            ):
                session.scalar(select(DbWorkspace).with_for_update())
            assert failed.value.is_infrastructure
        with db.transaction() as session:
            assert session.scalar(select(DbWorkspace).with_for_update()) is not None
    finally:
        db.dispose()
        holder.dispose()


def test_a_standby_is_read_and_no_platform_is_ready_on_it(services: PlatformServices) -> None:
    cluster = PostgresCluster()
    try:
        cluster.start()
        db = Database(cluster.url)
        db.migrate()
        with db.transaction() as session:
            session.add(workspace("fern"))
        assert names(db) == ["fern"]
        cluster.kill()
        standby = cluster.data / "standby.signal"
        standby.touch()
        os.chown(standby, cluster.data.stat().st_uid, cluster.data.stat().st_gid)
        cluster.start()
        db.dispose()
        for read_first in (False, True):
            if read_first:
                assert names(db) == ["fern"]  # the server is told otherwise by a connection that has read
            with (
                pytest.raises(DatabaseUnreachableError, match="takes no writes"),
                db.transaction() as session,
            ):
                session.add(workspace("moss"))
        assert problem_of(db, services.blobs) == "it takes no writes"
        cluster.kill()
        standby.unlink()
        cluster.start()
        db.dispose()
        with db.transaction() as session:
            session.add(workspace("moss"))
        assert problem_of(db, services.blobs) == ""
        db.dispose()
    finally:
        cluster.close()


def problem_of(db: Database, blobs: BlobStore) -> str:
    """Return what is wrong with a database, as far as a platform is concerned."""
    return Readiness(db, blobs, SystemClock()).problems(within_s=120)["database"]


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
