"""How runs end at the desk: by their workers, by nobody, and after deaths in a row."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any, NoReturn

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.api.wire.workers import Assignment
from osmosis_ai.platform.blobs.store import BlobStoreBusy
from osmosis_ai.platform.db.tables import DbDataset, DbJournalSegment, DbRun
from osmosis_ai.platform.ray_cluster import RayCluster
from osmosis_ai.platform.runs.desk import closing, journal_folding
from osmosis_ai.platform.runs.desk.claims import ClaimScope
from osmosis_ai.platform.runs.desk.run_desk import RunDesk
from osmosis_ai.platform.runs.journal_segments import run_records
from osmosis_ai.platform.runs.leases import LEASE, Lease
from osmosis_ai.platform.runs.lifecycle import LeaseLostError
from osmosis_ai.platform.runs.stored_journal import stored_records
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import ManualClock
from tests.platform.evaluations import wait_until
from tests.platform.runs.desk.desk_workers import ANY, DeskWorker, offer, records
from tests.platform.runs.desk.submits import HOUR, has_expired, submitted


def test_a_run_that_ends_keeps_its_journal_without_secrets(
    api: TestClient, services: PlatformServices
) -> None:
    submitted(api, secrets={"required": ["API_KEY"], "provided": {"API_KEY": "sk-one-two-three"}})
    worker = DeskWorker.claims(services)
    worker.write(records(2, notes="it said sk-one-two-three"))
    worker.sync(journal=worker.part())
    assert [each.notes for each in run_records(services.db, services.blobs, worker.run_id)] == [
        "it said sk-one-two-three"
    ] * 2
    assert (worker.ends().status, worker.ends().status) == ("finished", "finished")
    run = worker.run
    assert run.journal_blob is not None
    kept = list(stored_records(services.blobs, run.journal_blob))
    assert [each.row_index for each in kept] == [0, 1]
    assert not any("sk-one-two-three" in (each.notes or "") for each in kept)
    assert run.sealed_secrets is None
    with services.db.session() as session:
        assert session.query(DbJournalSegment).count() == 0
    assert [key for key in services.blobs.keys(f"runs/{worker.run_id}") if "/journal/" in key] == []
    with pytest.raises(LeaseLostError):
        worker.sync()


@pytest.mark.parametrize("failure", [BlobStoreBusy("the bucket cannot be reached."), KeyboardInterrupt()])
def test_an_end_that_was_cut_off_behind_its_row_is_made_whole_when_it_is_said_again(
    worker: DeskWorker, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    worker.write(records(2))
    worker.sync(journal=worker.part())
    folding = journal_folding.JournalFolding(worker.services.db, worker.services.blobs)
    folding.fold_all(worker.run_id)
    below = f"runs/{worker.run_id}/journal"

    def cut_off(*_: Any) -> NoReturn:
        raise failure

    with monkeypatch.context() as patched:
        patched.setattr(type(worker.services.blobs), "delete_below", cut_off)
        with pytest.raises(type(failure)):
            worker.ends()
    assert worker.run.status == "finished"
    assert len(list(worker.services.blobs.keys(below))) == 1
    assert worker.ends().status == "finished"
    assert list(worker.services.blobs.keys(below)) == []


def away(*_: Any) -> NoReturn:
    raise BlobStoreBusy("the bucket cannot be reached.")


def test_a_run_ends_with_its_journal_where_the_store_was_away_for_a_moment_and_without_where_for_long(
    worker: DeskWorker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.write(records(2))
    worker.sync(journal=worker.part())
    monkeypatch.setattr(type(worker.services.blobs), "put", away)
    for _ in range(2):
        with pytest.raises(BlobStoreBusy):
            worker.ends()
        clock.advance(LEASE.total_seconds() / 4)
    assert worker.run.status == "running"
    assert worker.ends().status == "finished"
    assert worker.run.journal_blob is None
    assert any("journal could not be kept" in message for message in worker.messages())
    assert len(worker.samples()) == 2


def test_what_an_earlier_owner_met_of_the_store_costs_no_later_one_the_journal(
    worker: DeskWorker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.write(records(2))
    worker.sync(journal=worker.part())
    with monkeypatch.context() as cut:
        cut.setattr(type(worker.services.blobs), "put", away)
        with pytest.raises(BlobStoreBusy):
            worker.ends()
    has_expired(clock)
    later = DeskWorker.claims(worker.services)
    with monkeypatch.context() as cut:
        cut.setattr(type(worker.services.blobs), "put", away)
        with pytest.raises(BlobStoreBusy):
            later.ends()
    assert later.ends().status == "finished"
    assert later.run.journal_blob is not None


def test_who_says_again_how_a_run_ends_while_that_takes_long_holds_no_thread_for_as_long(
    worker: DeskWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.write(records(2))
    worker.sync(journal=worker.part())
    monkeypatch.setattr(closing, "_TURN_WITHIN_S", 0.01)
    is_storing, go_on = threading.Event(), threading.Event()
    put = worker.services.blobs.put

    def slow(*said: Any) -> Any:
        is_storing.set()
        assert go_on.wait(120)
        return put(*said)

    monkeypatch.setattr(worker.services.blobs, "put", slow)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(worker.ends)
        try:
            assert is_storing.wait(120)
            with pytest.raises(BlobStoreBusy, match="ask again"):
                worker.ends()
        finally:
            go_on.set()
        assert first.result(timeout=120).status == "finished"
    assert worker.ends().status == "finished"


def test_a_run_that_was_asked_to_stop_is_stopped_whatever_happened(worker: DeskWorker) -> None:
    assert not worker.sync().stop
    worker.services.eval_runs.stop(worker.run.workspace_id, worker.run_id, by="mara")
    assert worker.sync().stop
    assert worker.ends("failed", error="it broke").status == "stopped"
    assert worker.run.error is None


def test_a_run_that_is_let_go_is_for_whoever_comes_next(worker: DeskWorker) -> None:
    assert worker.releases().status == "running"
    assert worker.releases().status == "running", "said again"
    with pytest.raises(LeaseLostError):
        worker.sync()
    assert DeskWorker.claims(worker.services).assignment.lease.attempt == 2


def test_a_run_of_a_pool_fails_when_no_worker_gets_anything_done(
    api: TestClient, services: PlatformServices, clock: ManualClock
) -> None:
    submitted(api, advanced_config={"execution": {"pool": "gpu"}})
    pool = ClaimScope(pool="gpu")
    for tries in range(3):
        worker = DeskWorker.claims(services, pool)
        assert worker.releases(setback="its worker died (signal 9).").status == (
            "running" if tries < 2 else "failed"
        )
        assert services.desk.claim(offer(), pool) is None, "not at once"
        clock.advance(60)
    assert worker.run.error == (
        "its worker died (signal 9); 3 workers in a row ended without getting anything done; see the run's log, then submit "
        "again."
    )


@pytest.mark.parametrize("jump", [-24 * HOUR, -HOUR, HOUR, 24 * HOUR])
def test_a_clock_that_jumps_keeps_no_run_that_was_put_off_from_its_next_worker(
    api: TestClient, services: PlatformServices, clock: ManualClock, jump: timedelta
) -> None:
    submitted(api, advanced_config={"execution": {"pool": "gpu"}})
    pool = ClaimScope(pool="gpu")
    DeskWorker.claims(services, pool).releases(setback="its disk is full")
    assert services.desk.claim(offer(), pool) is None, "not at once"
    clock.jump(jump.total_seconds())
    assert DeskWorker.claims(services, pool).assignment.lease.attempt == 2


@pytest.mark.parametrize("jump", [-24 * HOUR, -HOUR, HOUR, 24 * HOUR])
def test_a_stopped_run_of_a_pool_whose_worker_is_gone_ends_whatever_the_clock_says(
    api: TestClient, services: PlatformServices, clock: ManualClock, jump: timedelta
) -> None:
    submitted(api, advanced_config={"execution": {"pool": "gpu"}})
    worker = DeskWorker.claims(services, ClaimScope(pool="gpu"))
    services.eval_runs.stop(worker.run.workspace_id, worker.run_id, by="mara")
    services.desk.close_stopped()
    assert worker.run.status == "running"
    clock.jump(jump.total_seconds())
    services.desk.close_stopped()
    assert worker.run.status == "stopped"


def test_a_run_of_a_pool_that_nobody_works_on_ends_soon_after_it_was_asked_to(
    api: TestClient, services: PlatformServices
) -> None:
    submitted(api, advanced_config={"execution": {"pool": "gpu"}})
    worker = DeskWorker.claims(services, ClaimScope(pool="gpu"))
    worker.releases()
    services.eval_runs.stop(worker.run.workspace_id, worker.run_id, by="mara")
    services.frequent_maintenance.start()
    try:
        wait_until(lambda: worker.run.status == "stopped")
    finally:
        services.frequent_maintenance.close()


def test_workers_that_were_too_slow_for_their_lease_fail_no_run_and_those_that_are_gone_do(
    api: TestClient, services: PlatformServices, clock: ManualClock
) -> None:
    submitted(api, advanced_config={"execution": {"pool": "gpu"}})
    pool = ClaimScope(pool="gpu")
    worker = DeskWorker.claims(services, pool)
    for _ in range(5):
        has_expired(clock)
        successor = DeskWorker.claims(services, pool)
        for _ in range(2):
            with pytest.raises(LeaseLostError):
                worker.sync()
        assert (worker.run.status, worker.run.fruitless) == ("running", 0)
        worker = successor
    for _ in range(3):
        has_expired(clock)
        services.desk.claim(offer(), pool)
    assert (worker.run.status, worker.run.fruitless) == ("failed", 3)


@pytest.mark.parametrize("dies", ["silent", "said"])
def test_the_death_of_a_worker_that_got_something_done_is_none_of_those_in_a_row(
    api: TestClient, services: PlatformServices, clock: ManualClock, dies: str
) -> None:
    submitted(api, advanced_config={"execution": {"pool": "gpu"}})
    pool = ClaimScope(pool="gpu")

    def claimed_and_died(*, is_fruitful: bool) -> DeskWorker:
        worker = DeskWorker.claims(services, pool)
        if is_fruitful:
            worker.write(records(1))
            worker.sync(journal=worker.part())
        if dies == "said":
            worker.releases(setback="its worker died (signal 9).")
            clock.advance(60)
        else:
            has_expired(clock)
        return worker

    worker = claimed_and_died(is_fruitful=True)
    for _ in range(2):
        claimed_and_died(is_fruitful=False)
        assert worker.run.status == "running", "two have died in a row without anything done"
    services.desk.claim(offer(), pool)
    assert worker.run.fruitless == 2
    has_expired(clock)
    services.desk.claim(offer(), pool)
    assert worker.run.status == "failed"
    assert "3 workers in a row ended without getting anything done" in str(worker.run.error)


def test_what_one_worker_got_done_does_not_cover_the_death_of_the_next(
    api: TestClient, services: PlatformServices, clock: ManualClock
) -> None:
    submitted(api, advanced_config={"execution": {"pool": "gpu"}})
    pool = ClaimScope(pool="gpu")
    worker = DeskWorker.claims(services, pool)
    worker.write(records(1))
    worker.sync(journal=worker.part())
    worker.releases()
    DeskWorker.claims(services, pool)
    has_expired(clock)
    DeskWorker.claims(services, pool)
    assert worker.run.fruitless == 1


def test_a_run_that_is_let_go_of_for_no_fault_is_never_given_up(
    services: PlatformServices, worker: DeskWorker
) -> None:
    with services.db.transaction() as session:
        session.get_one(DbRun, worker.run_id).fruitless = 3
    assert worker.releases().status == "running", "its executor counts, and its worker was told to leave"


@pytest.mark.parametrize(("setback", "counted"), [(None, 0), ("its worker died (signal 9).", 1)])
def test_a_run_that_was_let_go_too_late_counts_where_its_worker_died(
    api: TestClient, services: PlatformServices, clock: ManualClock, setback: str | None, counted: int
) -> None:
    submitted(api, advanced_config={"execution": {"pool": "gpu"}})
    pool = ClaimScope(pool="gpu")
    late = DeskWorker.claims(services, pool)
    has_expired(clock)
    DeskWorker.claims(services, pool)
    assert late.run.fruitless == 1
    with pytest.raises(LeaseLostError):
        late.releases(setback=setback)
    assert late.run.fruitless == counted


def test_on_a_cluster_the_desk_counts_what_runs_without_a_pool_were_let_go_for(
    api: TestClient, services: PlatformServices
) -> None:
    run = submitted(api)
    on_ray = replace(services.config, ray=RayCluster("http://127.0.0.1:8265"))
    parts = (services.db, services.clock, services.logs, services.blobs, services.vault, services.sources)
    desk = RunDesk(on_ray, *parts, services.url_signer, services.secret_handouts)
    worker = DeskWorker.claims(replace(services, desk=desk), ClaimScope(run_id=run["id"]))
    worker.releases(setback="its disk is full")
    assert worker.run.fruitless == 1
    assert desk.claim(offer(), ANY) is None, "not at once"
    said = [line.message for line in services.logs.page(run["id"]).logs]
    assert "its disk is full (trying again in 0.5 s)" in said


def test_a_dataset_that_was_replaced_before_the_run_began_fails_it(
    api: TestClient, services: PlatformServices
) -> None:
    run = submitted(api)
    with services.db.transaction() as session:
        session.query(DbDataset).update({"sha256": "0" * 64})
    assert services.desk.claim(offer(), ANY) is None
    with services.db.session() as session:
        ended: Any = session.get_one(DbRun, run["id"])
    assert ended.status == "failed"
    assert ended.error == "the dataset 'multiply' was replaced before the run began; submit the run again."


def test_an_abandoned_run_is_ended_with_all_that_was_accepted(worker: DeskWorker, clock: ManualClock) -> None:
    worker.write(records(2))
    worker.sync(journal=worker.part())
    worker.services.desk.close_abandoned(worker.run_id, "failed", "its node was lost.")
    assert worker.run.status == "running", "somebody works on it"
    has_expired(clock)
    worker.services.desk.close_abandoned(worker.run_id, "failed", "its node was lost.")
    run = worker.run
    assert (run.status, run.error, run.attempt) == ("failed", "its node was lost.", 1)
    assert run.journal_blob is not None


def test_a_platform_that_was_away_gives_every_owner_a_whole_term(
    worker: DeskWorker, clock: ManualClock
) -> None:
    has_expired(clock)
    worker.services.desk.renew_all()
    assert worker.services.desk.claim(offer(), ANY) is None
    worker.sync()


@pytest.mark.parametrize("failure", [BlobStoreBusy("the bucket answered 503."), OSError("the disk is full")])
def test_a_run_that_can_not_be_handed_out_now_keeps_no_other_from_its_worker(
    worker: DeskWorker,
    api: TestClient,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
) -> None:
    desk = worker.services.desk
    worker.releases()
    clock.advance(1.0)
    submitted(api)
    handed = desk._assignments.of

    def refused(lease: Lease, *, next_s: float) -> Assignment:
        if lease.run_id == worker.run_id:
            raise failure
        return handed(lease, next_s=next_s)

    with monkeypatch.context() as patch:
        patch.setattr(desk._assignments, "of", refused)
        with pytest.raises(type(failure)):
            desk.claim(offer(), ANY)
        other = desk.claim(offer(), ANY)
        assert other is not None and other.run.id != worker.run_id
    clock.advance(60.0)
    again = desk.claim(offer(), ANY)
    assert again is not None and again.run.id == worker.run_id
