"""A PostgreSQL server that answers and does not do what it is asked: in a sentence, and asked again later."""

from __future__ import annotations

import os
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError

from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.db.engine import Database, DatabaseUnreachableError
from osmosis_ai.platform.db.tables import DbWorkspace
from osmosis_ai.platform.readiness import Readiness
from osmosis_ai.platform.services import PlatformServices
from tests.platform.databases import postgres_database
from tests.platform.db.test_database import names, workspace
from tests.platform.postgres_server import PostgresCluster

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
