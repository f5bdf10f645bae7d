"""The queue on PostgreSQL: several writers at once, a database with its own clock, and one that goes away."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Connection, NullPool, create_engine, make_url

from osmosis_ai.api.models.workers import JournalPart
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import PlatformConfig
from tests.evaluation.builders import record
from tests.platform.conftest import World
from tests.platform.databases import postgres_database
from tests.platform.fake_worker import EVALS, GPU, TERM_S, FakeWorker, Refused, claim, pool_token, records

pytestmark = pytest.mark.integration
TERM = timedelta(seconds=TERM_S)
END_ALL = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


class BehindClock(SystemClock):
    def now(self) -> datetime:
        return super().now() - timedelta(days=1)


@pytest.fixture
def clock() -> BehindClock:
    """This machine's clock is far behind; leases use the database's."""
    return BehindClock()


@pytest.fixture
def config(tmp_path: Path) -> Iterator[PlatformConfig]:
    """A platform whose database user is not a superuser, so limits apply to it."""
    with postgres_database() as url:
        role = make_url(url).database or ""
        address = make_url(url).set(drivername="postgresql+psycopg")
        engine = create_engine(address, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE ROLE {role} LOGIN; ALTER DATABASE {role} OWNER TO {role}")
            connection.exec_driver_sql(f"ALTER SCHEMA public OWNER TO {role}")
        limited = make_url(url).set(username=role).render_as_string(hide_password=False)
        yield PlatformConfig(home=tmp_path / "platform", database_url=limited, port=8733)
        with engine.connect() as connection:
            connection.exec_driver_sql(f"ALTER DATABASE {role} OWNER TO CURRENT_USER")
            connection.exec_driver_sql(f"REASSIGN OWNED BY {role} TO CURRENT_USER; DROP ROLE {role}")


@pytest.fixture
def operator(config: PlatformConfig) -> Iterator[Connection]:
    """A superuser's connection to the platform's database."""
    address = make_url(config.database_url).set(drivername="postgresql+psycopg", username="postgres")
    with create_engine(address, poolclass=NullPool, isolation_level="AUTOCOMMIT").connect() as connection:
        yield connection


def test_leases_use_the_clock_of_the_database(api: TestClient, world: World) -> None:
    EVALS.taken(api, advanced_config=GPU)
    began = datetime.now(timezone.utc)
    worker = FakeWorker.claims(world, "gpu")
    claimed, now = worker.shard.lease_expires_at, datetime.now(timezone.utc)
    assert claimed is not None and began <= claimed - TERM <= now
    worker.sync()
    synced = worker.shard.lease_expires_at
    assert synced is not None and claimed < synced <= datetime.now(timezone.utc) + TERM
    assert claim(world, worker.bearer) is None
    worker.releases("its disk is full", counts=True)
    assert claim(world, worker.bearer) is None, "its pause is not over"


def test_rows_are_stored_as_they_were_reported(api: TestClient, world: World) -> None:
    EVALS.taken(api, advanced_config=GPU)
    worker = FakeWorker.claims(world, "gpu")
    odd = {"parts": {"length": 0.1, "odd": 3}, "output": 'he said "so: é\\ \U0001f600"', "cost_usd": 1e-9}
    failed = {"status": "failed", "reward": None, "tokens": 2**31 - 1}
    written = [record(0, **odd), record(1, **failed), record(2, **odd), record(1, **odd)]
    worker.write(written)
    for _ in range(2):
        worker.sync(
            journal=worker.part(),
            files=[worker.conversation(0, content=b"first"), worker.conversation(0)],
            environment="a\0b",
            limited_by={"a\0": "b\0"},
        )
    first, second, third = worker.samples()
    for kept, sent in ((first, written[0]), (second, written[3]), (third, written[2])):
        for name in ("reward", "tokens", "parts", "output", "cost_usd", "duration_ms", "rollout_id"):
            assert getattr(kept, name) == getattr(sent, name), name
    assert worker.stored_journal() == worker.journal
    with pytest.raises(Refused, match="already has a score"):
        worker.sync(
            journal=JournalPart(offset=len(worker.journal), lines=record(0, 1).to_line().decode() * 2)
        )
    with pytest.raises(Refused, match="already has a score"):
        worker.sync(journal=JournalPart(offset=len(worker.journal), lines=record(1).to_line().decode()))
    worker.finishes()
    assert worker.run.status == "finished"


def test_a_database_without_a_free_connection_loses_nothing(
    api: TestClient, world: World, operator: Connection
) -> None:
    EVALS.taken(api, advanced_config=GPU)
    worker = FakeWorker.claims(world, "gpu")
    worker.records(1)
    worker.write(records(2, first=1))
    role = make_url(world.services.config.database_url).username
    operator.exec_driver_sql(f"ALTER ROLE {role} CONNECTION LIMIT 0")
    operator.exec_driver_sql(END_ALL)
    for _ in range(2):
        with pytest.raises(
            Refused, match="503 DATABASE_BUSY: the platform's database is unavailable; its log has the reason"
        ) as refused:
            worker.sync(journal=worker.part())
        assert str(role) not in str(refused.value.body)
    operator.exec_driver_sql(f"ALTER ROLE {role} CONNECTION LIMIT -1")
    # The lease has nearly expired meanwhile; the owner has a whole term from the recovery on.
    operator.exec_driver_sql("UPDATE run_shards SET lease_expires_at = now() - interval '1 hour'")
    assert claim(world, pool_token(world)) is None
    worker.sync(journal=worker.part())
    assert [each.row_index for each in worker.samples()] == [0, 1, 2]
    worker.finishes()
    assert worker.run.status == "finished"


def test_a_connection_that_was_cut_while_it_was_idle_is_replaced(
    api: TestClient, operator: Connection
) -> None:
    assert api.get(EVALS.route).status_code == 200
    assert len(operator.exec_driver_sql(END_ALL).all()) >= 1
    assert api.get(EVALS.route).status_code == 200
