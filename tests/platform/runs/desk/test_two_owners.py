"""Exchanges are delayed, repeated and mixed up: one owner at a time has its writes accepted, and every record counts once."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import inspect

from osmosis_ai.api.wire.workers import EndRequest, ReleaseRequest, SyncRequest
from osmosis_ai.errors import ConflictError
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.platform.db.tables import DbRun, new_id
from osmosis_ai.platform.runs.desk import journal_folding
from osmosis_ai.platform.runs.desk.claims import ClaimScope
from osmosis_ai.platform.runs.journal_segments import journal_segments, segment_bytes
from osmosis_ai.platform.runs.leases import LEASE
from osmosis_ai.platform.runs.stored_journal import stored_records
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import ManualClock
from tests.platform.evaluations import Submits, submit_body
from tests.platform.runs.desk.desk_workers import DeskWorker, offer, records

ITEMS = 12
WORKERS = 3
Say = Callable[[], None]

move = st.one_of(
    st.tuples(st.just("record"), st.integers(0, WORKERS - 1), st.integers(1, 3)),
    st.tuples(st.just("say"), st.integers(0, WORKERS - 1), st.integers(0, 3)),
    st.tuples(st.just("deliver"), st.integers(0, 20), st.booleans()),
    st.tuples(st.just("claim"), st.integers(0, WORKERS - 1), st.booleans()),
    st.tuples(st.just("release"), st.integers(0, WORKERS - 1), st.just(0)),
    st.tuples(st.just("pass"), st.integers(1, 40), st.just(0)),
)


@dataclass
class Race:
    """Machines that want one run, a slow network between them and the desk, and what the desk has accepted of whom.

    Attributes:
        on_the_way: exchanges that were said and have not arrived, or may arrive once more.
        accepted: the attempt of each write that was.
    """

    services: PlatformServices
    clock: ManualClock
    run_id: str
    workers: list[DeskWorker | None] = field(default_factory=lambda: [None] * WORKERS)
    on_the_way: list[Say] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def play(self, what: str, which: int, more: int) -> None:
        if what == "pass":
            self.clock.advance(which)
        elif what == "deliver" and self.on_the_way:
            place = which % len(self.on_the_way)
            self._arrive(self.on_the_way[place] if more else self.on_the_way.pop(place))
        elif what == "claim":
            self._claim(which, sets_aside=bool(more))
        elif what in ("record", "say", "release") and (worker := self.workers[which]) is not None:
            if what == "record":
                done = worker.journal.count(b"\n")
                worker.write(records(min(more, ITEMS - done), first=done, tokens=which))
            elif what == "say":
                lines = worker.journal.splitlines(keepends=True)
                offset = sum(map(len, lines[: max(0, len(lines) - more)]))
                part = worker.part(max(offset, worker.assignment.journal.bytes))
                self._send(worker, SyncRequest(lease=worker.token, journal=part))
            else:
                self._send(worker, ReleaseRequest(lease=worker.token))

    def _claim(self, which: int, *, sets_aside: bool = False) -> None:
        assignment = self.services.desk.claim(offer(), ClaimScope(run_id=self.run_id))
        if assignment is not None:
            worker = self.workers[which] = DeskWorker(self.services, assignment)
            segments = assignment.journal.segments
            worker.journal = b"".join(gzip.decompress(worker.blob(segment.url)) for segment in segments)
            assert len(worker.journal) == assignment.journal.bytes
            worker.generation += sets_aside and assignment.journal.bytes > 0

    def _send(self, worker: DeskWorker, said: SyncRequest | ReleaseRequest) -> None:
        attempt, desk = worker.assignment.lease.attempt, self.services.desk

        def arrives() -> None:
            if isinstance(said, SyncRequest):
                desk.sync(self.run_id, said)
                self.accepted.append(attempt)
            else:
                desk.release(self.run_id, said)

        self.on_the_way.append(arrives)

    def _arrive(self, said: Say) -> None:
        # It may be lost, above what is stored, or have other bytes than another owner's.
        with suppress(ConflictError):
            said()
        self.check()

    def check(self) -> None:
        """The journal is whole lines, one an item, and the samples are those of its lines."""
        with self.services.db.session() as session:
            stored = b"".join(
                segment_bytes(self.services.blobs, each) for each in journal_segments(session, self.run_id)
            )
            run = session.get_one(DbRun, self.run_id)
        owner = DeskWorker.__new__(DeskWorker)
        owner.services, owner.run_id = self.services, self.run_id
        samples = [(each.row_index, each.tokens, each.position) for each in owner.samples()]
        ends, expected = 0, []
        for row, line in enumerate(stored.splitlines(keepends=True)):
            ends += len(line)
            expected.append((row, TerminalRecord.from_line(line).tokens, ends))
        assert (samples, run.journal_bytes) == (expected, len(stored))

    def finish(self) -> int:
        """Let one worker bring the run to its end; return how many records are kept."""
        self.clock.advance(LEASE.total_seconds() + 1)
        self._claim(0)
        last = self.workers[0]
        assert last is not None
        self.play("record", 0, ITEMS)
        last.sync(journal=last.part())
        self.accepted.append(last.assignment.lease.attempt)
        for late in self.on_the_way:
            self._arrive(late)
        last.sync()
        self.services.desk.end(self.run_id, EndRequest(lease=last.token, outcome="finished"))
        key = last.run.journal_blob
        assert key is not None
        return len({each.row_index for each in stored_records(self.services.blobs, key)})


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(moves=st.lists(move, max_size=30))
def test_never_two_owners_and_never_a_record_lost_or_doubled(
    services: PlatformServices,
    clock: ManualClock,
    template: DbRun,
    moves: list[tuple[str, int, int]],
) -> None:
    race = Race(services, clock, another(services, template))
    race.play("claim", 0, 0)
    for each in moves:
        race.play(*each)
    assert race.finish() == ITEMS
    # Once somebody else's write was accepted, nobody before is.
    assert [attempt for attempt, _ in groupby(race.accepted)] == sorted(set(race.accepted))


@pytest.fixture
def template(services: PlatformServices, api: TestClient, monkeypatch: pytest.MonkeyPatch) -> DbRun:
    """A run that waits for a worker; its journal gets into rows and blobs soon."""
    monkeypatch.setattr(journal_folding, "FOLD_BYTES", 400)
    monkeypatch.setattr(journal_folding, "_LOOKS", 2)
    evaluation = {"limit": ITEMS, "n": 1, "batch_size": 4}
    made = Submits("/api/cli/eval-runs", submit_body).taken(api, evaluation_config=evaluation)
    with services.db.session() as session:
        return session.get_one(DbRun, made["id"])


def another(services: PlatformServices, template: DbRun) -> str:
    """Submit the same once more."""
    columns = {column.key: getattr(template, column.key) for column in inspect(DbRun).column_attrs}
    with services.db.transaction() as session:
        run = DbRun(**{**columns, "id": (run_id := new_id("run")), "name": run_id})
        session.add(run)
    return run_id
