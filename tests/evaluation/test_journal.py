"""The journal of a run: durable appends, damage and its salvage, and going on from a checkpoint."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osmosis_ai.controller.attempt import BOUNDARIES
from osmosis_ai.evaluation import journal as journal_module
from osmosis_ai.evaluation.budget import Budget, Spending
from osmosis_ai.evaluation.journal import (
    Journal,
    JournalCorruptionError,
    JournalReader,
    JournalWriteError,
    replay,
)
from osmosis_ai.evaluation.journal_chain import opened, sealed
from osmosis_ai.evaluation.journal_checkpoint import CheckpointWriter, JournalCheckpoint
from osmosis_ai.evaluation.ledger import Ledger
from osmosis_ai.evaluation.metrics import MetricsAccumulator
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.evaluation.record_values import NAMES, values_of
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.run_log import RunLog
from osmosis_ai.evaluation.run_state import RunState, settle_recorded
from osmosis_ai.evaluation.salvage import salvage
from osmosis_ai.evaluation.trajectory_export import Projector
from osmosis_ai.redaction import Redactor
from tests.evaluation.builders import record
from tests.evaluation.recorded_runs import chained
from tests.full_disk import NO_CACHED_CODE

RECORDS = [record(row, status="failed", reward=None, error="naïve\n“quotes”") for row in range(5)]
BODIES = [each.to_line() for each in RECORDS]
CONTENT = chained(BODIES)
LINES = CONTENT.splitlines(keepends=True)


@given(cut=st.integers(0, len(CONTENT)))
def test_a_journal_cut_at_any_byte_keeps_exactly_its_whole_lines(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("journal") / "events.jsonl"
    path.write_bytes(CONTENT[:cut])

    journal = Journal.open(path)
    kept = [entry.record for entry in journal.replay()]
    asyncio.run(journal.close())

    assert kept == RECORDS[: CONTENT[:cut].count(b"\n")]
    assert path.read_bytes() == b"".join(LINES[: len(kept)])


async def test_a_record_that_was_appended_after_a_cut_is_not_glued_to_the_remains(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(LINES[0] + LINES[1][:-1])  # the last line parses, but nobody was told that it counts
    journal = Journal.open(path)

    assert await journal.append(RECORDS[2]) == len(LINES[0])
    await journal.close()

    assert [entry.record for entry in replay(path)] == [RECORDS[0], RECORDS[2]]


async def test_append_returns_only_when_the_line_has_been_flushed_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.jsonl"
    flushed: list[int] = []
    monkeypatch.setattr(
        journal_module, "_flush_to_disk", lambda descriptor: flushed.append(os.fstat(descriptor).st_size)
    )
    journal = Journal.open(path)

    offset = await journal.append(RECORDS[0])

    assert flushed[-1] >= offset + len(LINES[0])
    await journal.close()


async def test_appends_that_arrive_together_share_few_flushes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushes = 0

    def count(_: int) -> None:
        nonlocal flushes
        flushes += 1

    monkeypatch.setattr(journal_module, "_flush_to_disk", count)
    journal = Journal.open(tmp_path / "events.jsonl")

    offsets = await asyncio.gather(*(journal.append(record(row)) for row in range(500)))
    await journal.close()

    assert flushes <= 3
    assert sorted(offsets) == [entry.offset for entry in replay(journal.path)]


async def test_each_append_learns_the_offset_of_its_own_line(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "events.jsonl")
    offsets = await asyncio.gather(*(journal.append(record(row)) for row in range(20)))
    await journal.close()

    with JournalReader(journal.path) as reader:
        rows = [found.row_index for offset in offsets if (found := reader.record(offset))]
    assert rows == list(range(20))


async def test_a_cancelled_append_is_still_written(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "events.jsonl")
    append = asyncio.ensure_future(journal.append(RECORDS[0]))
    await asyncio.sleep(0)
    append.cancel()
    await asyncio.gather(append, return_exceptions=True)
    await journal.close()

    assert [entry.record for entry in replay(journal.path)] == [RECORDS[0]]


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"{}\n",
        b"not json\n",
        b"[1]\n",
        BODIES[0].replace(b'"failed"', b'"done"'),
        BODIES[0].replace(b'"row_index":0', b'"row_index":true'),
        BODIES[0].replace(b'"row_index":0', b'"row_index":"0"'),
        BODIES[0].replace(b'"duration_ms":12', b'"duration_ms":-1'),
        record(rollout_id="../../etc").to_line(),
        b'{"row_index":0,"run_index":0,"status":"success","duration_ms":1}\n',
    ],
)
def test_a_damaged_committed_line_is_refused_with_its_number(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(chained([BODIES[0], line]) + LINES[2])

    with pytest.raises(JournalCorruptionError, match="damaged at line 2") as refused:
        list(replay(path))
    assert "--fresh" in (refused.value.hint or "")


def test_keys_of_a_later_release_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(chained([BODIES[0].replace(b"{", b'{"added_later":[1],', 1)]))
    assert [entry.record for entry in replay(path)] == [RECORDS[0]]


def test_a_record_leaves_out_what_is_not_known() -> None:
    line = TerminalRecord(0, 1, "a" * 32, "skipped", 5).to_line()
    assert (
        line
        == b'{"duration_ms":5,"rollout_id":"'
        + b"a" * 32
        + b'","row_index":0,"run_index":1,"status":"skipped"}\n'
    )


FULL_DISK = """
import asyncio, resource, sys
from pathlib import Path
from osmosis_ai.evaluation.journal import Journal, JournalWriteError
from tests.evaluation.builders import record

async def main() -> None:
    journal = Journal.open(Path(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    rows = range(int(sys.argv[2]), int(sys.argv[2]) + 200)
    for first in range(rows.start, rows.stop, 7):
        batch = [record(row) for row in range(first, min(first + 7, rows.stop))]
        results = await asyncio.gather(*map(journal.append, batch), return_exceptions=True)
        for each, result in zip(batch, results):
            if isinstance(result, int):
                print(each.row_index, flush=True)
            elif isinstance(result, JournalWriteError):
                print(result.message, file=sys.stderr)
                sys.exit(3)

asyncio.run(main())
"""


@pytest.mark.integration
def test_a_full_disk_fails_the_append_and_loses_nothing_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    child = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path), "0"],
        env={**os.environ, **NO_CACHED_CODE},
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    acknowledged = [int(line) for line in child.stdout.split()]

    assert child.returncode == 3, child.stderr
    assert "the disk is full" in child.stderr
    assert acknowledged
    assert [entry.record.row_index for entry in replay(path)] == acknowledged
    assert path.read_bytes().endswith(b"\n")


async def test_after_a_failed_write_nothing_more_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.open(tmp_path / "events.jsonl")

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


SALVAGE_RECORDS = [record(row, reward=float(row % 2)) for row in range(8)]


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
    write(path, SALVAGE_RECORDS)
    return path


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def rows(path: Path) -> list[int]:
    return [entry.record.row_index for entry in replay(path)]


def test_every_line_is_json_and_states_its_digest(journal: Path) -> None:
    assert [entry.record for entry in replay(journal)] == SALVAGE_RECORDS
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
    write(path, SALVAGE_RECORDS)
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
    assert all(each in SALVAGE_RECORDS for each in kept)
    assert len(kept) >= len(SALVAGE_RECORDS) - 2


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


ROWS, ATTEMPTS, BLOCK = 4, 2, 3
MANY = [record(place % ROWS, place // ROWS % ATTEMPTS, reward=place / 7) for place in range(8)]


class Numbers(NamedTuple):
    """All that a resume takes from a journal."""

    metrics: dict[str, Any]
    spent: object
    progress: object
    items: list[tuple[int, int, int]]
    open_items: int


class Kept:
    """A journal, and what is beside it."""

    def __init__(self, directory: Path) -> None:
        self.run = RunDirectory(directory)
        self.last = b""

    def write(self, records: Sequence[TerminalRecord]) -> None:
        with self.run.events.open("ab") as journal:
            for each in records:
                line, self.last = sealed(each.to_line(), self.last)
                journal.write(line)

    def extend(self, *, block: int = BLOCK) -> JournalCheckpoint:
        """Add to the checkpoint as a session does; return what the next one finds."""
        records = len(self.run.events.read_bytes().splitlines())
        writer = CheckpointWriter(self.found(), self.run.events, every=block)
        writer.extend(records)
        assert writer.problem is None
        return self.found()

    def found(self) -> JournalCheckpoint:
        return JournalCheckpoint.of(self.run.checkpoint, self.run.events)

    def numbers(self, checkpoint: JournalCheckpoint | None = None) -> Numbers:
        """Go on with the run; without a checkpoint from the journal alone."""
        known = checkpoint or JournalCheckpoint(self.run.checkpoint)
        ledger = Ledger(ROWS, ATTEMPTS)
        log, redact = RunLog(self.run.log, Redactor([])), Redactor([])
        state = RunState(
            ledger=ledger,
            metrics=MetricsAccumulator(ROWS, ATTEMPTS, pass_threshold=0.5),
            spending=Spending(Budget(max_cost_usd=1e9), clock=lambda: 0.0),
            projector=Projector(self.run, ledger, log, redact),
            log=log,
            redact=redact,
            pass_threshold=0.5,
        )
        journal = Journal.open(self.run.events)
        try:
            state.replay(journal, known)
        finally:
            log.close()
        planned = Ledger(ROWS, ATTEMPTS)
        settle_recorded(planned, self.run.events, known)
        assert list(planned.recorded()) == list(ledger.recorded())
        return Numbers(
            state.summary().estimates.model_dump() | {"summary": state.summary().summary},
            (state.spending.counted, state.spending.exhausted()),
            state.progress(in_flight=None, elapsed_s=1.0),
            [*ledger.recorded(), *ledger.recorded("failed")],
            ledger.open_count,
        )


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


counts = st.none() | st.integers(0, 2**31 - 1)
numbers = st.none() | st.floats(-1e9, 1e9) | st.integers(-5, 5)
records = st.builds(
    record,
    st.integers(0, ROWS - 1),
    st.integers(0, ATTEMPTS - 1),
    status=st.sampled_from(["success", "failed", "skipped"]),
    reward=numbers,
    cost_usd=numbers,
    model_latency_ms=numbers,
    tokens=counts,
    prompt_tokens=counts,
    completion_tokens=counts,
    model_calls=counts,
    source_row_index=counts,
    lost_attempts=st.none() | st.integers(0, 4),
    judge_calls=st.none() | st.integers(0, 4),
    judge_tokens=counts,
    judge_cost_usd=numbers,
    boundary=st.none() | st.sampled_from(BOUNDARIES),
    error_type=st.none() | st.sampled_from(["timeout", "unknown", "é\n", "no_reward"]),
)


@given(
    sessions=st.lists(st.lists(records, max_size=9), min_size=1, max_size=3),
    block=st.integers(1, 5),
)
def test_from_a_checkpoint_come_the_numbers_of_the_whole_journal_however_it_is_split(
    sessions: list[list[TerminalRecord]], block: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        kept = Kept(Path(directory))
        for session in sessions:
            kept.write(session)
            checkpoint = kept.extend(block=block)
        written = sum(map(len, sessions))
        assert 0 <= written - checkpoint.records < block
        assert kept.numbers(checkpoint) == kept.numbers()


@given(cut=st.integers(0), place=st.integers(0), flip=st.integers(0, 255))
def test_a_checkpoint_that_is_cut_off_or_altered_anywhere_counts_nothing_wrong(
    cut: int, place: int, flip: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        kept = Kept(Path(directory))
        kept.write(MANY)
        whole = kept.extend().blocks
        content = bytearray(kept.run.checkpoint.read_bytes())
        content[place % len(content)] ^= flip
        kept.run.checkpoint.write_bytes(content[: cut % (len(content) + 1)])
        found = kept.found()
        assert found.blocks == whole[: len(found.blocks)]
        assert kept.numbers(found) == kept.numbers()
        assert kept.extend().blocks == whole


def cut_off(kept: Kept) -> None:
    kept.run.events.write_bytes(kept.run.events.read_bytes()[: kept.found().end - 1])


def put_another_journal(kept: Kept) -> None:
    kept.run.events.unlink()
    kept.last = b""
    kept.write([replace(each, reward=0.25) for each in MANY])


def take_out_a_block(kept: Kept) -> None:
    _, second = kept.found().blocks
    content, first = kept.run.checkpoint.read_bytes(), kept.found().blocks[0]
    table = content[second.table_at :]
    assert len(content[first.table_at :]) > len(table)
    kept.run.checkpoint.write_bytes(content[first.table_at + len(table) :])


def put_a_link(kept: Kept) -> None:
    aside = kept.run.checkpoint.rename(kept.run.path / "aside")
    kept.run.checkpoint.symlink_to(aside)


@pytest.mark.parametrize("change", [cut_off, put_another_journal, take_out_a_block, put_a_link])
def test_where_journal_and_checkpoint_do_not_fit_each_other_everything_is_read(
    kept: Kept, change: Any
) -> None:
    kept.write(MANY)
    kept.extend()
    change(kept)
    assert kept.found().blocks == ()
    assert kept.numbers(kept.found()) == kept.numbers()


def test_damage_to_the_journal_is_seen_as_without_a_checkpoint(kept: Kept) -> None:
    kept.write(MANY)
    kept.extend()
    content = kept.run.events.read_bytes()
    kept.run.events.write_bytes(content.replace(b'"tokens":7', b'"tokens":8', 1))
    with pytest.raises(JournalCorruptionError, match="damaged at line 1"):
        kept.numbers(kept.found())
    kept.run.events.write_bytes(content[:-20] + b"0" + content[-19:])
    with pytest.raises(JournalCorruptionError, match="damaged at line 8"):
        kept.numbers(kept.found())


_WHOLE: dict[str, Any] = {
    "row_index": 3, "run_index": 1, "rollout_id": "row-3-run-1", "status": "failed", "duration_ms": 5,
    "source_row_index": 0, "tokens": 4, "prompt_tokens": 1, "completion_tokens": 2, "reward": 0.5,
    "model_latency_ms": 2.5, "cost_usd": 1, "category": "timeout", "error_type": "x", "error": "e", "input": "i",
    "output": "o", "row_digest": "a" * 32, "boundary": "provider", "notes": "not asked for",
}  # fmt: skip
_ODD = [
    None, True, -1, 0, 2.5, 2**53 - 1, 2**53, 2**63, 2**64 - 1, "", "x", "success", "a/b", "..", [], {}, ["x"], {"a": 1},
]  # fmt: skip
_CONTENT_NOT_READ = ("row_digest", "boundary")


def told_of(read: Callable[[], Any]) -> Any:
    """Return what is read, or why it is refused."""
    try:
        return read()
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("name", NAMES)
def test_a_line_is_taken_or_refused_as_a_whole_record_is(name: str) -> None:
    others = {other: value for other, value in _WHOLE.items() if other != name}
    for line in [orjson.dumps(others), *(orjson.dumps(others | {name: odd}) for odd in _ODD)]:
        record = orjson.loads(line)
        if record.get(name) is None and name in record:
            continue  # a null says as much as no key, and nobody writes one
        if name in _CONTENT_NOT_READ and isinstance(record.get(name), str):
            assert dict(zip(NAMES, values_of(line), strict=True))[name] == record[name]
            continue
        whole = told_of(partial(TerminalRecord.from_line, line))
        if isinstance(whole, TerminalRecord):
            whole = tuple(getattr(whole, each) for each in NAMES)
        assert told_of(partial(values_of, line)) == whole


@pytest.mark.parametrize("line", [b"[]", b"{", b'{"row_index": NaN}', b'{"input": "\\ud800"}', b"\xff"])
def test_what_is_no_record_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        values_of(line)


def test_a_result_of_an_item_that_the_run_does_not_have_is_refused(kept: Kept) -> None:
    kept.write([record(0), record(ROWS), record(1)])
    with pytest.raises(JournalCorruptionError, match=f"a result of row {ROWS}, attempt 1"):
        kept.numbers(kept.extend())


def test_a_checkpoint_that_can_not_be_written_costs_the_run_nothing(kept: Kept) -> None:
    kept.write(MANY)
    kept.run.checkpoint.mkdir()
    writer = CheckpointWriter(kept.found(), kept.run.events, every=BLOCK)
    writer.extend(len(MANY))
    assert writer.problem is not None
    assert not writer.is_due(1000)
    assert kept.numbers(kept.found()) == kept.numbers()
