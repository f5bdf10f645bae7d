"""How runs end: by their workers, by the platform, and after deaths in a row; and what goes when they have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select

from tests.platform.conftest import ManualClock
from tests.platform.evaluations import wait_until
from tests.platform.platform_parts import BlobStoreBusy, BlobStoreSilent, DbRun, DbRunUpload, PlatformServices
from tests.platform.runs.desk.desk_workers import (
    GPU,
    LEASE_S,
    RUNS,
    DeskWorker,
    Refused,
    claim,
    has_expired,
    pool_token,
    submitted,
)
from tests.platform.runs.desk.test_exchanges import downloaded, kept_rows

DIED = "its worker died (signal 9)."
SECRET = "sk-one-two-three"


def away(*_: Any) -> NoReturn:
    raise BlobStoreBusy("the bucket cannot be reached.")


@pytest.fixture
def pooled(api: TestClient, services: PlatformServices) -> DeskWorker:
    """The owner of a run of the pool `gpu`."""
    submitted(api, advanced_config=GPU)
    return DeskWorker.claims(services, "gpu")


def nobody_comes(services: PlatformServices) -> bool:
    """Whether a machine of the pool that asks gets no run."""
    return claim(services, pool_token(services)) is None


def test_an_ended_run_keeps_its_journal_without_secrets(api: TestClient, services: PlatformServices) -> None:
    submitted(api, secrets={"required": ["API_KEY"], "provided": {"API_KEY": SECRET}})
    worker = DeskWorker.claims(services)
    worker.records(2, notes=f"it said {SECRET}")
    assert (worker.ends().status, worker.ends().status) == ("finished", "finished")
    kept = downloaded(api, worker.run_id, "events.jsonl")
    assert kept_rows(api, worker.run_id) == [0, 1]
    assert b"it said " in kept and SECRET.encode() not in kept
    assert worker.run.sealed_secrets is None
    assert [key for key in services.blobs.keys(f"runs/{worker.run_id}") if "/journal/" in key] == []
    with pytest.raises(Refused, match="LEASE_LOST"):
        worker.sync()


def test_a_run_ends_with_its_journal_where_the_store_was_away_for_a_moment_and_without_where_for_long(
    worker: DeskWorker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.records(2)
    monkeypatch.setattr(type(worker.services.blobs), "put", away)
    for _ in range(2):
        with pytest.raises(Refused, match="BLOBS_UNAVAILABLE"):
            worker.ends()
        clock.advance(LEASE_S / 4)
    assert worker.run.status == "running"
    assert worker.ends().status == "finished"
    assert worker.run.journal_blob is None
    assert any("journal could not be kept" in message for message in worker.messages())
    assert len(worker.samples()) == 2


def test_what_an_earlier_owner_met_of_the_store_costs_no_later_one_the_journal(
    worker: DeskWorker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.records(2)
    for owner in ("the first", "the next"):
        with monkeypatch.context() as cut:
            cut.setattr(type(worker.services.blobs), "put", away)
            with pytest.raises(Refused, match="BLOBS_UNAVAILABLE"):
                worker.ends()
        if owner == "the first":
            has_expired(clock)
            worker = DeskWorker.claims(worker.services)
    assert worker.ends().status == "finished"
    assert worker.run.journal_blob is not None


def test_a_run_that_is_to_stop_ends_as_stopped(api: TestClient, worker: DeskWorker) -> None:
    assert not worker.sync().stop
    api.post(f"{RUNS}/{worker.run_id}/stop", json={})
    assert worker.sync().stop
    assert worker.ends("failed", error="it broke").status == "stopped"
    assert worker.run.error is None


def test_deaths_in_a_row_fail_a_run(
    pooled: DeskWorker, services: PlatformServices, clock: ManualClock
) -> None:
    worker = pooled
    for tries in range(3):
        if tries:
            worker = DeskWorker.claims(services, "gpu")
        assert worker.releases(setback=DIED).status == ("running" if tries < 2 else "failed")
        assert nobody_comes(services), "not at once"
        clock.advance(60)
    assert worker.run.error == (
        "its worker died (signal 9); 3 workers in a row ended without getting anything done; see the run's log, "
        "then submit again."
    )


@pytest.mark.parametrize("jump_s", [-3600 * 24, 3600])
def test_a_stop_after_a_jump(api: TestClient, pooled: DeskWorker, clock: ManualClock, jump_s: float) -> None:
    api.post(f"{RUNS}/{pooled.run_id}/stop", json={})
    pooled.services.desk.close_stopped()
    assert pooled.run.status == "running", "its worker may be heard yet"
    clock.jump(jump_s)
    pooled.services.desk.close_stopped()
    assert pooled.run.status == "stopped"


def test_a_stop_of_a_run_without_a_worker_is_heard_soon(api: TestClient, pooled: DeskWorker) -> None:
    pooled.releases()
    api.post(f"{RUNS}/{pooled.run_id}/stop", json={})
    pooled.services.frequent_maintenance.start()
    try:
        wait_until(lambda: pooled.run.status == "stopped")
    finally:
        pooled.services.frequent_maintenance.close()


def test_slow_workers_fail_no_run(pooled: DeskWorker, services: PlatformServices, clock: ManualClock) -> None:
    worker = pooled
    for _ in range(5):
        has_expired(clock)
        successor = DeskWorker.claims(services, "gpu")
        for _ in range(2):
            with pytest.raises(Refused, match="LEASE_LOST"):
                worker.sync()
        assert (worker.run.status, worker.run.fruitless) == ("running", 0)
        worker = successor
    for _ in range(3):
        has_expired(clock)
        nobody_comes(services)
    assert (worker.run.status, worker.run.fruitless) == ("failed", 3)


@pytest.mark.parametrize("dies", ["silent", "said"])
def test_the_death_of_a_worker_that_got_something_done_is_none_of_those_in_a_row(
    api: TestClient, services: PlatformServices, clock: ManualClock, dies: str
) -> None:
    submitted(api, advanced_config=GPU)

    def claimed_and_died(*, is_fruitful: bool) -> DeskWorker:
        worker = DeskWorker.claims(services, "gpu")
        if is_fruitful:
            worker.records(1)
        if dies == "said":
            worker.releases(setback=DIED)
            clock.advance(60)
        else:
            has_expired(clock)
        return worker

    worker = claimed_and_died(is_fruitful=True)
    for _ in range(2):
        claimed_and_died(is_fruitful=False)
        assert worker.run.status == "running", "two have died in a row without anything done"
    nobody_comes(services)
    assert worker.run.fruitless == 2
    has_expired(clock)
    nobody_comes(services)
    assert worker.run.status == "failed"
    assert "3 workers in a row ended without getting anything done" in str(worker.run.error)


def test_progress_forgives_one_worker(
    pooled: DeskWorker, services: PlatformServices, clock: ManualClock
) -> None:
    pooled.records(1)
    pooled.releases()
    DeskWorker.claims(services, "gpu")
    has_expired(clock)
    assert DeskWorker.claims(services, "gpu").run.fruitless == 1


def test_a_release_without_a_fault_fails_no_run(services: PlatformServices, worker: DeskWorker) -> None:
    with services.db.transaction() as session:
        session.get_one(DbRun, worker.run_id).fruitless = 3
    assert worker.releases().status == "running", "its executor counts, and its worker was asked to leave"


@pytest.mark.parametrize(("setback", "counted"), [(None, 0), (DIED, 1)])
def test_a_run_that_was_let_go_too_late_counts_where_its_worker_died(
    pooled: DeskWorker, services: PlatformServices, clock: ManualClock, setback: str | None, counted: int
) -> None:
    has_expired(clock)
    DeskWorker.claims(services, "gpu")
    assert pooled.run.fruitless == 1
    with pytest.raises(Refused, match="LEASE_LOST"):
        pooled.releases(setback=setback)
    assert pooled.run.fruitless == counted


def test_an_abandoned_run_keeps_its_samples(api: TestClient, worker: DeskWorker, clock: ManualClock) -> None:
    worker.records(2)
    worker.services.desk.close_abandoned(worker.run_id, "failed", "its node was lost.")
    assert worker.run.status == "running", "somebody works on it"
    has_expired(clock)
    worker.services.desk.close_abandoned(worker.run_id, "failed", "its node was lost.")
    run = worker.run
    assert (run.status, run.error, run.attempt) == ("failed", "its node was lost.", 1)
    assert kept_rows(api, worker.run_id) == [0, 1]


# -- what goes when a run has ended ----------------------------------------------------------------


@pytest.fixture
def sending(api: TestClient, services: PlatformServices, small_pieces: None) -> DeskWorker:
    """The owner of a run with an upload that was sent, one that was only begun, and a piece of its journal in the store."""
    return a_sending_worker(api, services)


def a_sending_worker(api: TestClient, services: PlatformServices) -> DeskWorker:
    submitted(api)
    worker = DeskWorker.claims(services)
    for _ in range(3):
        worker.records(1, notes="x" * 1000)
    assert is_left(worker)[2] > 0
    worker.sync(sent=[worker.sends("files/sent", b"hello")])
    worker.wants("files/begun", b"never")
    return worker


def is_left(worker: DeskWorker) -> tuple[int, int, int]:
    """Return how many uploads are known of a run, how many the store waits for, and how many pieces of its journal it has."""
    services, prefix = worker.services, f"runs/{worker.run_id}/"
    with services.db.session() as session:
        mine = DbRunUpload.run_id == worker.run_id
        known = session.scalar(select(func.count()).select_from(DbRunUpload).where(mine)) or 0
    waiting = [one for one, _ in services.blobs.unfinished_uploads() if one.key.startswith(prefix)]
    return known, len(waiting), len(list(services.blobs.keys(f"{prefix}journal")))


def ends_cut_off(worker: DeskWorker, monkeypatch: pytest.MonkeyPatch, failure: BaseException) -> None:
    """End a run so that its row is all that comes of it."""

    def cut_off(*_: Any) -> NoReturn:
        raise failure

    before = is_left(worker)
    with monkeypatch.context() as patched:
        patched.setattr(worker.services.blobs, "keys", cut_off)
        with pytest.raises((Refused, MemoryError)):
            worker.ends()
    assert worker.run.status == "finished"
    assert is_left(worker) == before


@pytest.mark.parametrize("failure", [BlobStoreBusy("the bucket is slow."), MemoryError()])
@pytest.mark.parametrize("said_again", [True, False])
def test_what_an_end_that_was_cut_off_left_goes_when_it_is_said_again_or_with_the_next_round(
    sending: DeskWorker, monkeypatch: pytest.MonkeyPatch, failure: BaseException, said_again: bool
) -> None:
    ends_cut_off(sending, monkeypatch, failure)
    if said_again:
        assert sending.ends().status == "finished"
    else:
        sending.services.desk.clear_ended()
    assert is_left(sending) == (0, 0, 0)


def test_the_only_shard_that_a_worker_did_not_live_to_name_goes_with_its_run(sending: DeskWorker) -> None:
    blobs, below = sending.services.blobs, f"runs/{sending.run_id}/shards"
    sending.sync(sent=[sending.sends("shards/unnamed", b"packed")])
    assert list(blobs.keys(below)) == [f"{below}/unnamed"]
    sending.ends("failed")
    assert list(blobs.keys(below)) == []


def test_a_shard_that_a_file_names_stays(sending: DeskWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    place = {"blob": "shards/1", "shard_offset": 0, "shard_length": 6}
    file = {"path": "trajectories/row_0_run_0.json", "kind": "trajectories", "size": 6, **place}
    sending.sync(sent=[sending.sends("shards/1", b"packed")], files=[file])
    ends_cut_off(sending, monkeypatch, BlobStoreBusy("the bucket is slow."))
    sending.services.shard_merging.merge_due()
    sending.services.desk.clear_ended()
    assert is_left(sending) == (0, 0, 0)
    below = f"runs/{sending.run_id}/shards"
    assert list(sending.services.blobs.keys(below)) == [f"{below}/1"]


def test_a_run_under_way_keeps_what_it_is_sending(sending: DeskWorker) -> None:
    before = is_left(sending)
    sending.services.desk.clear_ended()
    assert is_left(sending) == before


@pytest.mark.usefixtures("small_pieces")
def test_a_run_whose_files_do_not_go_keeps_no_other_from_losing_its_own(
    api: TestClient, services: PlatformServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = [a_sending_worker(api, services) for _ in range(2)]
    for each in workers:
        ends_cut_off(each, monkeypatch, BlobStoreSilent("the bucket cannot be reached."))
    keys: Callable[[str], Iterator[str]] = services.blobs.keys
    asked: list[str] = []

    def refused_first(prefix: str) -> Iterator[str]:
        asked.append(prefix)
        if len(asked) == 1:
            raise BlobStoreBusy("the bucket fails.")
        return keys(prefix)

    monkeypatch.setattr(services.blobs, "keys", refused_first)
    with pytest.raises(BlobStoreBusy):
        services.desk.clear_ended()
    assert [is_left(each) == (0, 0, 0) for each in workers].count(True) == 1
    services.desk.clear_ended()
    assert [is_left(each) for each in workers] == [(0, 0, 0)] * 2
