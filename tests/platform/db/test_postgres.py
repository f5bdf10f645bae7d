"""A PostgreSQL database that is none for a platform is refused in a sentence that says what mends it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from sqlalchemy import make_url, select, text
from sqlalchemy.exc import DBAPIError

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.db.engine import Database, DatabaseUnreachableError
from osmosis_ai.platform.db.tables import DbWorkspace
from tests.platform.databases import postgres_database
from tests.platform.db.test_database import names, workspace


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
