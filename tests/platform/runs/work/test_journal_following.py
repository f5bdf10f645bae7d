"""With which journal a worker continues: its own where it begins with what the platform has, else the platform's."""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import orjson
import pytest

from osmosis_ai.api.wire.workers import InputDownload, JournalSegment, StoredJournal
from osmosis_ai.platform.runs.work.journal_following import StoredJournalError, follow_journal
from osmosis_ai.platform.runs.work.journal_tail import JournalTail, TailPart
from tests.evaluation.builders import record


def journal_of(rows: Sequence[int]) -> bytes:
    return b"".join(record(row).to_line() for row in rows)


class Stored:
    """What a platform has of a journal, in segments of so many bytes."""

    def __init__(self, content: bytes, *, packed: bool = True, lines: int = 2) -> None:
        self.served: dict[str, bytes] = {}
        segments, offset = [], 0
        whole = content.splitlines(keepends=True)
        for start in range(0, len(whole), lines):
            part, url = b"".join(whole[start : start + lines]), f"/blobs/{start}"
            self.served[url] = gzip.compress(part) if packed else part
            digest = hashlib.sha256(part).hexdigest()
            segments.append(
                JournalSegment(url=url, size=len(part), sha256=digest, offset=offset, packed=packed)
            )
            offset += len(part)
        self.journal = StoredJournal(generation=0, bytes=len(content), segments=segments)
        self.fetched: list[str] = []

    def fetch(self, download: InputDownload, target: Path) -> None:
        self.fetched.append(download.url)
        target.write_bytes(self.served[download.url])


@pytest.fixture
def events(tmp_path: Path) -> Path:
    return tmp_path / "run" / "events.jsonl"


def written(events: Path, content: bytes) -> Path:
    events.parent.mkdir(exist_ok=True)
    events.write_bytes(content)
    return events


@pytest.mark.parametrize("packed", [True, False])
def test_another_machine_begins_where_the_platforms_bytes_end(events: Path, packed: bool) -> None:
    stored = Stored(journal_of(range(5)), packed=packed)
    followed = follow_journal(events, stored.journal, stored.fetch)
    assert events.read_bytes() == journal_of(range(5))
    assert followed.sentence == (
        "continues from the 5 records of the journal on the platform; other attempts run with the same seeds"
    )
    assert [path.name for path in events.parent.iterdir()] == ["events.jsonl"]


def test_the_same_machine_goes_on_with_its_own_file_and_fetches_nothing(events: Path) -> None:
    stored = Stored(journal_of(range(5)))
    written(events, journal_of(range(9)) + b'{"torn')
    assert not follow_journal(events, stored.journal, stored.fetch).is_rebuilt
    assert stored.fetched == [] and events.read_bytes() == journal_of(range(9)) + b'{"torn'


@pytest.mark.parametrize("own", [[0, 1, 7, 8, 9], [5, 6]])
def test_a_diverged_file_is_renamed(events: Path, own: list[int]) -> None:
    stored = Stored(journal_of(range(5)))
    written(events, journal_of(own))
    followed = follow_journal(events, stored.journal, stored.fetch)
    assert events.read_bytes() == journal_of(range(5))
    assert events.with_name("events.jsonl.diverged").read_bytes() == journal_of(own)
    assert followed.generation == stored.journal.generation + 1
    again = len([row for row in own if row > 4])
    assert (
        f"{again} of this machine's own journal, which is kept as events.jsonl.diverged" in followed.sentence
    )
    # It is kept whatever comes after it.
    written(events, journal_of([8]))
    follow_journal(events, stored.journal, stored.fetch)
    assert events.with_name("events.jsonl.diverged-2").exists()


def test_a_file_that_is_only_behind(events: Path) -> None:
    stored = Stored(journal_of(range(5)))
    written(events, journal_of(range(2)))
    followed = follow_journal(events, stored.journal, stored.fetch)
    assert events.read_bytes() == journal_of(range(5)) and followed.set_aside is None
    assert followed.generation == stored.journal.generation


def test_where_the_platform_has_nothing_everything_of_this_machine_counts(events: Path) -> None:
    stored = Stored(b"")
    assert not follow_journal(events, stored.journal, stored.fetch).is_rebuilt
    assert not events.exists()
    written(events, journal_of(range(2)))
    assert not follow_journal(events, stored.journal, stored.fetch).is_rebuilt


def test_a_platform_that_serves_something_else_changes_nothing_here(events: Path) -> None:
    own = written(events, journal_of([7]))
    bomb = gzip.compress(b"\0" * (64 << 20))
    changed = gzip.compress(b"".join(journal_of(range(5)).splitlines(True)[2:4]).replace(b"1.0", b"0.5", 1))
    for wrong in (b"no gzip", bomb, gzip.compress(b"other\n"), gzip.compress(journal_of([1]))[:-4], changed):
        stored = Stored(journal_of(range(5)))
        stored.served["/blobs/2"] = wrong
        with pytest.raises(StoredJournalError):
            follow_journal(events, stored.journal, stored.fetch)
        assert own.read_bytes() == journal_of([7])
    gap = Stored(journal_of(range(5)))
    del gap.journal.segments[1]
    with pytest.raises(StoredJournalError, match="gap"):
        follow_journal(events, gap.journal, gap.fetch)


def test_a_link_in_the_place_of_the_journal_is_not_gone_on_with(events: Path, tmp_path: Path) -> None:
    stored = Stored(journal_of(range(2)))
    (tmp_path / "elsewhere").write_bytes(journal_of(range(2)))
    events.parent.mkdir()
    os.symlink(tmp_path / "elsewhere", events)
    follow_journal(events, stored.journal, stored.fetch)
    assert not events.is_symlink() and events.read_bytes() == journal_of(range(2))


def parts_of(tail: JournalTail) -> list[TailPart]:
    parts = []
    while (part := tail.read()) is not None:
        parts.append(part)
        tail.take(part)
    return parts


def test_what_the_platform_has_is_not_sent_and_what_it_has_not_is_whole_lines(events: Path) -> None:
    stored = Stored(journal_of(range(4)))
    written(events, journal_of(range(6)))
    tail = JournalTail(events, stored.journal)
    with events.open("ab") as journal:
        journal.write(journal_of(range(8))[len(journal_of(range(6))) :] + b'{"torn')
    had, left, new = parts_of(tail)
    assert (had.lines, had.is_resumed, len(had.items)) == ("", True, 4)
    assert (left.is_resumed, new.is_resumed) == (True, False)
    assert left.offset == stored.journal.bytes
    assert (left.lines + new.lines).encode() == journal_of(range(8))[stored.journal.bytes :]
    assert [item.row_index for part in (had, left, new) for item in part.items] == list(range(8))


def test_a_long_journal_goes_in_parts_that_fit_an_exchange(events: Path) -> None:
    rows = [record(row, error='"\\"' * 1700) for row in range(400)]
    written(events, b"".join(row.to_line() for row in rows))
    parts = parts_of(JournalTail(events, StoredJournal(generation=0, bytes=0)))
    assert b"".join(part.lines.encode() for part in parts) == events.read_bytes()
    # Quotes grow in JSON; a log and numbers go along.
    assert len(parts) > 3 and all(len(orjson.dumps(part.lines)) < 850_000 for part in parts)
    assert parts[0].is_full


def test_damage_ends_what_is_sent_where_it_begins(events: Path) -> None:
    lines = journal_of(range(3)).splitlines(keepends=True)
    written(events, lines[0] + lines[1].replace(b":", b"!", 1) + lines[2])
    tail = JournalTail(events, StoredJournal(generation=0, bytes=0))
    (part,) = parts_of(tail)
    assert part.lines.encode() == lines[0]
    assert tail.damage is not None and "damaged at line 2" in tail.damage.message
