"""The documented results file of an agent loop, its numbers, and the rows that it reads."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.evaluation.agent_loop.eval_run import (
    ClassicResults,
    rows_json,
    summarize_runs,
    write_results,
)
from osmosis_ai.evaluation.agent_loop.inputs import (
    REQUIRED_COLUMNS,
    DatasetReader,
    DatasetValidationError,
    dataset_row_to_request,
    loop_row,
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


def test_the_results_file_has_the_documented_keys_and_further_ones(tmp_path: Path) -> None:
    records = [
        record(0, 0, scores={"a:fn": 1.0}, tokens=3, cost_usd=0.5, finish_reason="stop"),
        record(0, 1, "failed", error="said\n“no”", tokens=2),
        record(2, 0, scores={}, unscored={"a:fn": "why"}),
    ]
    path, results = tmp_path / "out.json", results_of(tmp_path, table_of(tmp_path, records, rows=3, n=2))
    document = {"model": "m\ud83d", "summary": results.to_json(), "rows": rows_json(results.rows)}
    write_results(path, document)
    # A lone surrogate is written as its JSON escape.
    assert "\\ud83d" in path.read_text(encoding="utf-8")
    found = json.loads(path.read_bytes())
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
                    "error": "said\n“no”",
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


def test_the_agents_own_reward_is_summarized_over_the_runs_that_have_one(tmp_path: Path) -> None:
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


def test_duplicate_rows_of_a_run_count_as_one_in_its_intervals(tmp_path: Path) -> None:
    records = [
        record(row, 0, scores={"a:fn": row % 2}, row_digest=f"{row // 2 + 1:016x}" * 2) for row in range(8)
    ]
    estimate = results_of(tmp_path, table_of(tmp_path, records, 8, 1)).functions["a:fn"].estimate
    assert estimate is not None and (estimate.n, estimate.clusters) == (8, 4)


def test_the_latest_record_of_a_run_counts(tmp_path: Path) -> None:
    assert results_of(tmp_path, AttemptTable(1, 2)).rows == []
    lines = [record(0, 1), record(0, 0, "failed"), record(0, 0, scores={"a:fn": 1.0})]
    table = table_of(tmp_path, lines, 1, 2)
    (runs,) = results_of(tmp_path, table).rows
    assert [(each.run_index, each.status) for each in runs] == [(0, "success"), (1, "success")]


def test_documented_statistics_count_a_missing_score_as_zero_and_estimates_leave_it_out() -> None:
    found = summarize_scores([[1.0, None], [0.5, 0.5]], n_runs=2, pass_threshold=1.0)
    assert (found.mean, found.min, found.max) == (0.5, 0.0, 1.0)
    assert found.std == pytest.approx(0.125**0.5)  # the population's
    assert found.pass_at_k == {1: 0.25}  # 2 is no documented k
    asked = summarize_scores([[1.0, None], [0.5, 0.5]], n_runs=2, pass_threshold=1.0, ks=(2,))
    assert (asked.pass_at_k, asked.to_json()["pass_at_2"]) == ({1: 0.25, 2: 0.5}, 0.5)
    assert (found.scored, found.unscored) == (3, 1)
    assert found.estimate is not None
    assert (found.estimate.value, found.estimate.n) == (0.75, 3)  # every row weighs the same
    assert set(found.pass_at_k_estimates) == {1, 2}
    assert found.pass_at_k_estimates[1].value == 0.5


def test_a_missing_score_passes_no_threshold() -> None:
    found = summarize_scores([[None, None], [-1.0, -2.0]], n_runs=2, pass_threshold=-5.0)
    assert found.pass_at_k == {1: 0.5}
    assert found.pass_at_k_estimates[2].value == 1.0
    empty = summarize_scores([], n_runs=3, pass_threshold=1.0)
    assert (empty.mean, empty.std, empty.pass_at_k, empty.scored, empty.estimate) == (0.0, 0.0, {}, 0, None)
    assert pass_at_k(10, 7, 3) == pytest.approx(0.99167, abs=1e-5)
    assert pass_at_k(2, 1, 5) == 1


def test_one_run_per_row_has_no_documented_pass_at_k_but_a_pass_rate() -> None:
    found = summarize_scores([[1.0], [0.0]], n_runs=1, pass_threshold=1.0)
    assert found.pass_at_k == {}
    assert {k: estimate.value for k, estimate in found.pass_at_k_estimates.items()} == {1: 0.5}
    assert list(found.to_json())[:5] == ["mean", "std", "min", "max", "scored"]


def test_estimates_cover_documented_ks_powers_of_two_and_additional_ks() -> None:
    def ks(n: int, *further: int) -> list[int]:
        found = summarize_scores([[1.0] * n], n_runs=n, pass_threshold=1.0, ks=further)
        return list(found.pass_at_k_estimates)

    assert ks(10, 7, 99) == [1, 2, 3, 4, 5, 7, 8, 10]
    assert ks(1) == [1]


def question(number: int, **more: Any) -> dict[str, Any]:
    return {"system_prompt": "Be brief.", "user_prompt": f"{number}?", "ground_truth": str(number), **more}


def test_known_columns_are_found_in_any_case_and_ground_truth_is_optional(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ([1], "Row 7: Expected object, found an array."),
        ({"user_prompt": "u"}, "Row 7: Missing required columns: system_prompt (found: user_prompt)."),
        ({}, "Row 7: Missing required columns: user_prompt, system_prompt (found: none)."),
        (question(1, user_prompt=None), "Row 7: 'user_prompt' cannot be null."),
        (question(1, system_prompt=" \n"), "Row 7: 'system_prompt' cannot be empty."),
        (question(1, user_prompt=3), "Row 7: 'user_prompt' must be a string, found a number."),
        (question(1, ground_truth=[4]), "Row 7: 'ground_truth' must be a string, found an array."),
    ],
)
def test_an_invalid_row_is_rejected_with_its_index(record: object, words: str) -> None:
    with pytest.raises(DatasetValidationError) as caught:
        loop_row(record, 7)
    assert caught.value.message == words


def test_a_row_becomes_the_agents_request() -> None:
    row = question(3, Level=2)
    request = dataset_row_to_request(row, 5)
    assert request.rollout_id == "local-5"
    assert request.server_url == "http://local-rollout.local"
    assert request.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "3?"},
    ]
    assert request.metadata == {"ground_truth": "3", "row_index": 5, "Level": 2}
    assert (request.completion_params, request.max_turns, request.max_tokens_total) == ({}, 10, 4096)

    request = dataset_row_to_request(
        row,
        5,
        max_turns=2,
        max_tokens_total=9,
        completion_params={"temperature": 0.5},
        rollout_id="eval-5-run-1",
        metadata_overrides={"run_index": 1, "Level": 7},
    )
    assert request.rollout_id == "eval-5-run-1"
    assert request.metadata == {"ground_truth": "3", "row_index": 5, "Level": 7, "run_index": 1}
    assert (request.completion_params, request.max_turns) == ({"temperature": 0.5}, 2)


def test_a_row_too_large_for_a_request_is_rejected_with_its_index() -> None:
    row = {"system_prompt": "s", "user_prompt": "u", "blob": "x" * 1_100_000}
    with pytest.raises(DatasetValidationError, match=r"^Row 4: .*exceeds maximum of 1048576 bytes"):
        dataset_row_to_request(row, 4)
