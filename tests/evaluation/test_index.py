"""The index of a run, read as what anybody may have written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.index import IndexEntry, read_index


def entry(row: int, run: int = 0, **changes: Any) -> bytes:
    known = {
        "row_index": row,
        "run_index": run,
        "rollout_id": f"{row:016x}{run:016x}",
        "status": "success",
        "duration_ms": 7,
    }
    return json.dumps({**known, **changes}).encode() + b"\n"


def test_entries_come_by_row_and_attempt_whatever_their_order_and_nulls_are_absent() -> None:
    lines = [
        entry(1, reward=0.5, tokens=3),
        entry(0, reward=None, error_type="x" * 100, status="failed", resumed=True),
    ]
    first, second = read_index(lines, rows=2, n=1)
    assert first == IndexEntry(
        row_index=0,
        run_index=0,
        rollout_id="0" * 32,
        status="failed",
        duration_ms=7,
        error_type="x" * 64,
        resumed=True,
    )
    assert (second.reward, second.tokens, second.trajectory_filename) == (0.5, 3, None)


def test_a_sample_whose_duration_nobody_noted_is_a_sample() -> None:
    (only,) = read_index([entry(0, duration_ms=None)], rows=1, n=1)
    assert only.duration_ms is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (entry(7), "line 2 is of row 7, attempt 1, and the run has 2 rows and 1 attempts on each"),
        (entry(1, run_index=1), "line 2 is of row 1, attempt 2"),
        (entry(0, rollout_id="f" * 32), "row 0, attempt 1 is there twice"),
        (entry(1, rollout_id="0" * 32), "two samples have the rollout id"),
        (entry(1, rollout_id="../../../etc"), "`rollout_id` cannot be"),
        (entry(1, status="perfect"), "`status` cannot be 'perfect'"),
        (entry(1, reward="1e9"), "`reward` cannot be '1e9'"),
        (entry(1, reward=True), "`reward` cannot be 'True'"),
        (entry(1, reward=float("nan")), "line 2 cannot be read"),
        (entry(1, duration_ms=-1), "`duration_ms` cannot be"),
        (entry(1, status=None), "it has no `status`"),
        (entry(1, tokens=2**40), "`tokens` cannot be"),
        (entry(1, trajectory_filename="../../x.json"), "`trajectory_filename` cannot be"),
        (entry(1, error_type="a\nb"), "`error_type` cannot be"),
        (entry(1)[:-9], "line 2 cannot be read"),
        (b"[]\n", "it is no JSON object"),
        (b" " * 70_000 + b"\n", "it is longer than 65536 bytes"),
    ],
)
def test_a_line_that_is_none_is_named(line: bytes, said: str) -> None:
    with pytest.raises(OsmosisError) as refused:
        read_index([entry(0), line], rows=2, n=1)
    assert refused.value.message.startswith("index.jsonl is not that of a complete run: ")
    assert said in refused.value.message


def test_samples_that_are_missing_are_counted_and_the_first_is_named() -> None:
    with pytest.raises(OsmosisError, match="3 of 4 samples are missing, the first is row 0, attempt 2"):
        read_index([entry(0)], rows=2, n=2)
