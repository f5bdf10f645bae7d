"""The results file of an agent loop, its statistics, and its dataset rows."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.evaluation.agent_loop.eval_run import ClassicResults, rows_json, summarize_runs, write_results
from osmosis_ai.evaluation.agent_loop.inputs import (
    REQUIRED_COLUMNS,
    DatasetReader,
    DatasetValidationError,
    dataset_row_to_request,
)
from osmosis_ai.evaluation.agent_loop.runner import pass_at_k, summarize_scores
from osmosis_ai.evaluation.journal import load_results
from osmosis_ai.evaluation.metrics import compute_metrics
from osmosis_ai.evaluation.results import AttemptTable
from osmosis_ai.evaluation.run_directory import RunDirectory
from tests.datasets.builders import write
from tests.evaluation.recorded_runs import journal_of


def record(row: int, run: int, status: Any = "success", **more: Any) -> TerminalRecord:
    return TerminalRecord(row, run, f"r-{row}-{run}", status, 10, source_row_index=row + 7, **more)


def table_of(run: Path, records: list[TerminalRecord], rows: int, n: int) -> AttemptTable:
    """Write the journal of a run and return its table."""
    directory, table = RunDirectory(run), AttemptTable(rows, n)
    directory.events.write_bytes(journal_of(records))
    load_results(directory.events, table)
    for each in records:
        if each.row_digest:
            table.set_row_digest(each.row_index, each.row_digest)
    return table


def results_of(run: Path, table: AttemptTable) -> ClassicResults:
    summary: Any = SimpleNamespace(
        run_dir=run,
        total_work_items=len(table),
        succeeded=table.count("success"),
        failed=table.count("failed"),
        duration_ms=5,
        metrics=compute_metrics(table),
    )
    return summarize_runs(summary, table, eval_fns=["a:fn"], pass_threshold=1.0)


def test_results_file(tmp_path: Path) -> None:
    assert results_of(tmp_path, AttemptTable(1, 2)).rows == []
    records = [
        record(0, 1, "failed", error="said\n“no”", tokens=2),
        record(0, 0, "failed"),  # a later result replaces it
        record(0, 0, scores={"a:fn": 1.0}, tokens=3, cost_usd=0.5, finish_reason="stop"),
        record(2, 0, scores={}, unscored={"a:fn": "why"}),
    ]
    path, results = tmp_path / "out.json", results_of(tmp_path, table_of(tmp_path, records, rows=3, n=2))
    document = {"model": "m\ud83d", "summary": results.to_json(), "rows": rows_json(results.rows)}
    write_results(path, document)
    # A lone surrogate is written as its JSON escape.
    assert "\\ud83d" in path.read_text(encoding="utf-8")
    found = json.loads(path.read_bytes())
    places = [(row["row_index"], [run["run_index"] for run in row["runs"]]) for row in found["rows"]]
    assert places == [(7, [0, 1]), (9, [0])]
    scored, failed, unscored = (run for row in found["rows"] for run in row["runs"])
    assert scored == {
        "run_index": 0,
        "success": True,
        "scores": {"a:fn": 1.0},
        "duration_ms": 10,
        "tokens": 3,
        "finish_reason": "stop",
        "cost_usd": 0.5,
    }
    assert (failed["success"], failed["scores"], failed["error"]) == (False, {}, "said\n“no”")
    assert (unscored["success"], unscored["tokens"], unscored["unscored"]) == (True, 0, {"a:fn": "why"})
    summary = found["summary"]
    assert (summary["total_rows"], summary["total_runs"], summary["pending_runs"]) == (2, 3, 3)
    assert (summary["total_tokens"], summary["cost_usd"], summary["total_duration_ms"]) == (5, 0.5, 5.0)


def test_agent_reward_summary(tmp_path: Path) -> None:
    records = [
        record(0, 0, scores={"a:fn": 0.0}),
        record(0, 1, scores={"a:fn": 0.0, "agent": 1.0}),
        record(1, 0, "failed", scores={"agent": 1.0}),
    ]
    results = results_of(tmp_path, table_of(tmp_path, records, 2, 2))
    agent = results.reward
    assert set(results.functions) == {"a:fn"} and agent is not None
    assert (agent.mean, agent.scored, agent.unscored) == (pytest.approx(1 / 3), 1, 2)
    assert agent.estimate is not None and (agent.estimate.value, agent.estimate.n) == (1.0, 1)


def test_duplicate_rows_count_once_in_intervals(tmp_path: Path) -> None:
    records = [
        record(row, 0, scores={"a:fn": row % 2}, row_digest=f"{row // 2 + 1:016x}" * 2) for row in range(8)
    ]
    estimate = results_of(tmp_path, table_of(tmp_path, records, 8, 1)).functions["a:fn"].estimate
    assert estimate is not None and (estimate.n, estimate.clusters) == (8, 4)


def test_missing_scores_count_as_zero_but_not_in_estimates() -> None:
    found = summarize_scores([[1.0, None], [0.5, 0.5]], n_runs=2, pass_threshold=1.0, ks=(2,))
    assert (found.mean, found.min, found.max) == (0.5, 0.0, 1.0)
    assert found.std == pytest.approx(0.125**0.5)  # of the population
    assert (found.pass_at_k, found.to_json()["pass_at_2"]) == ({1: 0.25, 2: 0.5}, 0.5)
    assert (found.scored, found.unscored) == (3, 1)
    assert found.estimate is not None
    assert (found.estimate.value, found.estimate.n) == (0.75, 3)  # every row weighs the same
    assert summarize_scores([], n_runs=3, pass_threshold=1.0).estimate is None


@pytest.mark.parametrize(
    ("n", "ks", "documented", "estimated"),
    [(10, (7, 99), [1, 3, 5, 7, 10], [1, 2, 3, 4, 5, 7, 8, 10]), (2, (), [1], [1, 2]), (1, (), [], [1])],
)
def test_values_of_k(n: int, ks: tuple[int, ...], documented: list[int], estimated: list[int]) -> None:
    found = summarize_scores([[1.0] * n], n_runs=n, pass_threshold=1.0, ks=ks)
    assert (list(found.pass_at_k), list(found.pass_at_k_estimates)) == (documented, estimated)
    assert pass_at_k(10, 7, 3) == pytest.approx(0.99167, abs=1e-5)
    assert pass_at_k(2, 1, 5) == 1


def question(number: int, **more: Any) -> dict[str, Any]:
    return {"system_prompt": "Be brief.", "user_prompt": f"{number}?", "ground_truth": str(number), **more}


def test_column_names_ignore_case(tmp_path: Path) -> None:
    lines = [
        '{"System_Prompt": "s", "USER_PROMPT": "u", "Ground_Truth": "g", "Answer": 1}',
        "",
        '{"system_prompt": "s", "user_prompt": "u"}',
        '{"system_prompt": "s", "user_prompt": "u", "ground_truth": null, "only_here": true}',
    ]
    rows = DatasetReader(write(tmp_path, "a.jsonl", "\n".join(lines))).read()
    assert rows == [
        {"system_prompt": "s", "user_prompt": "u", "ground_truth": "g", "Answer": 1},
        {"system_prompt": "s", "user_prompt": "u", "ground_truth": None},
        {"system_prompt": "s", "user_prompt": "u", "ground_truth": None, "only_here": True},
    ]
    assert set(REQUIRED_COLUMNS) == {"system_prompt", "user_prompt"}


def test_request_of_a_row() -> None:
    row = question(3, Level=2)
    request = dataset_row_to_request(row, 5)
    assert request.rollout_id == "local-5"
    assert request.server_url == "http://local-rollout.local"
    assert request.messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "3?"}]
    assert request.metadata == {"ground_truth": "3", "row_index": 5, "Level": 2}
    assert (request.completion_params, request.max_turns, request.max_tokens_total) == ({}, 10, 4096)

    request = dataset_row_to_request(row, 5, max_tokens_total=9, metadata_overrides={"Level": 7})
    assert (request.metadata["Level"], request.max_tokens_total) == (7, 9)


def test_row_larger_than_a_request() -> None:
    row = {"system_prompt": "s", "user_prompt": "u", "blob": "x" * 1_100_000}
    with pytest.raises(DatasetValidationError, match=r"^Row 4: .*exceeds maximum of 1048576 bytes"):
        dataset_row_to_request(row, 4)
