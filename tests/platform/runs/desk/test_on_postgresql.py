"""The queue on PostgreSQL: several writers at once, and a database whose clock is not the platform's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import NullPool, create_engine, make_url, text

from osmosis_ai.platform.runs.imports import sessions
from tests.platform.conftest import ManualClock, Member
from tests.platform.databases import postgres_database
from tests.platform.local_runs import IMPORTS, LocalRun
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
from tests.platform.runs.told_training import TRAINING_REWARD, claimed, gone_on
from tests.platform.runs.told_training import submitted as training

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


def test_a_run_goes_to_one_of_several_workers(api: TestClient, services: PlatformServices) -> None:
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


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_what_a_training_worker_says_is_kept(
    api: TestClient, services: PlatformServices, clock: ManualClock
) -> None:
    worker = claimed(services, training(api)["id"])
    worker.begin(total_steps=4)
    for _ in range(2):  # said twice, for the answer was lost
        worker.step(1, {TRAINING_REWARD: 0.5, "odd": 1e-300}, clock, row=0.5)
    worker.add_archive(1)
    worker.add_validation(1)
    name = worker.add_checkpoint(1, reward=0.5)
    path = f"/api/cli/training-runs/{worker.run_id}"
    metrics = api.get(f"{path}/metrics").json()
    assert {each["metric_key"]: len(each["data_points"]) for each in metrics["metrics"]} == {
        TRAINING_REWARD: 1,
        "odd": 1,
    }
    assert metrics["validation"] == {"step": 1, "rewards": {"row": 0.5}}
    checkpoints = api.get(f"{path}/checkpoints").json()["checkpoints"]
    assert [each["checkpoint_name"] for each in checkpoints] == [name]
    stored = gone_on(worker).assignment.training
    assert stored is not None and stored.resume_step == 1


def test_a_connection_that_was_cut_while_it_lay_idle_is_replaced(
    api: TestClient, member: Member, config: PlatformConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osmosis_ai.platform.db.engine._TRUSTED_S", 0.0)
    assert api.get(RUNS).status_code == 200
    end_all = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    address = make_url(config.database_url).set(drivername="postgresql+psycopg")
    with create_engine(address, poolclass=NullPool).connect() as other:
        assert len(other.exec_driver_sql(end_all).all()) >= 1
    assert api.get(RUNS).status_code == 200


def test_two_requests_for_the_same_files_in_another_order(
    api: TestClient, services: PlatformServices, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = LocalRun()
    upload = api.post(IMPORTS, json=local.start()).json()["session_id"]
    a, b, *_ = sorted(local.files)
    current, first = sessions._current, threading.local()
    holding: list[None] = []

    def waiting() -> bool:
        with services.db.session() as session:
            return bool(session.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")))

    def held(session: Any, file: Any) -> Any:
        """Once a request has the first of its files, wait until the other has one, too, or waits for this one."""
        row = current(session, file)
        if not hasattr(first, "file"):
            first.file = row.path
            holding.append(None)
            while len(holding) < 2 and not waiting():
                threading.Event().wait(0.01)
        return row

    monkeypatch.setattr(sessions, "_current", held)
    asked = services.eval_imports.upload_instructions
    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(asked, member.workspace.id, upload, order) for order in ([a, b], [b, a])]
        given = [{file.path: grant for file, grant in each.result(timeout=120)} for each in both]
    assert [set(each) for each in given] == [{a, b}] * 2
    assert len(list(services.blobs.unfinished_uploads())) == 2, "one each, the others are over"
