"""The journal of a run: appends, damage, salvage and loading."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osmosis_ai.controller.record import TerminalRecord, check_crc
from osmosis_ai.evaluation import journal as journal_module
from osmosis_ai.evaluation.journal import (
    Journal,
    JournalCorruptionError,
    JournalReader,
    JournalWriteError,
    load_results,
    replay,
    salvage,
)
from osmosis_ai.evaluation.results import AttemptTable
from tests.evaluation.builders import record
from tests.evaluation.recorded_runs import journal_of, with_crc

RECORDS = [record(row, error="naïve\n“quotes”") for row in range(8)]
CONTENT = journal_of(RECORDS)
LINES = CONTENT.splitlines(keepends=True)
EDITED = b"".join([*LINES[:2], LINES[2].replace(b'"tokens":7', b'"tokens":8'), *LINES[3:]])
GARBLED = b"".join([*LINES[:2], b"\0" * 40 + b"\n", *LINES[3:]])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of the journal at each flush."""
    sizes: list[int] = []
    monkeypatch.setattr(
        journal_module, "_flush_to_disk", lambda descriptor: sizes.append(os.fstat(descriptor).st_size)
    )
    return sizes


def read(path: Path) -> list[TerminalRecord]:
    return [entry.record for entry in replay(path)]


@given(cut=st.integers(0, len(CONTENT)))
def test_cut_journal_keeps_whole_lines(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("journal") / "events.jsonl"
    path.write_bytes(CONTENT[:cut])

    journal = Journal(path)
    kept = read(path)
    asyncio.run(journal.close())

    assert kept == RECORDS[: CONTENT[:cut].count(b"\n")]
    assert path.read_bytes() == b"".join(LINES[: len(kept)])


async def test_append_after_a_torn_line(path: Path) -> None:
    path.write_bytes(LINES[0] + LINES[1][:-1])  # the last line parses, but it was not acknowledged
    journal = Journal(path)

    assert await journal.append(RECORDS[2]) == len(LINES[0])
    await journal.close()

    assert read(path) == [RECORDS[0], RECORDS[2]]


async def test_appends_wait_for_flushes_and_share_them(path: Path, flushed: list[int]) -> None:
    journal = Journal(path)
    offset = await journal.append(RECORDS[0])
    assert flushed[-1] >= offset + len(LINES[0])
    offsets = await asyncio.gather(*(journal.append(record(row)) for row in range(500)))
    await journal.close()

    assert len(flushed) <= 4
    assert [offset, *sorted(offsets)] == [entry.offset for entry in replay(path)]


async def test_cancelled_append_is_written(path: Path) -> None:
    journal = Journal(path)
    append = asyncio.ensure_future(journal.append(RECORDS[0]))
    await asyncio.sleep(0)
    append.cancel()
    await asyncio.gather(append, return_exceptions=True)
    await journal.close()

    assert read(path) == [RECORDS[0]]


def without_crc(line: bytes) -> bytes:
    return line[: line.rindex(b',"crc":')] + b"}\n"


def changed(old: bytes, new: bytes) -> bytes:
    """Return the first line with changed content and its checksum."""
    body = without_crc(LINES[0])
    assert old in body
    return with_crc(body.replace(old, new))


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"{}\n",
        b"not json\n",
        b"[1]\n",
        changed(b'"success"', b'"done"'),
        changed(b'"row_index":0', b'"row_index":true'),
        changed(b'"row_index":0', b'"row_index":"0"'),
        changed(b'"duration_ms":12', b'"duration_ms":-1'),
        changed(b'"tokens":7', b'"tokens":9007199254740992'),
        changed(b'"tokens":7', b'"tokens":7,"row_digest":"xyz"'),
        changed(b'"tokens":7', b'"tokens":7,"scores":{"a":"1"}'),
        record(rollout_id="../../etc").to_line(),
        record(rollout_id="..").to_line(),
        b'{"row_index":0,"run_index":0,"status":"success","duration_ms":1}\n',
    ],
)
def test_damaged_line_is_refused_with_its_number(line: bytes, path: Path) -> None:
    path.write_bytes(LINES[0] + line + LINES[2])

    with pytest.raises(JournalCorruptionError, match="damaged at line 2") as refused:
        list(replay(path))
    assert "--fresh" in (refused.value.hint or "")


def test_unknown_keys_are_ignored(path: Path) -> None:
    path.write_bytes(changed(b'"row_index":0', b'"added_later":[1],"row_index":0'))
    assert read(path) == [RECORDS[0]]


async def test_failed_write_stops_acknowledgements(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(path)

    def refuse(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(journal_module, "_flush_to_disk", refuse)
    with pytest.raises(JournalWriteError, match="the disk refused a write"):
        await journal.append(RECORDS[0])
    monkeypatch.undo()
    with pytest.raises(JournalWriteError):
        await journal.append(RECORDS[1])
    await journal.close()
    assert list(replay(journal.path)) == []


def write(path: Path, records: list[TerminalRecord]) -> None:
    """Append records in a session."""

    async def append() -> None:
        journal = Journal(path)
        await asyncio.gather(*map(journal.append, records))
        await journal.close()

    asyncio.run(append())


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "my-run" / "events.jsonl"
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    return path


def rows(path: Path) -> list[int]:
    return [record.row_index for record in read(path)]


@pytest.mark.parametrize("damaged", [EDITED, GARBLED], ids=["edited", "garbled"])
def test_salvage_keeps_intact_lines(journal: Path, damaged: bytes) -> None:
    kept = [0, 1, 3, 4, 5, 6, 7]
    journal.write_bytes(damaged)
    with pytest.raises(JournalCorruptionError, match="damaged at line 3") as refused:
        list(replay(journal))
    assert "--name my-run --salvage" in (refused.value.hint or "")

    found = salvage(journal, lambda _: True)
    assert rows(journal) == kept
    assert found.intact == len(kept)
    assert found.damaged_copy == journal.with_name("events.jsonl.damaged")
    assert found.damaged_copy.read_bytes() == damaged
    write(journal, [record(9), record(10)])
    assert rows(journal) == [*kept, 9, 10]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_changed_byte_is_detected(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("journal") / "events.jsonl"
    content = bytearray(CONTENT)
    place = data.draw(st.integers(0, len(content) - 2))
    content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    with pytest.raises(JournalCorruptionError):
        list(replay(path))
    salvage(path, lambda _: True)
    kept = read(path)
    assert all(each in RECORDS for each in kept)
    assert len(kept) >= len(RECORDS) - 2


def test_salvage_of_intact_journal_changes_nothing(journal: Path) -> None:
    found = salvage(journal, lambda _: True)
    assert (found.intact, found.dropped, found.damaged_copy) == (8, (), None)
    assert journal.read_bytes() == CONTENT
    assert [entry.name for entry in journal.parent.iterdir()] == ["events.jsonl"]


def test_second_salvage_keeps_first_copy(journal: Path) -> None:
    for _ in range(2):
        journal.write_bytes(EDITED + b"no record\n")
        salvage(journal, lambda _: True)
    assert {entry.name for entry in journal.parent.iterdir()} == {
        "events.jsonl",
        "events.jsonl.damaged",
        "events.jsonl.damaged-2",
    }


def test_salvage_drops_records_of_other_runs(journal: Path) -> None:
    assert salvage(journal, lambda each: each.row_index < 5).dropped == (6, 7, 8)
    assert rows(journal) == [0, 1, 2, 3, 4]


def test_lines_without_checksum(journal: Path) -> None:
    last = without_crc(LINES[-1])
    journal.write_bytes(b"".join([*LINES[:-1], last]))
    with pytest.raises(JournalCorruptionError, match="line 8: it has no checksum"):
        list(replay(journal))
    assert len(list(replay(journal, without_crc=True))) == 8
    with pytest.raises(ValueError, match="no checksum"):
        check_crc(last)
    assert salvage(journal, lambda _: True).dropped == (8,)
    assert rows(journal) == list(range(7))


def test_failed_salvage_keeps_journal(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal.write_bytes(EDITED)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        salvage(journal, lambda _: True)
    assert journal.read_bytes() == EDITED


def test_last_result_of_an_attempt_counts(journal: Path) -> None:
    write(journal, [record(2, status="failed", reward=None, error_type="timeout", judge_calls=2), record(0)])
    table, seen = AttemptTable(9, 1), list[TerminalRecord]()
    assert load_results(journal, table, each=seen.append) == journal.stat().st_size
    assert len(seen) == 10
    assert table.columns["judge_calls"].tolist()[2] == 2
    assert (table.open_count, table.count("failed"), table.reasons[1:]) == (1, 1, ["timeout"])
    with JournalReader(journal) as reader:
        found = [reader.record(offset) for _, _, offset in table.recorded()]
    assert [each and each.row_index for each in found] == list(range(8))
    assert found[2] is not None and found[2].status == "failed"
