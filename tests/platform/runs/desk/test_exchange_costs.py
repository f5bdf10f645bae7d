"""What an exchange asks of the database: counted, because a round trip costs more than what it brings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timedelta, timezone

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import NullPool, create_engine

from osmosis_ai.evaluation.run_state import ProgressSnapshot
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.db.base import upsert
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbJournalSegment, DbRun, DbSample, DbWorkspace
from osmosis_ai.platform.runs.desk import journal_folding
from osmosis_ai.platform.runs.journal_segments import journal_segments, segment_bytes
from osmosis_ai.platform.runs.journalled import sample_row
from osmosis_ai.platform.runs.leases import LEASE, Lease, Leases
from osmosis_ai.platform.runs.lifecycle import LeaseLostError
from osmosis_ai.platform.services import PlatformServices
from tests.platform.databases import postgres_database
from tests.platform.evaluations import Submits, submit_body
from tests.platform.runs.desk.desk_workers import DeskWorker, records
from tests.platform.viewer.runs_world import statements_of

PROGRESS = ProgressSnapshot(10, 40, 4, 0, 0, 10, 0.4, 4000, None, 3, 2.5, 10)


@pytest.fixture
def worker(api: TestClient, services: PlatformServices) -> DeskWorker:
    evaluation = {"limit": 60, "n": 1, "batch_size": 4}
    Submits("/api/cli/eval-runs", submit_body).taken(api, evaluation_config=evaluation)
    return DeskWorker.claims(services)


def test_an_exchange_of_records_is_four_statements_and_a_heartbeat_two(
    worker: DeskWorker, services: PlatformServices
) -> None:
    worker.write(records(10))
    worker.sync(
        journal=worker.part(end=worker.journal.index(b"\n") + 1)
    )  # which items there are is read once
    with statements_of(services.db) as said:
        worker.sync(journal=worker.part(worker.journal.index(b"\n") + 1), progress=asdict(PROGRESS))
    assert [statement.split(" ", 1)[0] for statement, _ in said] == ["SELECT", "INSERT", "INSERT", "UPDATE"]
    with statements_of(services.db) as said:
        worker.sync()
    assert [statement.split(" ", 1)[0] for statement, _ in said] == ["SELECT", "UPDATE"]
    run = worker.run
    assert (run.reward, run.pass_rate, run.progress) == (0.4, 0.4, {"completed": 10, "total": 40})
    assert (run.results or {})["total_tokens"] == 4000 and len(worker.samples()) == 10


def test_small_parts_become_one_row_and_stay_the_journal(
    worker: DeskWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_folding, "FOLD_BYTES", 32 * 2000)
    sent = 0
    for row in range(60):
        worker.write(records(1, first=row))
        worker.sync(journal=worker.part(sent))
        sent = len(worker.journal)
    with worker.services.db.session() as session:
        segments = journal_segments(session, worker.run_id)
    assert len(segments) < 30
    assert b"".join(segment_bytes(worker.services.blobs, each) for each in segments) == worker.journal
    ends = [each.offset + each.length for each in segments]
    assert [each.offset for each in segments] == [0, *ends[:-1]]


@pytest.fixture
def postgres() -> Iterator[Database]:
    with postgres_database() as url:
        db = Database(url)
        db.migrate()
        with db.transaction() as session:
            session.add(DbWorkspace(id="wsp_1", name="fern", created_at=datetime.now(timezone.utc)))
            session.flush()
            session.add(a_run())
        yield db
        db.dispose()


def a_run() -> DbRun:
    named = {"rollout_name": "multiply", "dataset_name": "multiply", "model_path": "osmosis/tiny"}
    now = datetime.now(timezone.utc)
    owned = {"lease_token": "mine", "lease_expires_at": now, "attempt": 1}
    described = {"kind": "eval", "name": "run-1", "status": "running", "created_at": now, "request": {}}
    return DbRun(id="run_1", workspace_id="wsp_1", **named, **described, **owned)


@pytest.mark.integration
def test_on_postgresql_an_exchange_writes_by_the_databases_clock_and_only_for_the_owner(
    postgres: Database,
) -> None:
    class BehindClock(SystemClock):
        def now(self) -> datetime:
            return super().now() - timedelta(days=1)

    leases = Leases(postgres, BehindClock())
    with leases.hearing(Lease("run_1", "mine", 1)) as (_, run):
        run.log_lines, run.results = 7, {"score": 0.25}
    with (
        pytest.raises(LeaseLostError),
        leases.hearing(Lease("run_1", "another", 1)) as (_, run),
    ):
        run.log_lines = 8
    with postgres.session() as session:
        kept = session.get_one(DbRun, "run_1")
    assert (kept.log_lines, kept.results, kept.reward) == (7, {"score": 0.25}, 0.25)
    assert kept.lease_expires_at is not None
    assert timedelta() < kept.lease_expires_at - datetime.now(timezone.utc) <= LEASE


@pytest.mark.integration
def test_on_postgresql_rows_written_at_once_are_what_they_are_one_by_one(postgres: Database) -> None:
    told = [
        *records(3, parts={"length": 0.1, "odd": 3}, output='he said "so: é\\ \U0001f600"', cost_usd=1e-9),
        *records(1, first=1, reward=None, tokens=2**31 - 1),
    ]
    rows = [{**sample_row("run_1", each), "resumed": False, "position": 7} for each in told]
    with postgres.transaction() as session:
        upsert(session, DbSample, rows)
    with postgres.session() as session:
        kept = session.query(DbSample).order_by(DbSample.row_index).all()
    expected = [rows[0], rows[3], rows[2]]  # of one key the last counts
    assert [{name: getattr(each, name) for name in rows[0]} for each in kept] == expected


@pytest.mark.integration
def test_a_connection_that_was_cut_while_it_lay_idle_is_replaced(
    postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osmosis_ai.platform.db.engine._TRUSTED_S", 0.0)
    idle = (DbRun, DbJournalSegment)
    with postgres.session() as session, postgres.session() as other:
        assert [each.query(table).count() for each, table in zip((session, other), idle, strict=True)] == [
            1,
            0,
        ]
    end_all = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    with create_engine(postgres._url, poolclass=NullPool).connect() as elsewhere:
        assert len(elsewhere.exec_driver_sql(end_all).all()) >= 2
    with postgres.session() as session, postgres.session() as other:
        assert session.get(DbRun, "run_1") is not None
        assert other.query(DbJournalSegment).count() == 0
