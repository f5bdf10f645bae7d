"""Claims at once on an engine with several writers: each run goes to one worker, whoever asks at the same moment."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import pytest
from sqlalchemy import select

from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun, DbWorkspace
from osmosis_ai.platform.runs.desk.claims import Claims
from osmosis_ai.platform.runs.desk.unfit_machines import UnfitMachines
from osmosis_ai.platform.runs.execute.runs_to_execute import RunsToExecute
from osmosis_ai.platform.runs.leases import LEASE, Leases
from tests.platform.conftest import ManualClock
from tests.platform.databases import postgres_database
from tests.platform.runs.desk.desk_workers import ANY, offer

pytestmark = pytest.mark.integration
RUNS = 12


def test_a_run_goes_to_one_worker_and_its_lease_runs_by_the_databases_clock() -> None:
    with postgres_database() as url:
        db = Database(url)
        db.migrate()
        try:
            add_runs(db)
            # The clock of this machine is far behind; the database's decides.
            clock = BehindClock(days=1)
            claims = Claims(db, Leases(db, clock), UnfitMachines(db, clock))
            began = datetime.now(timezone.utc)
            with ThreadPoolExecutor(4) as threads:
                taken = list(threads.map(lambda _: claims.take(offer(), ANY), range(RUNS + 2)))
            leases = [each[0] for each in taken if each is not None]
            assert len({lease.run_id for lease in leases}) == len(leases) == RUNS
            with db.session() as session:
                ends = [session.get_one(DbRun, lease.run_id).lease_expires_at for lease in leases]
            given = [end - LEASE for end in ends if end is not None]
            assert len(given) == RUNS and began <= min(given) and max(given) <= datetime.now(timezone.utc)
        finally:
            db.dispose()


def test_a_pause_that_is_over_for_the_database_is_over_for_a_platform_that_is_behind() -> None:
    with postgres_database() as url:
        db = Database(url)
        db.migrate()
        try:
            add_runs(db)
            now = datetime.now(timezone.utc)
            with db.transaction() as session:
                for number, run in enumerate(session.scalars(select(DbRun).order_by(DbRun.created_at))):
                    # Of one workspace the oldest that is due is started, and each that was begun.
                    run.status = "running" if number % 2 else "pending"
                    run.claimable_at = now + timedelta(minutes=3 if number < 4 else -3)
            runs = RunsToExecute(db, Leases(db, BehindClock(minutes=10)))
            assert [run.id for run in runs.oldest_waiting(())] == ["run_4"]
            begun = runs.that_go_on(runs.at_work(()).values())
            assert {run.id for run in begun} == {f"run_{number}" for number in range(5, RUNS, 2)}
        finally:
            db.dispose()


class BehindClock(SystemClock):
    def __init__(self, **by: float) -> None:
        self.by = timedelta(**by)

    def now(self) -> datetime:
        return super().now() - self.by


def add_runs(db: Database) -> None:
    now = ManualClock().now()
    with db.transaction() as session:
        session.add(DbWorkspace(id="wsp_1", name="fern", created_at=now))
        session.flush()
        session.add_all(
            DbRun(
                id=f"run_{number}",
                workspace_id="wsp_1",
                kind="eval",
                name=f"run-{number}",
                status="pending",
                created_at=now + timedelta(seconds=number),
                request={},
                rollout_name="multiply",
                dataset_name="multiply",
                model_path="osmosis/tiny",
            )
            for number in range(RUNS)
        )
