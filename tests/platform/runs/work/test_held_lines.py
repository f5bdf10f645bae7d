"""Lines of a journal wait for the files of their attempts, for as long as a shard may wait, and then for nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from osmosis_ai.api.wire.workers import StoredJournal
from osmosis_ai.platform.runs.work.held_lines import HeldLines
from osmosis_ai.platform.runs.work.journal_tail import JournalTail
from osmosis_ai.platform.services import PlatformServices
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


def test_with_nobody_to_send_files_to_lines_go_when_a_shard_would_have_gone(journal: Journal) -> None:
    journal.worker.finish(0)
    line = journal.record(0)
    journal.worker.now = 0.99
    assert journal.due() == b""
    journal.worker.now = 1.0
    assert journal.due() == line


def test_after_a_quiet_time_a_line_waits_for_its_upload_alone(journal: Journal) -> None:
    journal.worker.now = 100.0
    journal.worker.finish(0)
    line = journal.record(0)
    assert journal.due() == b""
    journal.tell_files(0.0)
    assert journal.due() == line, "the shard was old enough"
