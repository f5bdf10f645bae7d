"""Run directories of `osmosis eval run` with given outcomes."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec

from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.evaluation.local_results import read_local_results
from osmosis_ai.evaluation.manifest import Manifest, run_lock
from osmosis_ai.evaluation.run_directory import RunDirectory

Outcome = float | None | str
"""A reward; None for an attempt without one; a boundary for one that failed there; "" for one that is pending."""


def write_run(directory: Path, outcomes: Sequence[Sequence[Outcome]]) -> Path:
    """Write manifest and journal of a run with ``outcomes[row][attempt]``."""
    directory.mkdir(parents=True)
    inputs = {"dataset": {"selected_source_rows": f"0-{len(outcomes) - 1}"}, "n": len(outcomes[0])}
    Manifest(directory.name, inputs, {}).write(directory / "manifest.json")
    records = [
        record(row, attempt, outcome)
        for row, attempts in enumerate(outcomes)
        for attempt, outcome in enumerate(attempts)
        if outcome != ""
    ]
    (directory / "events.jsonl").write_bytes(journal_of(records))
    return directory


def in_use(directory: Path) -> AbstractContextManager[None]:
    """Hold the lock of a run like the process that executes it."""
    return run_lock(directory.parent, directory.name)


def write_results(directory: Path) -> None:
    """Write the result files of a run from its journal."""
    RunDirectory(directory).write_results({}, read_local_results(directory).metrics)


def journal_of(records: Iterable[TerminalRecord]) -> bytes:
    """Return journal lines of these records."""
    return b"".join(each.to_line() for each in records)


def with_crc(body: bytes) -> bytes:
    """Return the journal line of ``body``, a JSON object with its newline."""
    known = body.removesuffix(b"}\n")
    return b'%s,"crc":%d}\n' % (known, zlib.crc32(known))


def foreign_line(line: bytes) -> bytes:
    """Return a journal line like ``line``, of a row with other content."""
    return msgspec.structs.replace(TerminalRecord.from_line(line), row_digest="ab" * 32).to_line()


def append_records(events: Path, records: Iterable[TerminalRecord]) -> None:
    """Append records to a journal, which may not exist yet."""
    with events.open("ab") as journal:
        journal.write(journal_of(records))


def passing(rows: int, attempts: int, passes: int) -> list[list[Outcome]]:
    """Return outcomes with ``passes`` passes, spread over the rows."""
    total = rows * attempts
    hits = {(place * total) // passes for place in range(passes)} if passes else set()
    return [
        [1.0 if row * attempts + attempt in hits else 0.0 for attempt in range(attempts)]
        for row in range(rows)
    ]


def record(row: int, attempt: int, outcome: Outcome, **changes: Any) -> TerminalRecord:
    failed = isinstance(outcome, str)
    known = {
        "row_index": row,
        "run_index": attempt,
        "source_row_index": row,
        "rollout_id": f"row-{row}-run-{attempt}",
        "status": "failed" if failed else "success",
        "duration_ms": 10,
        "reward": None if isinstance(outcome, str) else outcome,
        "boundary": outcome if failed else None,
        "error_type": "error" if failed else None,
        "row_digest": f"{row + 1:016x}" * 2,
    }
    return TerminalRecord(**{**known, **changes})
