"""A PostgreSQL database that is none for a platform is refused with what to change."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from sqlalchemy import make_url, select, text
from sqlalchemy.exc import DBAPIError

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.db.engine import DatabaseUnreachableError, opened_database
from osmosis_ai.platform.db.tables import DbWorkspace
from tests.platform.databases import postgres_database
from tests.platform.db.test_database import names, workspace

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_not_every_text_can_be_kept_in_is_refused(encoding: str) -> None:
    with (
        postgres_database(f"ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0") as url,
        opened_database(url) as db,
        pytest.raises(OsmosisError, match=f"stores text as {encoding}") as refused,
    ):
        db.migrate()
    assert refused.value.hint == "create a database with ENCODING 'UTF8'"


def test_a_user_who_may_not_make_tables_is_told_of_the_right_it_needs() -> None:
    visitor = f"visitor_{secrets.token_hex(4)}"
    with postgres_database() as url, opened_database(url) as owner:
        with owner.transaction() as session:
            session.execute(text(f"CREATE ROLE {visitor} LOGIN PASSWORD 'canary-4711'"))
        as_visitor = make_url(url).set(username=visitor, password="canary-4711")
        with (
            opened_database(as_visitor.render_as_string(hide_password=False)) as db,
            pytest.raises(
                OsmosisError, match="does not allow the platform to create its tables: permission denied"
            ) as refused,
        ):
            db.migrate()
        with owner.transaction() as session:
            session.execute(text(f"DROP ROLE {visitor}"))
    assert "GRANT CREATE ON SCHEMA public" in (refused.value.hint or "")
    assert "canary" not in f"{refused.value.message} {refused.value.hint}"


@pytest.fixture
def url() -> Iterator[str]:
    with postgres_database() as found, opened_database(found) as db:
        db.migrate()
        yield found


def with_setting(url: str, setting: str) -> str:
    """Return the URL for connections that begin with a setting of the server's."""
    return f"{url}{'&' if '?' in url else '?'}options={quote(f'-c {setting}')}"


def test_a_database_that_was_made_read_only_is_read_and_says_so_of_writes(url: str) -> None:
    with opened_database(with_setting(url, "default_transaction_read_only=on")) as db:
        with pytest.raises(DatabaseUnreachableError, match="takes no writes"), db.transaction() as session:
            session.add(workspace("fern"))
        assert names(db) == []
        # A write in a read is a bug and no outage.
        with pytest.raises(DBAPIError, match="read-only"), db.session() as session:
            session.execute(text("DELETE FROM workspaces"))


def test_what_waits_longer_for_a_lock_than_the_server_lets_it_may_be_tried_again(url: str) -> None:
    locked = select(DbWorkspace).with_for_update()
    with opened_database(url) as holder, opened_database(with_setting(url, "lock_timeout=50ms")) as db:
        with holder.transaction() as holding:
            holding.add(workspace("fern"))
        with holder.transaction() as holding:
            holding.scalar(locked)
            with (
                pytest.raises(DatabaseUnreachableError, match="cancelled a query") as failed,
                db.transaction() as session,
            ):
                session.scalar(locked)
            assert failed.value.is_infrastructure
        with db.transaction() as session:
            assert session.scalar(locked) is not None
