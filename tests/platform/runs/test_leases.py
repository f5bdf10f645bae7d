"""Leases: however many workers, deaths, pauses and jumps of the clock, a run has one owner and one end."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import Base, DbRun, DbWorkspace, new_id
from osmosis_ai.platform.runs.leases import CLOCK_SLACK, LEASE, Lease, Leases
from osmosis_ai.platform.runs.lifecycle import LeaseLostError
from osmosis_ai.platform.runs.submit.run_names import ADJECTIVES, NOUNS, draw_name
from tests.platform.conftest import ManualClock

MOMENT = datetime(2026, 11, 2, 9, 30, tzinfo=timezone.utc)


@contextmanager
def database(folder: Path) -> Iterator[Database]:
    """A database with the tables and one workspace."""
    db = Database(f"sqlite:///{folder / 'platform.db'}")
    with db.transaction() as session:
        Base.metadata.create_all(session.connection())
        session.add(DbWorkspace(id="wsp_1", name="fern", created_at=MOMENT))
    yield db
    db.dispose()


def add_run(db: Database, **changes: Any) -> str:
    described: dict[str, Any] = {
        "id": new_id("run"),
        "workspace_id": "wsp_1",
        "kind": "eval",
        "name": draw_name(random.Random()),
        "status": "pending",
        "created_at": MOMENT,
        "request": {},
        "rollout_name": "multiply",
        "dataset_name": "multiply",
        "model_path": "osmosis/tiny",
    }
    run = DbRun(**{**described, **changes})
    with db.transaction() as session:
        session.add(run)
    return run.id


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with database(tmp_path) as opened:
        yield opened


@pytest.fixture
def leases(db: Database, clock: ManualClock) -> Leases:
    return Leases(db, clock)


def claimed(leases: Leases, run_id: str, token: str) -> Lease:
    lease = leases.claim(run_id, token)
    assert lease is not None
    return lease


def test_a_claimed_run_is_running_and_nobody_elses(db: Database, leases: Leases) -> None:
    run_id = add_run(db)
    lease = claimed(leases, run_id, "a")
    assert lease.attempt == 1
    assert leases.claim(run_id, "b") is None
    with db.session() as session:
        run = session.get_one(DbRun, run_id)
    assert (run.status, run.started_at is not None) == ("running", True)


def test_a_silent_owner_is_replaced_and_writes_nothing_any_more(
    db: Database, leases: Leases, clock: ManualClock
) -> None:
    run_id = add_run(db)
    first = claimed(leases, run_id, "a")
    clock.advance(LEASE.total_seconds())
    second = claimed(leases, run_id, "b")
    assert second.attempt == 2
    with pytest.raises(LeaseLostError), leases.writing(first) as (_, run):
        run.results = {"score": 1.0}
    leases.release(run_id, "a")
    leases.renew(second)
    with db.session() as session:
        assert session.get_one(DbRun, run_id).results is None


def test_an_owner_that_slept_goes_on_when_nobody_took_its_place(
    leases: Leases, db: Database, clock: ManualClock
) -> None:
    lease = claimed(leases, add_run(db), "a")
    clock.advance(8 * 3600)
    leases.renew(lease)
    assert leases.claim(lease.run_id, "b") is None


def test_a_clock_set_back_does_not_lock_a_dead_owners_run_away(
    leases: Leases, db: Database, clock: ManualClock
) -> None:
    run_id = claimed(leases, add_run(db), "a").run_id
    clock.jump(-24 * 3600)
    claimed(leases, run_id, "b")


def test_a_clock_set_back_by_a_little_keeps_a_dead_owners_run_no_longer_than_that(
    leases: Leases, db: Database, clock: ManualClock
) -> None:
    run_id = claimed(leases, add_run(db), "a").run_id
    clock.jump(-1)
    clock.advance(LEASE.total_seconds())
    assert leases.claim(run_id, "b") is None
    clock.advance(1)
    claimed(leases, run_id, "b")


def test_a_clock_set_back_does_not_take_a_run_from_an_owner_that_breathes(
    leases: Leases, db: Database, clock: ManualClock
) -> None:
    lease = claimed(leases, add_run(db), "a")
    clock.jump(-24 * 3600)
    leases.renew(lease)
    assert leases.claim(lease.run_id, "b") is None


def test_an_end_is_final_and_forgets_the_secrets(leases: Leases, db: Database) -> None:
    run_id = add_run(db, sealed_secrets=b"sealed")
    lease = claimed(leases, run_id, "a")
    with leases.writing(lease) as (_, run):
        leases.end(run, "failed", "the model was rejected.")
    assert leases.claim(run_id, "b") is None
    with pytest.raises(LeaseLostError):
        leases.renew(lease)
    with db.session() as session:
        run = session.get_one(DbRun, run_id)
    assert (run.status, run.error, run.sealed_secrets, run.lease_token) == (
        "failed",
        "the model was rejected.",
        None,
        None,
    )


class Workers(RuleBasedStateMachine):
    """Workers that claim, write, pause, die and come back late, while somebody plays with the clock."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self._context = database(Path(self._folder.name))
        self.db = self._context.__enter__()
        self.clock = ManualClock()
        self.leases = Leases(self.db, self.clock)
        self.ever: list[Lease] = []
        self.owner: Lease | None = None
        self.outcome: str | None = None
        self.written = 0
        self.jumped = False

    def teardown(self) -> None:
        self._context.__exit__(None, None, None)
        self._folder.cleanup()

    @initialize()
    def submit(self) -> None:
        self.run_id = add_run(self.db)

    @rule()
    def claim(self) -> None:
        lease = self.leases.claim(self.run_id, f"worker-{len(self.ever)}")
        if lease is not None:
            assert self.outcome is None
            assert lease.attempt == len(self.ever) + 1
            self.ever.append(lease)
            self.owner = lease

    @precondition(lambda self: self.ever)
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.ever))
        allowed = lease is self.owner and self.outcome is None
        try:
            with self.leases.writing(lease) as (_, run):
                run.results = {"count": self.written + 1}
        except LeaseLostError:
            assert not allowed
        else:
            assert allowed
            self.written += 1

    @precondition(lambda self: self.ever)
    @rule(data=st.data(), outcome=st.sampled_from(["finished", "failed", "stopped"]))
    def end(self, data: st.DataObject, outcome: Any) -> None:
        lease = data.draw(st.sampled_from(self.ever))
        allowed = lease is self.owner and self.outcome is None
        try:
            with self.leases.writing(lease) as (_, run):
                self.leases.end(run, outcome)
        except LeaseLostError:
            assert not allowed
        else:
            assert allowed
            self.outcome = outcome

    @precondition(lambda self: self.ever)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.ever))
        self.leases.release(self.run_id, lease.token)
        if lease is self.owner:
            self.owner = None

    @rule(seconds=st.floats(0, 60))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(seconds=st.floats(-1e6, 1e6))
    def jump(self, seconds: float) -> None:
        self.clock.jump(seconds)
        self.jumped = True

    @invariant()
    def what_was_accepted_is_there(self) -> None:
        if not hasattr(self, "run_id"):
            return
        with self.db.session() as session:
            run = session.get_one(DbRun, self.run_id)
        assert (run.results or {"count": 0})["count"] == self.written
        assert run.status == (self.outcome or ("running" if self.ever else "pending"))

    @precondition(lambda self: self.outcome is None)
    @rule()
    def everybody_dies_and_the_run_is_not_lost(self) -> None:
        lease = self.leases.claim(self.run_id, f"worker-{len(self.ever)}")
        if lease is None:
            # A clock that was set back by a little is taken for a healthy one: it is waited for that much longer.
            patience = LEASE + CLOCK_SLACK if self.jumped else LEASE
            self.clock.advance(patience.total_seconds())
            lease = self.leases.claim(self.run_id, f"worker-{len(self.ever)}")
        assert lease is not None
        self.ever.append(lease)
        self.owner = lease


Workers.TestCase.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestWorkers = pytest.mark.integration(Workers.TestCase)


def test_names_can_be_said_and_there_are_enough_of_them() -> None:
    draws = random.Random(7)
    names = {draw_name(draws) for _ in range(2000)}
    assert len(names) > 1990
    assert all(name.count("-") == 2 and name.islower() and name.isascii() for name in names)
    assert len(ADJECTIVES) * len(NOUNS) > 10_000
    assert "imports" not in {*ADJECTIVES, *NOUNS}
    assert int(draw_name(draws, tries=24).rpartition("-")[2]) > 99


class FarDatabase:
    """A database whose clock is ten minutes ahead, and which counts how often it is asked."""

    is_sqlite = False
    ahead = timedelta(minutes=10)
    asked = 0

    @contextmanager
    def session(self) -> Iterator[FarDatabase]:
        self.asked += 1
        yield self

    def scalars(self, _: object) -> FarDatabase:
        return self

    def one(self) -> datetime:
        return self.now()

    def now(self) -> datetime:
        return SystemClock().now() + self.ahead


class StoppedWatch(SystemClock):
    """The machine's clock; the seconds beside it pass as the test says."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


def test_how_long_workers_are_silent_is_told_by_the_databases_clock_which_is_asked_once_for_all() -> None:
    db, clock = FarDatabase(), StoppedWatch()
    leases = Leases(cast("Database", db), clock, timedelta(hours=1))
    for minutes, is_silent in ((10, False), (50, True), (600, True)):
        for _ in range(50):
            moment = leases.silent_at(db.now() - timedelta(minutes=minutes))
            assert (moment is not None) == is_silent
            assert moment is None or abs(moment - db.now()) < timedelta(minutes=5)
    assert leases.silent_at(None) is None
    assert db.asked == 1
    clock.seconds, db.ahead = 60.0, timedelta()
    assert leases.silent_at(db.now() - timedelta(minutes=50)) is not None
    assert db.asked == 2, "a clock that was set is believed after a while"
