"""Clocks that jump, and a database or store that is unavailable: no lease and no record is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.platform.blobs.local import LocalBlobStore
from osmosis_ai.platform.blobs.store import BlobStoreBusy
from osmosis_ai.platform.db.engine import Database, DatabaseBusyError, StorageFullError
from tests.platform.conftest import ManualClock, World
from tests.platform.fake_worker import (
    EVALS,
    TERM_S,
    FakeWorker,
    Refused,
    claim,
    expire_leases,
    pool_token,
    raising,
    records,
    settle,
)
from tests.platform.queue.test_sync import stored


def is_claimable(world: World) -> bool:
    return claim(world, pool_token(world)) is not None


# -- the database ----------------------------------------------------------------------------------


@contextmanager
def without_database(error: Exception) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "transaction", raising(error))
        yield


OUTAGES = [
    (DatabaseBusyError("the database is busy."), 503, "DATABASE_BUSY"),
    (StorageFullError("the disk is full."), 507, "STORAGE_FULL"),
]


@pytest.mark.parametrize(("outage", "status", "error"), OUTAGES)
def test_an_outage_of_the_database_costs_no_owner_its_lease_and_no_record(
    worker: FakeWorker, clock: ManualClock, outage: Exception, status: int, error: str
) -> None:
    world = worker.world
    worker.records(1)
    worker.write(records(2, first=1))
    before = stored(world)
    with without_database(outage):
        for call in (
            lambda: worker.sync(journal=worker.part(), files=[worker.conversation(0)]),
            lambda: worker.finishes(completes=False),
            lambda: worker.releases("it broke", counts=True),
        ):
            with pytest.raises(Refused) as refused:
                call()
            assert (refused.value.status, refused.value.code) == (status, error)
        clock.advance(10 * TERM_S)
    assert stored(world) == before
    # No matter which worker calls first after the outage, the owner has one whole term from then on.
    assert not is_claimable(world)
    clock.advance(TERM_S - 1)
    assert not is_claimable(world)
    worker.sync(journal=worker.part())
    assert len(worker.samples()) == 3
    expire_leases(clock)
    successor = FakeWorker.claims(world, "gpu")
    assert (successor.assignment.lease.attempt, worker.shard.failed_attempts) == (2, 1)


def test_a_run_with_a_stop_request_waits_for_owners_that_an_outage_kept_from_reporting(
    api: TestClient, worker: FakeWorker, clock: ManualClock
) -> None:
    api.post(f"{EVALS.route}/{worker.run_id}/stop", json={})
    with without_database(DatabaseBusyError("the database is busy.")), pytest.raises(Refused):
        worker.sync()
    expire_leases(clock)
    settle(worker.world)
    worker.records(2)
    assert (len(worker.samples()), worker.run.status) == (2, "running")
    expire_leases(clock)
    assert not is_claimable(worker.world), "no other worker continues it"
    settle(worker.world)
    assert worker.run.status == "stopped", "now its owner itself is silent"


# -- the store -------------------------------------------------------------------------------------

away = raising(BlobStoreBusy("the bucket cannot be reached."))


def test_a_claim_without_the_store_is_no_attempt_and_is_logged_once_per_outage(
    api: TestClient, worker: FakeWorker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, waits = worker.world, "it waits for the store: the bucket cannot be reached."
    worker.records(2)
    for outage in (1, 2):
        worker.releases()
        with monkeypatch.context() as patch:
            patch.setattr(type(world.services.sources), "find", away)
            for _ in range(5):
                with pytest.raises(Refused, match="503 BLOBS_UNAVAILABLE") as refused:
                    claim(world, worker.bearer)
                assert refused.value.body["store_away"] is True, "the worker waits instead of giving up"
                assert not is_claimable(world), "not at once"
                clock.advance(10)
        assert api.get(f"{EVALS.route}/{worker.run_id}").json()["waits"] == waits
        assert worker.messages().count(waits) == outage
        successor = FakeWorker.claims(world, "gpu")
        assert successor.assignment.lease.attempt == outage + 1
        successor.journal, worker = worker.journal, successor
        worker.records(1)
    assert worker.shard.failed_attempts == 0


def test_without_the_store_records_are_accepted_and_uploads_change_nothing(
    worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = worker.world
    grant = worker.wants("files/a", b"hello")
    sent = worker.puts(grant, b"hello")
    wanted: dict[str, Any] = {"name": "files/b", "size": 1, "sha256": "0" * 64}
    with monkeypatch.context() as patch:
        for name in ("begin_upload", "complete_upload", "parts"):
            patch.setattr(LocalBlobStore, name, away)
        worker.records(1)
        worker.sync(files=[worker.conversation(0)])
        before = stored(world)
        for fields in ({"sent": [sent]}, {"wanted": [wanted]}):
            with pytest.raises(Refused, match="503 BLOBS_UNAVAILABLE"):
                worker.sync(environment="changed", **fields)
        assert stored(world) == before
    worker.sync(
        sent=[sent],
        files=[{"path": "artifacts/row_0_run_0/a", "kind": "artifacts", "size": 5, "blob": "files/a"}],
    )
    assert worker.sync(wanted=[wanted]).uploads[0].url
