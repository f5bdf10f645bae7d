"""Going on from a checkpoint gives what reading the whole journal gives, whatever was split, cut or changed."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.driving.classify import BOUNDARIES
from osmosis_ai.evaluation import journal_checkpoint
from osmosis_ai.evaluation.budget import Budget, Spending
from osmosis_ai.evaluation.journal import Journal, JournalCorruptionError
from osmosis_ai.evaluation.journal_chain import sealed
from osmosis_ai.evaluation.journal_checkpoint import CheckpointWriter, JournalCheckpoint
from osmosis_ai.evaluation.ledger import Ledger
from osmosis_ai.evaluation.metrics import MetricsAccumulator
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.run_log import RunLog
from osmosis_ai.evaluation.run_state import RunState, settle_recorded
from osmosis_ai.evaluation.trajectory_export import Projector
from osmosis_ai.redaction import Redactor
from tests.evaluation.builders import record

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


def test_only_what_is_behind_the_checkpoint_is_parsed(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.write(MANY)
    checkpoint = kept.extend()
    parsed = []
    read = TerminalRecord.from_line
    monkeypatch.setattr(TerminalRecord, "from_line", lambda line: (parsed.append(line), read(line))[1])
    settle_recorded(Ledger(ROWS, ATTEMPTS), kept.run.events, checkpoint)
    assert (checkpoint.records, len(parsed)) == (6, 2)


def test_a_record_of_which_nobody_was_told_is_in_no_checkpoint(kept: Kept) -> None:
    kept.write(MANY[:3])
    with kept.run.events.open("ab") as journal:
        journal.write(MANY[3].to_line()[:-1])
    assert kept.extend().records == 3
    assert kept.extend(block=4).records == 3


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


def test_a_checkpoint_of_another_schema_is_not_used_and_made_anew(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.write(MANY)
    monkeypatch.setattr(journal_checkpoint, "SCHEMA", "an older one")
    kept.extend()
    monkeypatch.undo()
    assert kept.found().blocks == ()
    assert kept.extend().records == 6


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
