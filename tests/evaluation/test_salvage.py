"""Damage to a journal: it is seen, named, and mended by redoing no more than has to be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osmosis_ai.evaluation.journal import Journal, JournalCorruptionError, replay
from osmosis_ai.evaluation.journal_chain import opened
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.evaluation.salvage import salvage
from tests.evaluation.builders import record

RECORDS = [record(row, reward=float(row % 2)) for row in range(8)]


def write(path: Path, records: list[TerminalRecord]) -> None:
    """Append records as two sessions do."""

    async def append(some: list[TerminalRecord]) -> None:
        journal = Journal.open(path)
        await asyncio.gather(*(journal.append(each) for each in some))
        await journal.close()

    asyncio.run(append(records[: len(records) // 2]))
    asyncio.run(append(records[len(records) // 2 :]))


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "my-run" / "events.jsonl"
    path.parent.mkdir()
    write(path, RECORDS)
    return path


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def rows(path: Path) -> list[int]:
    return [entry.record.row_index for entry in replay(path)]


def test_every_line_is_json_and_states_its_digest(journal: Path) -> None:
    assert [entry.record for entry in replay(journal)] == RECORDS
    assert all(len(json.loads(line)["sha256"]) == 64 for line in lines(journal))


def edit(found: list[bytes]) -> list[bytes]:
    return [*found[:2], found[2].replace(b'"reward":0.0', b'"reward":1.0'), *found[3:]]


def move(found: list[bytes]) -> list[bytes]:
    return [*found[:2], found[3], found[2], *found[4:]]


def take_out(found: list[bytes]) -> list[bytes]:
    return [*found[:2], *found[3:]]


def repeat(found: list[bytes]) -> list[bytes]:
    return [*found[:2], found[1], *found[2:]]


def garble(found: list[bytes]) -> list[bytes]:
    return [*found[:2], b"\0" * 40 + b"\n", *found[3:]]


@pytest.mark.parametrize(
    ("damage", "line", "kept"),
    [
        (edit, 3, [0, 1, 3, 4, 5, 6, 7]),
        (move, 3, [0, 1, 5, 6, 7]),
        (take_out, 3, [0, 1, 4, 5, 6, 7]),
        (repeat, 3, [0, 1, 2, 3, 4, 5, 6, 7]),
        (garble, 3, [0, 1, 4, 5, 6, 7]),
    ],
)
def test_damage_is_named_by_its_line_and_what_is_intact_is_kept(
    journal: Path, damage: Callable[[list[bytes]], list[bytes]], line: int, kept: list[int]
) -> None:
    damaged = b"".join(damage(lines(journal)))
    journal.write_bytes(damaged)
    with pytest.raises(JournalCorruptionError, match=f"damaged at line {line}") as refused:
        list(replay(journal))
    assert "--name my-run --salvage" in (refused.value.hint or "")

    found = salvage(journal, lambda _: True)
    assert rows(journal) == kept
    assert found.kept == len(kept)
    assert found.damaged == journal.with_name("events.jsonl.damaged")
    assert found.damaged.read_bytes() == damaged
    write(journal, [record(9), record(10)])
    assert rows(journal) == [*kept, 9, 10]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("journal") / "events.jsonl"
    write(path, RECORDS)
    return path.read_bytes()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_changed_byte_is_taken_for_what_was_written(
    data: st.DataObject, whole: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("journal") / "events.jsonl"
    content = bytearray(whole)
    place = data.draw(st.integers(0, len(content) - 2))
    content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    with pytest.raises(JournalCorruptionError):
        list(replay(path))
    salvage(path, lambda _: True)
    kept = [entry.record for entry in replay(path)]
    assert all(each in RECORDS for each in kept)
    assert len(kept) >= len(RECORDS) - 2


def test_a_whole_journal_is_left_as_it_is(journal: Path) -> None:
    before = journal.read_bytes()
    found = salvage(journal, lambda _: True)
    assert (found.kept, found.dropped, found.damaged) == (8, (), None)
    assert journal.read_bytes() == before
    assert [entry.name for entry in journal.parent.iterdir()] == ["events.jsonl"]


def test_a_second_salvage_keeps_the_first_damaged_journal_too(journal: Path) -> None:
    for _ in range(2):
        journal.write_bytes(b"".join(edit(lines(journal))) + b"no record\n")
        salvage(journal, lambda _: True)
    assert {entry.name for entry in journal.parent.iterdir()} == {
        "events.jsonl",
        "events.jsonl.damaged",
        "events.jsonl.damaged-2",
    }


def test_records_that_are_not_of_the_run_are_left_out(journal: Path) -> None:
    assert salvage(journal, lambda each: each.row_index < 5).dropped == (6, 7, 8)
    assert rows(journal) == [0, 1, 2, 3, 4]


def test_lines_without_a_digest_are_refused_and_dropped_by_a_salvage(journal: Path) -> None:
    found = lines(journal)
    journal.write_bytes(b"".join([*found[:-1], opened(found[-1])[0]]))
    with pytest.raises(JournalCorruptionError, match="line 8: it has no digest"):
        list(replay(journal))
    assert salvage(journal, lambda _: True).dropped == (8,)
    assert rows(journal) == list(range(7))


def test_a_salvage_that_cannot_be_written_leaves_the_old_journal(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = b"".join(edit(lines(journal)))
    journal.write_bytes(damaged)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        salvage(journal, lambda _: True)
    assert journal.read_bytes() == damaged
