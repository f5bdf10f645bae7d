from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.evaluation import journal as journal_module
from osmosis_ai.evaluation.journal import (
    Journal,
    JournalCorruptionError,
    JournalReader,
    JournalWriteError,
    replay,
)
from osmosis_ai.evaluation.record import TerminalRecord
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
