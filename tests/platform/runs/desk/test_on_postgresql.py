"""The queue on PostgreSQL: several writers at once, and a database whose clock is not the platform's."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import NullPool, create_engine

from tests.platform.conftest import Member
from tests.platform.databases import postgres_database
from tests.platform.platform_parts import PlatformConfig, PlatformServices, SystemClock
from tests.platform.runs.desk.desk_workers import (
    GPU,
    LEASE_S,
    RUNS,
    DeskWorker,
    Refused,
    claim,
    pool_token,
    records,
    submitted,
)

pytestmark = pytest.mark.integration
RUN_COUNT = 8


class BehindClock(SystemClock):
    def now(self) -> datetime:
        return super().now() - timedelta(days=1)


@pytest.fixture
def clock() -> BehindClock:
    """The clock of this machine is far behind; the database's decides."""
    return BehindClock()


@pytest.fixture
def config(tmp_path: Path) -> Iterator[PlatformConfig]:
    with postgres_database() as url:
        yield PlatformConfig(home=tmp_path / "platform", database_url=url, port=8733)


def test_a_run_goes_to_one_worker_and_its_lease_runs_by_the_databases_clock(
    api: TestClient, services: PlatformServices
) -> None:
    for _ in range(RUN_COUNT):
        submitted(api, advanced_config=GPU)
    tokens = [pool_token(services) for _ in range(4)]
    began = datetime.now(timezone.utc)
    with ThreadPoolExecutor(4) as threads:
        given = list(threads.map(lambda n: claim(services, tokens[n % 4]), range(RUN_COUNT + 2)))
    workers = [DeskWorker(services, each, tokens[0]) for each in given if each is not None]
    assert len({worker.run_id for worker in workers}) == len(workers) == RUN_COUNT
    for worker in workers:
        assert worker.run.lease_expires_at is not None
        leased_at = worker.run.lease_expires_at - timedelta(seconds=LEASE_S)
        assert began <= leased_at <= datetime.now(timezone.utc)
    worker.sync()
    assert worker.run.lease_expires_at > leased_at + timedelta(seconds=LEASE_S)
    stranger = DeskWorker(services, given[0] or given[1], tokens[0])  # type: ignore[arg-type]
    stranger.run_id = worker.run_id
    with pytest.raises(Refused, match="LEASE_LOST"):
        stranger.sync(facts={"environment": "x"})
    assert worker.run.environment is None


def test_rows_written_at_once_are_what_was_recorded(api: TestClient, services: PlatformServices) -> None:
    submitted(api, advanced_config=GPU)
    worker = DeskWorker.claims(services, "gpu")
    odd = {"parts": {"length": 0.1, "odd": 3}, "output": 'he said "so: é\\ \U0001f600"', "cost_usd": 1e-9}
    said = [*records(3, **odd), *records(1, first=1, reward=None, tokens=2**31 - 1)]
    worker.write(said)
    worker.sync(journal=worker.part())
    first, second, third = worker.samples()
    for kept, record in ((first, said[0]), (second, said[3]), (third, said[2])):  # of one key the last counts
        for name in ("reward", "tokens", "parts", "output", "cost_usd", "duration_ms", "rollout_id"):
            assert getattr(kept, name) == getattr(record, name), name


def test_a_connection_that_was_cut_while_it_lay_idle_is_replaced(
    api: TestClient, member: Member, config: PlatformConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osmosis_ai.platform.db.engine._TRUSTED_S", 0.0)
    assert api.get(RUNS).status_code == 200
    end_all = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    with create_engine(config.database_url, poolclass=NullPool).connect() as other:
        assert len(other.exec_driver_sql(end_all).all()) >= 1
    assert api.get(RUNS).status_code == 200
