"""How shards and runs end: finished, failed, stopped, or released for the next worker."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select

from osmosis_ai.platform.blobs.store import BlobStoreBusy
from osmosis_ai.platform.db.tables import DbRunUpload
from tests.evaluation.builders import record
from tests.evaluation.recorded_runs import with_crc
from tests.platform.conftest import ManualClock, World
from tests.platform.fake_worker import (
    EVALS,
    GPU,
    TRAININGS,
    FakeWorker,
    Killed,
    Refused,
    claim,
    downloaded,
    expire_leases,
    pool_token,
    raising,
    settle,
)

DIED = "the worker died (signal 9)"
SECRET = "sk-one-two-three"


def kept_rows(api: TestClient, run_id: str) -> list[int]:
    """Return the rows in the journal of an ended run."""
    return [orjson.loads(line)["row_index"] for line in downloaded(api, run_id, "events.jsonl").splitlines()]


def workers_of(api: TestClient, world: World, count: int) -> list[FakeWorker]:
    """Submit an evaluation of 3 rows that is split between so many workers, and let each of them claim."""
    EVALS.taken(api, advanced_config={"execution": {"pool": "gpu", "workers": count}})
    return [FakeWorker.claims(world, "gpu") for _ in range(count)]


def no_shard_is_free(world: World) -> bool:
    return claim(world, pool_token(world)) is None


def detail(api: TestClient, run_id: str) -> Any:
    return api.get(f"{EVALS.route}/{run_id}").json()["eval_run"]


# -- finish ----------------------------------------------------------------------------------------


def test_a_finished_run_keeps_its_journal_without_secrets(api: TestClient, world: World) -> None:
    provided = {"API_KEY": SECRET, "WORD": "success"}  # also a word of every record
    EVALS.taken(api, secrets={"required": [*provided], "provided": provided}, advanced_config=GPU)
    worker = FakeWorker.claims(world, "gpu")
    worker.records(2, notes=f"it said {SECRET}")
    spaced = record(2, notes=SECRET).to_line().rpartition(b',"crc"')[0].replace(b",", b",\r")
    worker.journal += with_crc(spaced + b"}\n")
    worker.sync(journal=worker.part())
    assert worker.run.sealed_secrets is not None
    for _ in range(2):
        assert worker.finishes(note="the model answered slowly").status == "finished"
    with pytest.raises(Refused, match="409 LEASE_LOST"):
        worker.sync(environment="late")
    run = worker.run
    assert (run.status, run.sealed_secrets, run.environment) == ("finished", None, None)
    assert run.results is not None and run.results["ending"] == "the model answered slowly"
    kept = downloaded(api, worker.run_id, "events.jsonl")
    assert kept_rows(api, worker.run_id) == [0, 1, 2, 0, 1, 2]
    assert b"it said " in kept and SECRET.encode() not in kept


def test_one_failed_shard_ends_its_run_after_the_others_have_sent_what_they_have(
    api: TestClient, world: World
) -> None:
    first, second, third = workers_of(api, world, 3)
    third.releases()
    assert first.finishes("failed", error="the agent cannot be imported.").status == "failed"
    assert third.shard.status == "stopped", "no worker claims it any more"
    assert no_shard_is_free(world)
    assert second.sync().stop
    second.records(1)
    assert second.finishes("failed", error="another error").status == "failed"
    run = detail(api, first.run_id)
    assert (run["status"], run["error"]) == ("failed", "the agent cannot be imported.")
    assert kept_rows(api, first.run_id) == [1]


# -- release and failed attempts -------------------------------------------------------------------


@pytest.mark.parametrize(("submits", "most"), [(EVALS, 3), (TRAININGS, 12)])
def test_failed_attempts_in_a_row_fail_a_run(
    api: TestClient, world: World, clock: ManualClock, submits: Any, most: int
) -> None:
    submits.taken(api, advanced_config=GPU)
    for number in range(1, most + 1):
        worker = FakeWorker.claims(world, "gpu")
        assert worker.assignment.lease.attempt == number
        status = worker.releases(f"{DIED}.", counts=True).status
        if number < most:
            pause_s = min(300.0, 0.5 * 2 ** (number - 1))
            assert status == "pending"
            assert worker.messages()[-1] == f"{DIED} (trying again in {pause_s:g} s)"
            clock.advance(pause_s - 0.1)
            assert no_shard_is_free(world)
            clock.advance(0.1)
    assert status == "failed"
    settle(world)
    assert worker.run.status == "failed"
    assert str(worker.run.error).startswith(
        f"{DIED}; {most} workers in a row failed without progress. See the run's log, then submit it again."
    )


def test_releases_that_do_not_count_end_no_run_and_are_logged_once(
    worker: FakeWorker, clock: ManualClock
) -> None:
    for number in range(20):
        worker.releases("the store is unavailable")
        assert no_shard_is_free(worker.world), "not at once"
        clock.advance(10 if number else 0.5)
        worker = FakeWorker.claims(worker.world, "gpu")
    assert (worker.shard.failed_attempts, worker.assignment.lease.attempt) == (0, 21)
    assert worker.messages().count("the store is unavailable (trying again in 0.5 s)") == 1
    worker.records(1)
    worker.releases("the store is unavailable")
    assert worker.messages().count("the store is unavailable (trying again in 0.5 s)") == 2
    clock.advance(1)
    FakeWorker.claims(worker.world, "gpu").finishes()
    assert worker.run.status == "finished"


# -- finalize --------------------------------------------------------------------------------------


def is_left(worker: FakeWorker) -> tuple[int, int]:
    """Return how many uploads the platform knows of a run, and how many the store waits for."""
    world, prefix = worker.world, f"runs/{worker.run_id}/"
    with world.services.db.session() as session:
        mine = select(func.count()).select_from(DbRunUpload).where(DbRunUpload.run_id == worker.run_id)
        known = session.scalar(mine) or 0
    return known, sum(
        upload.key.startswith(prefix) for upload, _ in world.services.blobs.unfinished_uploads()
    )


def test_a_run_is_finalized_as_soon_as_the_store_is_back(
    api: TestClient, worker: FakeWorker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.records(2)
    worker.sync(files=[worker.conversation(0)])
    with monkeypatch.context() as patch:
        patch.setattr(
            type(worker.world.services.blobs), "put", raising(BlobStoreBusy("the bucket cannot be reached."))
        )
        worker.finishes()
        for _ in range(30):
            clock.advance(1)
            settle(worker.world)
    assert worker.run.status == "running"
    waits = "the store is not ready: the bucket cannot be reached."
    assert api.get(f"{EVALS.route}/{worker.run_id}").json()["waits"] == waits
    assert len([message for message in worker.messages() if "not ready" in message]) == 1
    clock.advance(10)
    settle(worker.world)
    assert worker.run.status == "finished"
    assert kept_rows(api, worker.run_id)[:2] == [0, 1]
    assert downloaded(api, worker.run_id, "trajectories/row_0_run_0.json") == b'{"steps": []}'


@pytest.mark.parametrize("phase", ["_prepare", "_finalize"])
def test_an_unexpected_error_of_the_platform_ends_the_run_with_a_sentence(
    api: TestClient, world: World, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    run_id = EVALS.taken(api, advanced_config=GPU)["id"]
    if phase == "_finalize":
        worker = FakeWorker.claims(world, "gpu")
        worker.records(2)
        worker.finishes(settles=False)
    monkeypatch.setattr(world.services.platform_shards, phase, raising(ValueError("a bug")))
    for _ in range(4):
        settle(world)
        clock.advance(5)
    run = detail(api, run_id)
    assert run["status"] == "failed"
    assert run["error"].startswith(
        "the platform met an unexpected error (ValueError), which its log explains; 3 "
    )


def test_uploads_of_an_ended_run_are_deleted_also_after_the_platform_was_killed(
    worker: FakeWorker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, blobs = worker.world, worker.world.services.blobs
    worker.sync(sent=[worker.uploads("files/unnamed", b"hello")])
    worker.wants("files/begun", b"never")
    world.services.platform_shards.clear_ended()
    assert is_left(worker) == (2, 1), "an active run keeps what it sends"
    worker.finishes(settles=False)
    with monkeypatch.context() as patch:
        patch.setattr(blobs, "abort_upload", raising(Killed()))
        with pytest.raises(Killed):
            settle(world)
    expire_leases(clock)
    settle(world)
    world.services.platform_shards.clear_ended()
    assert worker.run.status == "finished"
    assert is_left(worker) == (0, 0)
    assert not [key for key in blobs.keys(f"runs/{worker.run_id}") if "/files/" in key]
