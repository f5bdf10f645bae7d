"""A worker that set a file of its own aside begins the next generation of the journal: with all that was accepted."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from typing import BinaryIO

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.platform.blobs.store import BlobInfo, BlobNotFound
from osmosis_ai.platform.db.tables import DbJournalSegment
from osmosis_ai.platform.runs.desk import journal_folding
from osmosis_ai.platform.runs.desk.journal_intake import JournalDivergedError
from osmosis_ai.platform.runs.journal_segments import journal_segments, run_records, segment_bytes
from osmosis_ai.platform.runs.leases import LEASE
from osmosis_ai.platform.runs.lifecycle import JournalOffsetError, LeaseLostError
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import ManualClock
from tests.platform.evaluations import Submits, submit_body
from tests.platform.runs.desk.desk_workers import DeskWorker, records

submitted = Submits("/api/cli/eval-runs", submit_body).taken


@pytest.fixture
def worker(api: TestClient, services: PlatformServices) -> DeskWorker:
    """The owner of a run, three records of which are accepted: two in one part, one in another."""
    submitted(api, evaluation_config={"limit": 12, "n": 1, "batch_size": 4})
    worker = DeskWorker.claims(services)
    first = len(worker.write(records(2)))
    worker.sync(journal=worker.part())
    worker.write(records(1, first=2))
    worker.sync(journal=worker.part(first))
    return worker


def takes_over(worker: DeskWorker, clock: ManualClock, *, sets_aside: bool) -> DeskWorker:
    """Return who owns a killed worker's run next: with the platform's bytes, under the next generation or not."""
    clock.advance(LEASE.total_seconds() + 1)
    successor = DeskWorker.claims(worker.services)
    segments = successor.assignment.journal.segments
    successor.journal = b"".join(gzip.decompress(successor.blob(segment.url)) for segment in segments)
    successor.generation += sets_aside
    return successor


def says(worker: DeskWorker, count: int) -> None:
    """Have a worker record and say so many records more."""
    stored, done = len(worker.journal), worker.journal.count(b"\n")
    worker.write(records(count, first=done))
    worker.sync(journal=worker.part(stored))


def segments_of(worker: DeskWorker) -> Sequence[DbJournalSegment]:
    with worker.services.db.session() as session:
        return journal_segments(session, worker.run_id)


def rows_of(worker: DeskWorker) -> list[int]:
    return [each.row_index for each in worker.samples()]


def test_the_next_generation_begins_with_all_that_was_accepted(
    worker: DeskWorker, clock: ManualClock
) -> None:
    successor = takes_over(worker, clock, sets_aside=True)
    assert successor.run.journal_generation == 0, "nothing was said under the next one"
    says(successor, 2)
    assert (successor.run.journal_generation, rows_of(successor)) == (1, [0, 1, 2, 3, 4])
    assert {segment.generation for segment in segments_of(successor)} == {1}
    # However often it is said: the answer to the first may have been lost.
    successor.sync(journal=successor.part(successor.assignment.journal.bytes))
    assert successor.run.journal_bytes == len(successor.journal)


def test_nothing_is_lost_where_the_one_that_began_it_is_killed_too(
    worker: DeskWorker, clock: ManualClock
) -> None:
    for killed in range(2):
        worker = takes_over(worker, clock, sets_aside=True)
        says(worker, 1)
        assert worker.run.journal_generation == killed + 1
    last = takes_over(worker, clock, sets_aside=False)
    assert (last.assignment.journal.generation, last.assignment.journal.bytes) == (2, len(worker.journal))
    says(last, 7)
    last.ends()
    services = last.services
    assert [each.row_index for each in run_records(services.db, services.blobs, last.run_id)] == list(
        range(12)
    )


def test_nothing_is_taken_of_the_generation_before(worker: DeskWorker, clock: ManualClock) -> None:
    successor = takes_over(worker, clock, sets_aside=True)
    says(successor, 1)
    with pytest.raises(LeaseLostError):
        worker.sync(journal=worker.part())
    with pytest.raises(JournalOffsetError):
        successor.sync(journal=successor.part(generation=0))
    with pytest.raises(JournalOffsetError):
        successor.sync(journal=successor.part(generation=3))


def test_other_bytes_withdraw_nothing(worker: DeskWorker, clock: ManualClock) -> None:
    successor = takes_over(worker, clock, sets_aside=True)
    successor.journal = b""
    successor.write(records(3, reward=0.25))
    with pytest.raises(JournalDivergedError):
        successor.sync(journal=successor.part())
    assert [each.reward for each in successor.samples()] == [1.0, 1.0, 1.0]
    assert successor.run.journal_generation == 0


def test_it_begins_where_an_older_state_of_the_database_has_less(
    worker: DeskWorker, clock: ManualClock
) -> None:
    successor = takes_over(worker, clock, sets_aside=True)
    successor.write(records(2, first=3))
    with pytest.raises(JournalOffsetError) as refused:
        successor.sync(journal=successor.part(len(successor.journal)))
    successor.sync(journal=successor.part(refused.value.stored))
    assert (successor.run.journal_generation, rows_of(successor)) == (1, [0, 1, 2, 3, 4])


def test_parts_that_are_being_put_together_when_it_begins_stay_as_they_are(
    worker: DeskWorker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(worker, 1)
    successor = takes_over(worker, clock, sets_aside=False)
    says(successor, 1)
    successor.generation += 1
    services = successor.services
    put, folded = services.blobs.put, []

    def puts(key: str, content: BinaryIO) -> BlobInfo:
        folded.append(key)
        says(successor, 1)
        return put(key, content)

    monkeypatch.setattr(services.blobs, "put", puts)
    journal_folding.JournalFolding(services.db, services.blobs).fold_all(successor.run_id)
    monkeypatch.undo()
    stored = segments_of(successor)
    assert [each.generation for each in stored] == [1] * len(stored)
    assert b"".join(segment_bytes(services.blobs, each) for each in stored) == successor.journal
    (key,) = folded
    with pytest.raises(BlobNotFound):
        services.blobs.open(key)
