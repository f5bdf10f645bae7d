"""A PostgreSQL database that is none for a platform is refused in a sentence that says what mends it."""

from __future__ import annotations

import secrets

import pytest
from sqlalchemy import make_url, text

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.db.engine import Database
from tests.platform.databases import postgres_database


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
