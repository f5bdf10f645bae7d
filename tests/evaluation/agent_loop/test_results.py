"""The documented results file and its numbers, from records as a journal holds them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.agent_loop.results import (
    ClassicSettings,
    RecordedRuns,
    ResultsFile,
    summarize_runs,
)
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.evaluation.run_directory import RunDirectory
from tests.evaluation.recorded_runs import journal_of


def record(row: int, run: int, status: Any = "success", **more: Any) -> TerminalRecord:
    return TerminalRecord(row, run, f"r-{row}-{run}", status, 10, source_row_index=row + 7, **more)


def settings(rows: int, n: int) -> ClassicSettings:
    return ClassicSettings(rows, n, 1.0, ["a:fn"])


def written(tmp_path: Path, records: list[TerminalRecord], rows: int, n: int) -> tuple[str, Any]:
    path = tmp_path / "out.json"
    summary = summarize_runs(records, settings(rows, n)).to_json(5.0)
    ResultsFile(path, {"model": "m"}).write(summary, records)
    text = path.read_text(encoding="utf-8")
    return text, json.loads(text)


def test_the_file_is_written_row_by_row_as_if_at_once(tmp_path: Path) -> None:
    records = [
        record(0, 0, scores={"a:fn": 1.0}, tokens=3, cost_usd=0.5, finish_reason="stop"),
        record(0, 1, "failed", error="said \ud83d\n“no”", tokens=2),
        record(2, 0, scores={}, unscored={"a:fn": "why"}),
    ]
    text, found = written(tmp_path, records, rows=3, n=2)
    # Half a character is kept as the escape that JSON has for it.
    assert text == json.dumps(found, indent=2, ensure_ascii=False).replace("\ud83d", "\\ud83d") + "\n"
    assert found["rows"] == [
        {
            "row_index": 7,
            "runs": [
                {
                    "run_index": 0,
                    "success": True,
                    "scores": {"a:fn": 1.0},
                    "duration_ms": 10,
                    "tokens": 3,
                    "finish_reason": "stop",
                    "cost_usd": 0.5,
                },
                {
                    "run_index": 1,
                    "success": False,
                    "scores": {},
                    "duration_ms": 10,
                    "tokens": 2,
                    "error": "said \ud83d\n“no”",
                },
            ],
        },
        {
            "row_index": 9,
            "runs": [
                {
                    "run_index": 0,
                    "success": True,
                    "scores": {},
                    "duration_ms": 10,
                    "tokens": 0,
                    "unscored": {"a:fn": "why"},
                }
            ],
        },
    ]
    summary = found["summary"]
    assert (summary["total_rows"], summary["total_runs"], summary["pending_runs"]) == (2, 3, 3)
    assert (summary["total_tokens"], summary["cost_usd"], summary["total_duration_ms"]) == (5, 0.5, 5.0)


def test_a_run_of_nothing_is_an_empty_file_of_the_same_shape(tmp_path: Path) -> None:
    text, found = written(tmp_path, [], rows=1, n=1)
    assert text == json.dumps(found, indent=2) + "\n"
    assert (found["rows"], found["summary"]["total_runs"]) == ([], 0)


def test_an_agent_that_rewards_itself_now_and_then_has_a_score_in_those_runs_alone() -> None:
    records = [
        record(0, 0, scores={"a:fn": 0.0}),
        record(0, 1, scores={"a:fn": 0.0, "agent": 1.0}),
        record(1, 0, "failed", scores={"agent": 1.0}),
    ]
    results = summarize_runs(records, settings(2, 2))
    agent = results.reward
    assert set(results.functions) == {"a:fn"} and agent is not None
    assert (agent.mean, agent.scored, agent.unscored) == (pytest.approx(1 / 3), 1, 2)
    assert agent.estimate is not None and (agent.estimate.value, agent.estimate.n) == (1.0, 1)


def test_rows_that_are_copies_count_as_one_row_in_an_interval() -> None:
    records = [
        record(row, 0, scores={"a:fn": row % 2}, row_digest=f"{row // 2 + 1:016x}" * 2) for row in range(8)
    ]
    estimate = summarize_runs(records, settings(8, 1)).functions["a:fn"].estimate
    assert estimate is not None and (estimate.n, estimate.clusters) == (8, 4)


def test_the_latest_record_of_a_run_counts_and_what_is_no_part_of_the_run_does_not(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    assert list(RecordedRuns(directory, settings(1, 2))) == []
    lines = [record(0, 1), record(0, 0, "failed"), record(3, 0), record(0, 0, scores={"a:fn": 1.0})]
    directory.events.write_bytes(journal_of(lines))
    runs = RecordedRuns(directory, settings(1, 2))
    for _ in range(2):
        assert [(each.run_index, each.status) for each in runs] == [(0, "success"), (1, "success")]


def test_a_place_that_cannot_be_written_is_found_without_touching_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "new" / "out.json"
    ResultsFile(path).check()
    assert list(path.parent.iterdir()) == []
    path.write_text("kept")
    ResultsFile(path).check()
    assert path.read_text() == "kept"

    (tmp_path / "file").write_text("")
    for bad in (tmp_path, tmp_path / "file" / "out.json"):
        with pytest.raises(OsmosisError, match="cannot be written"):
            ResultsFile(bad).check()


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        ResultsFile(path).check()
        ResultsFile(path).write({}, [])
        assert json.loads(os.read(reader, 1000)) == {"config": {}, "summary": {}, "rows": []}
    finally:
        os.close(reader)
    assert path.is_fifo()
