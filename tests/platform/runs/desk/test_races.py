"""Exchanges are delayed, repeated and mixed up, workers die, and clocks jump: one owner at a time has its writes accepted, and
every record counts once."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby

import orjson
import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import inspect

from tests.platform.conftest import ManualClock
from tests.platform.platform_parts import DbRun, PlatformServices, new_id
from tests.platform.runs.desk.desk_workers import LEASE_S, DeskWorker, Refused, claim, records, submitted
from tests.platform.runs.desk.test_exchanges import kept_rows

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
    st.tuples(st.just("jump"), st.integers(-3, 3), st.integers(0, 86400)),
)


@dataclass
class Race:
    """Machines that want one run, a slow network between them and the platform, and what it has accepted of which.

    Attributes:
        on_the_way: exchanges that were said and have not arrived, or may arrive once more.
        accepted: the attempt of each write that was.
    """

    api: TestClient
    services: PlatformServices
    clock: ManualClock
    run_id: str
    workers: list[DeskWorker | None] = field(default_factory=lambda: [None] * WORKERS)
    on_the_way: list[Say] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def play(self, what: str, which: int, more: int) -> None:
        if what == "pass":
            self.clock.advance(which)
        elif what == "jump":
            self.clock.jump(which * more)
        elif what == "deliver" and self.on_the_way:
            place = which % len(self.on_the_way)
            self._arrive(self.on_the_way[place] if more else self.on_the_way.pop(place))
        elif what == "claim":
            self._claim(which, begins_another_file=bool(more))
        elif what in ("record", "say", "release") and (worker := self.workers[which]) is not None:
            if what == "record":
                done = worker.journal.count(b"\n")
                worker.write(records(min(more, ITEMS - done), first=done, tokens=which))
            elif what == "say":
                lines = worker.journal.splitlines(keepends=True)
                offset = sum(map(len, lines[: max(0, len(lines) - more)]))
                part = worker.part(max(offset, worker.assignment.journal.bytes))
                self.on_the_way.append(lambda: self._accept(worker, worker.sync(journal=part)))
            else:
                self.on_the_way.append(lambda: worker.releases() and None)

    def _claim(self, which: int, *, begins_another_file: bool = False) -> None:
        ticket = self.services.worker_access.issue_ticket(self.run_id)
        assignment = claim(self.services, ticket)
        if assignment is not None:
            worker = self.workers[which] = DeskWorker(self.services, assignment, ticket)
            segments = assignment.journal.segments
            worker.journal = b"".join(gzip.decompress(worker.blob(segment.url)) for segment in segments)
            assert len(worker.journal) == assignment.journal.bytes
            worker.generation += begins_another_file and assignment.journal.bytes > 0

    def _accept(self, worker: DeskWorker, _reply: object) -> None:
        self.accepted.append(worker.assignment.lease.attempt)

    def _arrive(self, said: Say) -> None:
        # It may be lost, above what is stored, or have other bytes than another owner's.
        with suppress(Refused):
            said()
        self.check()

    def check(self) -> None:
        """The samples are those of a journal of whole lines, one an item."""
        owner = next(worker for worker in self.workers if worker is not None)
        samples = owner.samples()
        assert [each.row_index for each in samples] == list(range(len(samples)))
        positions = [each.position for each in samples]
        assert positions == sorted(positions)
        assert owner.run.journal_bytes == (positions[-1] if positions else 0)

    def finish(self) -> list[tuple[int, int | None]]:
        """Let one worker bring the run to its end; return what is kept of each record."""
        self.clock.advance(LEASE_S + 2)
        self._claim(0)
        last = self.workers[0]
        assert last is not None
        before = {each.row_index: each.tokens for each in last.samples()}
        known = [orjson.loads(line) for line in last.journal.splitlines()]
        assert before == {each["row_index"]: each["tokens"] for each in known}, "all that was accepted"
        self.play("record", 0, ITEMS)
        self._accept(last, last.sync(journal=last.part()))
        for late in self.on_the_way:
            self._arrive(late)
        last.sync()
        last.ends()
        assert kept_rows(self.api, self.run_id) == list(range(ITEMS))
        return [(each.row_index, each.tokens) for each in last.samples()]


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(moves=st.lists(move, max_size=30))
def test_never_two_owners_and_never_a_record_lost_or_doubled(
    api: TestClient,
    services: PlatformServices,
    clock: ManualClock,
    template: DbRun,
    moves: list[tuple[str, int, int]],
) -> None:
    race = Race(api, services, clock, another(services, template))
    race.play("claim", 0, 0)
    for each in moves:
        race.play(*each)
    assert len(race.finish()) == ITEMS
    # Once somebody else's write was accepted, nobody before is.
    assert [attempt for attempt, _ in groupby(race.accepted)] == sorted(set(race.accepted))


@pytest.fixture
def template(services: PlatformServices, api: TestClient, small_pieces: None) -> DbRun:
    """A run that waits for a worker; its journal gets into rows and blobs soon."""
    made = submitted(api, evaluation_config={"limit": ITEMS, "n": 1, "batch_size": 4})
    with services.db.session() as session:
        return session.get_one(DbRun, made["id"])


def another(services: PlatformServices, template: DbRun) -> str:
    """Submit the same once more."""
    columns = {column.key: getattr(template, column.key) for column in inspect(DbRun).column_attrs}
    with services.db.transaction() as session:
        run = DbRun(**{**columns, "id": (run_id := new_id("run")), "name": run_id})
        session.add(run)
    return run_id
