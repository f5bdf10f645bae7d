"""What a run leaves when it has ended goes, also where its end was cut off behind the run's row."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select

from osmosis_ai.platform.blobs.store import BlobStoreBusy, BlobStoreSilent
from osmosis_ai.platform.db.tables import DbRunShard, DbRunUpload
from osmosis_ai.platform.runs.desk.journal_folding import JournalFolding
from osmosis_ai.platform.runs.journal_segments import SEGMENTS_FOLDER
from osmosis_ai.platform.services import PlatformServices
from tests.platform.evaluations import Submits, submit_body
from tests.platform.runs.desk.desk_workers import DeskWorker, records

submitted = Submits("/api/cli/eval-runs", submit_body).taken


@pytest.fixture
def worker(api: TestClient, services: PlatformServices) -> DeskWorker:
    """The owner of a run with an upload that was sent, one that was only begun, and a piece of its journal in the store."""
    return a_worker(api, services)


def a_worker(api: TestClient, services: PlatformServices) -> DeskWorker:
    submitted(api, evaluation_config={"limit": 600, "n": 2, "batch_size": 4})
    worker = DeskWorker.claims(services)
    worker.write(records(2))
    worker.sync(journal=worker.part())
    JournalFolding(services.db, services.blobs).fold_all(worker.run_id)
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
    return known, len(waiting), len(list(services.blobs.keys(f"{prefix}{SEGMENTS_FOLDER}")))


def ends_cut_off(
    worker: DeskWorker, monkeypatch: pytest.MonkeyPatch, failure: BaseException, known: int = 2
) -> None:
    """End a run so that its row is all that comes of it."""

    def cut_off(*_: Any) -> NoReturn:
        raise failure

    with monkeypatch.context() as patched:
        patched.setattr(worker.services.blobs, "delete_below", cut_off)
        with pytest.raises(type(failure)):
            worker.ends()
    assert worker.run.status == "finished"
    assert is_left(worker) == (known, 1, 1)


FAILURES = [BlobStoreBusy("the bucket is slow."), KeyboardInterrupt()]


@pytest.mark.parametrize("failure", FAILURES)
def test_an_end_that_is_said_again_lets_nobody_send_to_the_run_any_more(
    worker: DeskWorker, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    ends_cut_off(worker, monkeypatch, failure)
    assert worker.ends().status == "finished"
    assert is_left(worker) == (0, 0, 0)


@pytest.mark.parametrize("failure", FAILURES)
def test_what_an_end_left_that_nobody_says_again_goes_with_the_next_round(
    worker: DeskWorker, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    ends_cut_off(worker, monkeypatch, failure)
    worker.services.desk.clear_ended()
    assert is_left(worker) == (0, 0, 0)


def test_the_only_shard_that_a_worker_did_not_live_to_tell_of_goes_with_its_run(worker: DeskWorker) -> None:
    blobs, below = worker.services.blobs, f"runs/{worker.run_id}/shards"
    worker.sync(sent=[worker.sends("shards/untold", b"packed")])
    assert list(blobs.keys(below)) == [f"{below}/untold"]
    worker.ends("failed")
    assert list(blobs.keys(below)) == []


def test_a_shard_that_was_told_of_stays_also_where_the_end_is_cleared_up_long_after(
    worker: DeskWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = {
        "path": "trajectories/row_0_run_0.json",
        "kind": "trajectories",
        "size": 6,
        "blob": "shards/1",
    }
    sent = worker.sends("shards/1", b"packed")
    worker.sync(sent=[sent], files=[{**described, "shard_offset": 0, "shard_length": 6}])
    ends_cut_off(worker, monkeypatch, BlobStoreBusy("the bucket is slow."), known=3)
    worker.services.shard_merging.merge_due()
    with worker.services.db.session() as session:
        assert session.scalar(select(func.count()).select_from(DbRunShard)) == 0, "its shards are at rest"
    worker.services.desk.clear_ended()
    assert is_left(worker) == (0, 0, 0)
    below = f"runs/{worker.run_id}/shards"
    assert list(worker.services.blobs.keys(below)) == [f"{below}/1"]


def test_a_run_that_goes_on_keeps_what_it_is_sending(worker: DeskWorker) -> None:
    worker.services.desk.clear_ended()
    assert is_left(worker) == (2, 1, 1)


def test_a_run_whose_files_do_not_go_keeps_no_other_from_losing_its_own(
    api: TestClient, services: PlatformServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = [a_worker(api, services) for _ in range(2)]
    for each in workers:
        ends_cut_off(each, monkeypatch, BlobStoreSilent("the bucket cannot be reached."))
    delete, asked = services.blobs.delete_below, []

    def refused_first(prefix: str) -> None:
        asked.append(prefix)
        if len(asked) == 1:
            raise BlobStoreBusy("the bucket fails.")
        delete(prefix)

    monkeypatch.setattr(services.blobs, "delete_below", refused_first)
    with pytest.raises(BlobStoreBusy):
        services.desk.clear_ended()
    assert sorted(map(is_left, workers)) == [(0, 0, 0), (2, 1, 1)]
    services.desk.clear_ended()
    assert list(map(is_left, workers)) == [(0, 0, 0)] * 2
