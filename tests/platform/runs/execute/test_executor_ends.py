"""How the executor notes that a job has ended, where the database breaks it off and where a stop is under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from sqlalchemy import select

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.journal_chain import BEFORE_THE_FIRST, sealed
from osmosis_ai.platform.blobs.store import BlobStoreBusy, BlobStoreError
from osmosis_ai.platform.db.tables import DbRun, DbSample
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.runs.execute.worker_process import ENDED, LEASE_LOST, NOT_MINE, SET_BACK
from osmosis_ai.platform.runs.leases import Leases
from osmosis_ai.platform.worker_access import WorkerAccess
from tests.evaluation.builders import record
from tests.platform.conftest import ManualClock, Member
from tests.platform.runs.pretended_workers import Bench, Pretended, messages


def breaks_off(real: Callable[..., Any], *, times: int) -> Callable[..., Any]:
    left = list(range(times))

    def instead(*args: Any, **options: Any) -> Any:
        if left:
            left.pop()
            raise OsmosisError("the database is away.")
        return real(*args, **options)

    return instead


@pytest.mark.parametrize(
    "step", [(WorkerAccess, "withdraw"), (Leases, "release"), (LogStore, "append")], ids=lambda step: step[1]
)
def test_an_end_that_the_database_broke_off_is_noted_by_the_next_round_and_counted_once(
    bench: Bench,
    member: Member,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    step: tuple[type, str],
) -> None:
    reason = "the rollout server was not ready after 90 s."
    run_id = bench.add("a", member)
    bench.executor.round()
    bench.claim(bench.started[0])
    bench.directory(run_id).note_setback(reason)
    bench.started[0].status = SET_BACK
    with monkeypatch.context() as patched:
        patched.setattr(*step, breaks_off(getattr(*step), times=3))
        for _ in range(3):
            with pytest.raises(OsmosisError, match="the database is away"):
                bench.executor.round()
        assert bench.order == ["a"]
        bench.executor.round()
    assert bench.run(run_id).lease_token is None
    assert messages(bench, run_id) == [
        "the rollout server was not ready after 90 s (no fault of the run, 1 of 3 tries; trying again in 0.5 s)"
    ]
    clock.advance(0.5)
    bench.executor.round()
    assert bench.order == ["a", "a"]


@pytest.mark.parametrize("status", [ENDED, NOT_MINE, LEASE_LOST])
def test_a_worker_that_gathers_nothing_of_a_stopped_run_is_followed_by_others_at_growing_pauses(
    bench: Bench, member: Member, clock: ManualClock, status: int
) -> None:
    run_id = bench.add("a", member)
    bench.record(run_id)
    for number in range(6):  # a run that waits for its next try when it is stopped
        bench.executor.round()
        assert len(bench.started) == number + 1
        bench.started[number].status = NOT_MINE
        bench.executor.round()
        clock.advance(300 if number < 5 else 0)
    with bench.services.db.transaction() as session:
        session.get_one(DbRun, run_id).stop_requested_at = clock.now()
    bench.executor.round()
    assert len(bench.started) == 7, "a stop does not wait for that try"
    for number, pause_s in enumerate((32, 64, 128, 256, 300, 300), start=7):
        bench.started[-1].status = status
        bench.executor.round()
        clock.advance(pause_s - 0.5)
        bench.executor.round()
        assert len(bench.started) == number
        clock.advance(0.5)
        bench.executor.round()
        assert len(bench.started) == number + 1


def test_one_damaged_working_directory_fails_its_own_run_and_keeps_no_other_waiting(
    bench: Bench, member: Member, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = bench.add("a", member)
    bench.add("b", member)
    bench.directory(damaged).log.mkdir(parents=True)

    def opening(run_id: str, *words: str) -> Pretended:
        with bench.directory(run_id).log.open("ab"):
            pass
        return bench._start(run_id, *words)

    monkeypatch.setattr(bench.executor._executor, "_start_worker", opening)
    bench.executor.round()
    assert bench.order == ["b"]
    for _ in range(3):
        bench.executor.round()
        clock.advance(300)
    bench.executor.round()
    bench.executor.round()
    assert "its working directory on the platform's machine is damaged" in messages(bench, damaged)[0]
    assert (bench.run(damaged).status, bench.order) == ("failed", ["b"])


@pytest.mark.parametrize("damage", ["a lock that is a directory", "a directory that is a file"])
def test_a_working_directory_that_none_can_be_locked_in_fails_its_own_run_alone(
    bench: Bench, member: Member, clock: ManualClock, damage: str
) -> None:
    damaged = bench.add("a", member)
    bench.add("b", member)
    directory = bench.directory(damaged)
    if damage == "a lock that is a directory":
        (directory.path / "worker.lock").mkdir(parents=True)
    else:
        directory.path.parent.mkdir(parents=True, exist_ok=True)
        directory.path.write_bytes(b"")
    bench.executor.round()
    assert bench.order == ["b"]
    for _ in range(3):
        bench.executor.round()
        clock.advance(300)
    bench.executor.round()
    bench.executor.round()
    assert "its working directory on the platform's machine is damaged" in messages(bench, damaged)[0]
    assert (bench.run(damaged).status, bench.order) == ("failed", ["b"])


@pytest.mark.parametrize(
    "damage", ["a lock that is a directory", "a directory that is a file", "results in a file"]
)
def test_a_stopped_run_whose_working_directory_is_damaged_ends_as_any_other(
    bench: Bench, member: Member, clock: ManualClock, damage: str
) -> None:
    stopped = bench.add("a", member, status="running", stop_requested_at=clock.now())
    bench.add("b", member)
    directory = bench.directory(stopped)
    if damage == "a directory that is a file":
        directory.path.parent.mkdir(parents=True, exist_ok=True)
        directory.path.write_bytes(b"")
    elif damage == "results in a file":
        directory.create()
        directory.output_root.write_bytes(b"")
    else:
        (directory.path / "worker.lock").mkdir(parents=True)
    bench.executor.round()
    assert (bench.run(stopped).status, bench.order) == ("stopped", ["b"])
    assert not directory.path.exists()


def gives_up_while_the_store_is_away(
    bench: Bench, clock: ManualClock, patched: pytest.MonkeyPatch, run_id: str
) -> None:
    """Have a run with a journal of one record be given up, as far as a store that takes nothing lets it be."""

    def away(*_: Any) -> NoReturn:
        raise BlobStoreBusy("the bucket cannot be reached.")

    patched.setattr(type(bench.services.blobs), "put", away)
    events = bench.directory(run_id).evaluation(bench.run(run_id).name).events
    events.parent.mkdir(parents=True)
    events.write_bytes(sealed(record(0).to_line(), BEFORE_THE_FIRST)[0])
    for _ in range(3):
        bench.executor.round()
        bench.claim(bench.started[-1])
        bench.started[-1].status = -9
        bench.executor.round()
        clock.advance(300)


def test_a_run_that_is_given_up_while_the_store_is_away_ends_with_its_journal_when_it_is_back(
    bench: Bench, member: Member, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = bench.add("a", member)
    with monkeypatch.context() as patched:
        gives_up_while_the_store_is_away(bench, clock, patched, run_id)
        bench.executor.round()
        attempt, said = bench.run(run_id).attempt, messages(bench, run_id)
        for _ in range(100):
            bench.executor.round()
            clock.advance(40)
        assert bench.run(run_id).status == "running"
        assert (bench.run(run_id).attempt, messages(bench, run_id)) == (attempt, said), "once, however long"
        waits = [line for line in said if "ends when what it has recorded can be kept" in line]
        assert waits == ["ends when what it has recorded can be kept: the bucket cannot be reached."]
        bench.add("b", member)
        bench.executor.round()
        assert bench.order[-1] == "b", "others go on"
    clock.advance(1)
    bench.executor.round()
    assert bench.run(run_id).status == "failed" and bench.run(run_id).journal_blob is not None
    assert "3 times in a row" in (bench.run(run_id).error or "")
    with bench.services.db.session() as session:
        assert len(session.scalars(select(DbSample)).all()) == 1
    bench.executor.round()
    assert bench.run(run_id).attempt == attempt


def test_a_run_that_is_given_up_while_the_store_is_away_ends_without_its_journal_when_it_is_to_stop(
    bench: Bench, member: Member, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = bench.add("a", member)
    gives_up_while_the_store_is_away(bench, clock, monkeypatch, run_id)
    bench.executor.round()
    with bench.services.db.transaction() as session:
        bench.leases.ask_to_stop(session.get_one(DbRun, run_id))
    for _ in range(30):
        bench.executor.round()
        clock.advance(1)
    assert (bench.run(run_id).status, bench.run(run_id).journal_blob) == ("stopped", None)


def test_a_given_up_run_whose_files_can_not_be_deleted_ends_no_round_but_its_own(
    bench: Bench, member: Member, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> NoReturn:
        raise BlobStoreError("the bucket says: AccessDenied.")

    run_id = bench.add("a", member)
    with monkeypatch.context() as patched:
        gives_up_while_the_store_is_away(bench, clock, patched, run_id)
        bench.executor.round()
        assert bench.run(run_id).status == "running"
    monkeypatch.setattr(type(bench.services.blobs), "delete_below", refused)
    clock.advance(1)
    with pytest.raises(BlobStoreError):
        bench.executor.round()
    assert bench.run(run_id).status == "failed"
    bench.add("b", member)
    bench.executor.round()
    assert bench.order[-1] == "b"
