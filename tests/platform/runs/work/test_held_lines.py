"""Lines of a journal wait for files that lie here until they are told; for files that have yet to come as long as a shard may wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from osmosis_ai.api.wire.workers import StoredJournal
from osmosis_ai.platform.blobs.store import BlobStoreBusy
from osmosis_ai.platform.runs.work.held_lines import HeldLines
from osmosis_ai.platform.runs.work.journal_tail import JournalTail
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.rollout.artifacts import PENDING_TRAJECTORY_FILE
from tests.evaluation.builders import record
from tests.platform.runs.work.test_sample_files import Worker


class Journal:
    """What a worker has recorded, what of it is held, and what it told."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.events = worker.directory.events
        self.events.touch()
        self.tail = JournalTail(self.events, StoredJournal(generation=0, bytes=0))
        self.held = HeldLines(lambda: worker.now)

    def record(self, row: int) -> bytes:
        line = record(row).to_line()
        with self.events.open("ab") as file:
            file.write(line)
        part = self.tail.read()
        assert part is not None
        self.tail.take(part)
        self.worker.files.expect(part.items)
        self.held.add(part)
        return line

    def due(self) -> bytes:
        part = self.held.due(self.worker.files)
        return part.lines.encode() if part is not None else b""

    def tell_files(self, seconds: float) -> None:
        self.worker.now += seconds
        self.worker.tell(self.worker.files.ready())


@pytest.fixture
def journal(services: PlatformServices, tmp_path: Path) -> Journal:
    return Journal(Worker(services, tmp_path / "run"))


def test_a_line_is_told_once_its_conversation_is_and_with_all_that_came_by_then(journal: Journal) -> None:
    lines = b""
    for row in range(3):
        journal.worker.finish(row)
        lines += journal.record(row)
    journal.tell_files(0.25)
    assert journal.due() == b""
    journal.tell_files(0.25)
    assert len(journal.worker.rows) == 3
    assert journal.due() == lines
    journal.worker.finish(3)
    later = journal.record(3)
    assert journal.due() == lines, "its files are not told"
    journal.worker.now += 0.5
    journal.worker.files.ready()
    beside = journal.held.due(journal.worker.files, telling=True)
    assert beside is not None and beside.lines.encode() == lines + later, "or beside them"
    assert journal.due() == lines
    told = journal.held.due(journal.worker.files)
    assert told is not None
    journal.held.told(told)
    assert journal.due() == b""
    journal.tell_files(1.0)
    assert journal.due() == later


def test_a_conversation_that_never_comes_holds_lines_back_for_a_second_and_no_longer(
    journal: Journal,
) -> None:
    first = journal.record(0)
    journal.worker.now = 0.9
    journal.worker.finish(1)
    second = journal.record(1)
    assert journal.due() == b""
    journal.tell_files(0.1)
    assert journal.due() == first + second


def test_a_conversation_that_lies_here_holds_its_line_back_however_long_the_store_is_away(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.worker.finish(0)
    line = journal.record(0)

    def away(*_: object) -> None:
        raise BlobStoreBusy("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(journal.worker.services.blobs, "put", away)
        for _ in range(3):
            with pytest.raises(BlobStoreBusy):
                journal.tell_files(600.0)
            assert journal.due() == b""
            assert journal.held.due(journal.worker.files, telling=True) is None
    assert journal.held.waits_s == 1800.0
    journal.tell_files(0.25)
    assert journal.due() == line


def test_a_conversation_that_comes_late_is_waited_for_from_then_on(journal: Journal) -> None:
    line = journal.record(0)
    journal.worker.now = 0.9
    journal.worker.finish(0)
    journal.worker.now = 5.0
    assert journal.due() == b"", "it lies here"
    journal.tell_files(0.0)
    assert journal.due() == line


def test_a_conversation_that_its_server_has_named_is_waited_for_until_the_engine_should_have_copied_it(
    journal: Journal,
) -> None:
    item = journal.worker.finish(0)
    (journal.worker.directory.trajectories / "row_0_run_0.json").unlink()
    line = journal.record(0)
    assert (journal.worker.directory.trial(item.rollout_id) / "trajectory.json").exists()
    journal.worker.now = 9.9
    assert journal.due() == b""
    journal.worker.now = 10.0
    assert journal.due() == line, "it is none that can be copied"


def test_a_conversation_whose_server_was_killed_over_its_name_is_waited_for_until_the_engine_has_named_it(
    journal: Journal,
) -> None:
    item = journal.worker.finish(0)
    (journal.worker.directory.trajectories / "row_0_run_0.json").unlink()
    trial = journal.worker.directory.trial(item.rollout_id)
    pending = (trial / "trajectory.json").rename(trial / PENDING_TRAJECTORY_FILE)
    line = journal.record(0)
    for moment in (1.1, 9.9, 14.9):
        journal.worker.now = moment
        assert journal.due() == b"", "were it counted now, its conversation would go with its machine"
    pending.rename(journal.worker.directory.trajectories / "row_0_run_0.json")
    assert journal.due() == b""
    journal.tell_files(0.0)
    assert journal.due() == line


def test_a_conversation_that_nobody_names_keeps_its_line_for_a_while_alone(journal: Journal) -> None:
    item = journal.worker.finish(0)
    (journal.worker.directory.trajectories / "row_0_run_0.json").unlink()
    trial = journal.worker.directory.trial(item.rollout_id)
    (trial / "trajectory.json").rename(trial / PENDING_TRAJECTORY_FILE)
    line = journal.record(0)
    journal.worker.now = 15.0
    assert journal.due() == line


def test_what_a_killed_session_left_is_waited_for_until_the_run_goes_on(journal: Journal) -> None:
    item = journal.worker.finish(0)
    (journal.worker.directory.trajectories / "row_0_run_0.json").unlink()
    trial = journal.worker.directory.trial(item.rollout_id)
    pending = (trial / "trajectory.json").rename(trial / PENDING_TRAJECTORY_FILE)
    line = journal.record(0)
    journal.worker.files.expect([item], resumed=True)
    journal.worker.now = 59.9
    assert journal.due() == b""
    pending.rename(journal.worker.directory.trajectories / "row_0_run_0.json")
    journal.worker.now = 600.0
    assert journal.due() == b""
    journal.tell_files(0.0)
    assert journal.due() == line


def test_after_a_quiet_time_a_line_waits_for_its_upload_alone(journal: Journal) -> None:
    journal.worker.now = 100.0
    journal.worker.finish(0)
    line = journal.record(0)
    assert journal.due() == b""
    journal.tell_files(0.0)
    assert journal.due() == line, "the shard was old enough"
