"""A database that takes nothing for a while, and the leases that nobody could keep meanwhile."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.db.engine import DatabaseBusyError, StorageFullError
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.runs.desk import silence as silence_module
from osmosis_ai.platform.runs.desk.claims import ClaimScope
from osmosis_ai.platform.runs.leases import LEASE
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import ManualClock
from tests.platform.evaluations import Submits, submit_body
from tests.platform.runs.desk.desk_workers import ANY, DeskWorker, offer, records

submitted = Submits("/api/cli/eval-runs", submit_body).taken


@pytest.fixture
def worker(api: TestClient, services: PlatformServices) -> DeskWorker:
    submitted(api)
    return DeskWorker.claims(services)


@pytest.mark.parametrize(("silent_s", "is_kept"), [(5.0, False), (12.0, True)])
def test_a_database_that_was_silent_for_long_costs_nobody_a_lease(
    worker: DeskWorker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, silent_s: float, is_kept: bool
) -> None:
    desk = worker.services.desk
    clock.advance(LEASE.total_seconds() - silent_s + 1)

    def silent(*_: object, **__: object) -> None:
        raise DatabaseBusyError("it does not answer.")

    with monkeypatch.context() as patch:
        patch.setattr(worker.services.db, "transaction", silent)
        with pytest.raises(DatabaseBusyError):
            desk.claim(offer(), ANY)
    clock.advance(silent_s)
    assert (desk.claim(offer(), ANY) is None) is is_kept


@pytest.mark.parametrize("failure", [DatabaseBusyError, StorageFullError])
def test_a_database_that_is_asked_again_and_again_was_silent_all_the_while(
    worker: DeskWorker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, failure: type[OsmosisError]
) -> None:
    desk = worker.services.desk

    def silent(*_: object, **__: object) -> None:
        raise failure("it takes nothing.")

    with monkeypatch.context() as patch:
        patch.setattr(worker.services.db, "transaction", silent)
        for _ in range(20):
            with pytest.raises(failure):
                desk.claim(offer(), ANY)
            with desk.silence.noticed_by_reading():
                assert worker.run.status == "running", "it can be read"
            clock.advance(2.0)
    assert desk.claim(offer(), ANY) is None
    worker.sync()
    clock.advance(LEASE.total_seconds() + 1)
    assert desk.claim(offer(), ANY) is not None, "the silence is over, and its owner is silent now"


def test_a_run_that_is_to_stop_is_not_ended_over_its_owner_that_nobody_could_hear(
    api: TestClient, services: PlatformServices, clock: ManualClock
) -> None:
    submitted(api, advanced_config={"execution": {"pool": "gpu"}})
    worker, desk = DeskWorker.claims(services, ClaimScope(pool="gpu")), services.desk
    with services.db.transaction() as session:
        desk.leases.ask_to_stop(session.get_one(DbRun, worker.run_id))
    with pytest.raises(DatabaseBusyError), desk.silence.noticed():
        raise DatabaseBusyError("it does not answer.")
    clock.advance(LEASE.total_seconds() + 1)
    desk.close_stopped()
    worker.write(records(2))
    worker.sync(journal=worker.part())
    assert len(worker.samples()) == 2
    clock.advance(LEASE.total_seconds() + 1)
    desk.close_stopped()
    assert worker.run.status == "stopped", "now it is its owner that is silent"


def test_a_failure_that_took_long_was_a_long_silence(worker: DeskWorker, clock: ManualClock) -> None:
    desk = worker.services.desk

    def fail() -> None:
        with desk.silence.noticed():
            clock.advance(LEASE.total_seconds() + 1)
            raise DatabaseBusyError("another program has been writing for too long.")

    with pytest.raises(DatabaseBusyError):
        fail()
    assert desk.claim(offer(), ANY) is None
    worker.sync()


def test_who_finds_a_silence_over_holds_up_nobody_for_long(
    worker: DeskWorker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence, asked, answers = worker.services.desk.silence, threading.Event(), threading.Event()

    def slow() -> None:
        asked.set()
        assert answers.wait(60)

    with pytest.raises(DatabaseBusyError), silence.noticed():
        raise DatabaseBusyError("it does not answer.")
    clock.advance(12.0)
    monkeypatch.setattr(silence_module, "_TURN_WITHIN_S", 0.01)
    monkeypatch.setattr(worker.services.desk.leases, "renew_all", slow)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(worker.sync)
        try:
            assert asked.wait(60)
            with silence.noticed_by_reading():
                pass  # as the server's own task does, which looks for all that wait
            with pytest.raises(DatabaseBusyError), silence.noticed():
                raise AssertionError("it was asked before leases had their term")
        finally:
            answers.set()
        first.result(60)
    worker.sync()
