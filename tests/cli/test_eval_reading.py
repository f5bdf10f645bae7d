"""`osmosis eval list`, `info` and `rollout list` against replies written by hand."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import stamina

from osmosis_ai.services.datasets import CachedDataset
from tests.api.blob_server import BlobServer, serve
from tests.cli.eval_replies import (
    CONFIG,
    DETAIL,
    ESTIMATES,
    METRICS,
    METRICS_FILE,
    MINIMAL,
    NULLS,
    OWN,
    RESULTS,
    ROW,
    run,
)
from tests.cli.maze import Maze, replies
from tests.evaluation.builders import record
from tests.evaluation.recorded_runs import journal_of, write_run


@pytest.fixture
def store() -> Iterator[BlobServer]:
    with serve() as store:
        yield store


def offer_metrics_file(maze: Maze, store: BlobServer) -> None:
    store.blobs["m"] = METRICS_FILE
    maze.get("/eval-runs/er_8/samples/manifest").respond(
        json={"files": [{"path": "metrics.json", "size": len(METRICS_FILE)}], "totals": {}}
    )
    maze.post("/eval-runs/er_8/samples/download-urls").respond(
        json={"items": [{"path": "metrics.json", "url": store.signed("m")}]}
    )


# Lists


def test_scripts_get_every_key_of_every_run_with_a_summary(maze: Maze) -> None:
    maze.get("/eval-runs").respond(
        json={"eval_runs": [ROW, MINIMAL, NULLS], "total_count": 3, "has_more": False, "next_offset": None}
    )
    full, minimal, nulls = maze.osmosis("eval", "list", "--json").json["items"]
    assert full == {
        "id": "er_8",
        "name": "amber-otter-42",
        "status": "running",
        "created_at": "2026-10-02T07:00:00.000Z",
        "started_at": "2026-10-02T07:00:10.000Z",
        "completed_at": None,
        "model": "osmosis/tiny",
        "dataset": "maze-walks",
        "rollout": "maze",
        "creator_name": "Mara",
        "creator_email": "mara@fern.example",
        "results": RESULTS,
        "config": CONFIG,
        "platform_url": OWN["platform_url"],
        "summary": {
            "avg_reward": 0.5,
            "pass_rate": 0.5,
            "graded": 8,
            "passed": 4,
            "failed": 1,
            "skipped": 1,
            "progress": {"completed": 9, "total": 10, "unit": "samples"},
        },
        "headline": {
            "pass_rate": 0.5,
            "low": None,
            "high": None,
            "reward": None,
            "pass_threshold": 1.0,
            "scored": 8,
            "planned": 10,
            "pending": 1,
            "skipped": 1,
            "failed": 1,
            "failed_by_boundary": {},
            "rows": {"rows": 5, "total": 50, "kind": "first", "fraction": None, "seed": None},
            "warnings": [],
            "rule": "reward >= 1.0, scored samples only",
            "words": "pass rate 50.0 % (reward >= 1.0, scored samples only); scored 8 of 10 planned; "
            "failed 1; 1 skipped; 1 pending; 5 of 50 rows, the first",
            "brief": "50.0 % pass (reward >= 1.0), 8 of 10 planned scored, failed 1",
        },
        "rows": "5 of 50 rows, the first",
    }
    assert (minimal["summary"], minimal["model"], "results" in minimal) == ({}, None, False)
    assert {**nulls, "id": "er_1"} == minimal


def test_a_run_is_a_line_for_logs_and_a_row_for_people(maze: Maze) -> None:
    maze.get("/eval-runs").respond(json={"eval_runs": [ROW, {**MINIMAL, "name": None}]})
    assert maze.osmosis("eval", "list", "--plain").out == (
        "amber-otter-42\t[running]\tmaze\t50.0 % pass (reward >= 1.0), 8 of 10 planned scored, "
        "failed 1; 5 of 50 rows, the first\t0.500\t2026-10-02T07:00:00Z\tMara\n"
        "(unnamed)\t[pending]\t–\t–\t–\t2026-10-02T07:00:00Z\t–\n"
    )
    rich = maze.osmosis("eval", "list").out
    assert all(word in rich for word in ("Name", "Status", "Rollout", "Result", "Reward", "amber-otter-42"))


def test_the_reward_of_a_list_is_over_rows_as_the_pass_rate_beside_it(maze: Maze) -> None:
    results = {**ROW["results"], "headline": {"pass_rate": 0.25, "reward": 0.125, "scored": 8, "planned": 8}}
    maze.get("/eval-runs").respond(json={"eval_runs": [{**ROW, "results": results}]})
    assert "\t0.125\t" in maze.osmosis("eval", "list", "--plain").out
    (item,) = maze.osmosis("eval", "list", "--json").json["items"]
    assert (item["summary"]["avg_reward"], item["headline"]["reward"]) == (0.5, 0.125)


@pytest.mark.parametrize("mode", [(), ("--plain",)])
def test_a_log_has_lost_its_terminal_sequences_which_are_counted(maze: Maze, mode: tuple[str, ...]) -> None:
    line = {
        "timestamp": "2026-10-02T07:00:00Z",
        "level": "info",
        "message": "\x1b]8;;http://evil\x07a \x1b[31mlink",
    }
    maze.get("/eval-runs/amber-otter-42/logs").respond(json={"logs": [line], "next_cursor": None})
    shown = maze.osmosis("eval", "logs", "amber-otter-42", *mode).out
    # A table may break the line between any two words.
    words = [word for word in shown.split() if word != "│"]
    assert "a link (1 terminal sequence removed)" in " ".join(words) and "evil" not in shown
    told = maze.osmosis("eval", "logs", "amber-otter-42", "--json").json["items"][0]
    assert told["message"] == line["message"]


def test_a_line_of_a_platform_s_log_names_its_sample_as_one_of_this_machine_does(maze: Maze) -> None:
    failed = {"message": "failed: it broke", "details": {"row_index": 6, "run_index": 0, "boundary": "agent"}}
    odd = {"message": "failed: it is odd", "details": {"row_index": "6", "run_index": None}}
    maze.get("/eval-runs/amber-otter-42/logs").respond(json={"logs": [failed, odd], "next_cursor": None})
    first, second = maze.osmosis("eval", "logs", "amber-otter-42", "--plain").out.splitlines()
    assert first.endswith("\tfailed: it broke (row 6, attempt 0)") and second.endswith("\tfailed: it is odd")
    told = maze.osmosis("eval", "logs", "amber-otter-42", "--json").json["items"][0]
    assert told["message"] == failed["message"], "programs have it in the details"


def test_progress_never_shows_more_than_all(maze: Maze) -> None:
    results = {"total_runs": 12, "sampled_rows": 5, "score": float("nan")}
    text = json.dumps({"eval_runs": [{**MINIMAL, "results": results, "config": {"n": "two"}}]})
    maze.get("/eval-runs").respond(content=text, headers={"Content-Type": "application/json"})
    (item,) = maze.osmosis("eval", "list", "--json").json["items"]
    assert item["summary"] == {"progress": {"completed": 12, "total": 12, "unit": "samples"}}


ROLLOUT = {
    "id": "ro_2",
    "name": "maze",
    "description": "walks",
    "is_active": False,
    "last_synced_commit_sha": "4be1c0ffee4be1c0ffee",
    "last_synced_at": "2026-10-02T07:00:00Z",
    "repo_full_name": "fern/maze",
    "created_at": "2026-10-02T07:00:00Z",
}


def test_rollouts_are_listed_of_a_branch(maze: Maze) -> None:
    route = maze.get("/rollouts").respond(json={"rollouts": [ROLLOUT, {"id": "ro_1"}], "total_count": 2})
    envelope = maze.osmosis("rollout", "list", "--branch", "next", "--json").json
    assert route.calls.last.request.url.params["branch"] == "next"
    assert envelope["branch"] == "next" and envelope["git"] == maze.resource["git"]
    assert envelope["items"] == [
        {
            "id": "ro_2",
            "name": "maze",
            "is_active": False,
            "repo_full_name": "fern/maze",
            "last_synced_commit_sha": "4be1c0ffee4be1c0ffee",
            "created_at": "2026-10-02T07:00:00.000Z",
        },
        {
            "id": "ro_1",
            "name": None,
            "is_active": True,
            "repo_full_name": None,
            "last_synced_commit_sha": None,
            "created_at": None,
        },
    ]
    plain = maze.osmosis("rollout", "list", "--plain").out
    assert plain == "maze\tno\t4be1c0ff\t2026-10-02T07:00:00Z\n–\tyes\t–\t–\n"
    assert "branch" not in route.calls.last.request.url.params


def test_rollouts_that_may_be_out_of_date_are_listed_with_the_reason(maze: Maze) -> None:
    reason = "fern/maze cannot be fetched from https://git.example/maze.git: could not resolve host."
    maze.get("/rollouts").respond(json={"rollouts": [ROLLOUT], "total_count": 1, "sync_error": reason})
    listed = maze.osmosis("rollout", "list", "--json")
    assert listed.status == 0 and listed.json["sync_error"] == reason
    warning = json.loads(listed.err)["warning"]
    assert warning["code"] == "GIT_SYNC_FAILED" and reason in warning["message"]
    plain = maze.osmosis("rollout", "list", "--plain")
    assert plain.out.startswith("maze\t")
    assert plain.err.endswith(f"warning: the rollouts may be out of date: {reason}\n")


# One run


def test_a_run_in_full_for_scripts(maze: Maze) -> None:
    maze.get("/eval-runs/amber-otter-42").respond(json=DETAIL)
    maze.get("/eval-runs/er_8/metrics").respond(json={**METRICS, "estimates": ESTIMATES})
    data = maze.osmosis("eval", "info", "amber-otter-42", "--json").json["data"]
    assert set(data) == {
        *(
            "eval_run",
            "summary",
            "headline",
            "config",
            "results",
            "model",
            "dataset",
            "rollout",
            "entrypoint",
        ),
        *("commit_sha", "branch", "env_config", "resolved_secret_scopes", "dataset_df_stats", "metrics"),
        *("metrics_available", "metrics_error", "output_path", "save_warning", "git", "workspace_directory"),
    }
    assert data["summary"] == {
        "avg_reward": 0.5,
        "pass_rate": 0.5,
        "graded": 8,
        "passed": 4,
        "failed": 1,
        "skipped": 1,
        "progress": {"completed": 9, "total": 10, "unit": "samples"},
        "pass_threshold": 1.0,
        "total_tokens": 12345,
        "dataset_rows": 50,
        "resumed_count": 2,
    }
    assert (data["model"], data["dataset"], data["rollout"]) == ("osmosis/tiny", "maze-walks", "maze")
    assert data["metrics"] == {**METRICS, "estimates": ESTIMATES}
    assert (data["metrics_available"], data["output_path"], data["save_warning"]) == (True, None, None)


def test_a_run_in_full_for_people_with_its_numbers_and_their_denominators(
    maze: Maze, store: BlobServer
) -> None:
    maze.get("/eval-runs/amber-otter-42").respond(json=DETAIL)
    maze.get("/eval-runs/er_8/metrics").respond(json={**METRICS, "estimates": ESTIMATES})
    offer_metrics_file(maze, store)
    plain = maze.osmosis("eval", "info", "amber-otter-42", "--plain").out.splitlines()
    assert plain[:17] == [
        "Name: amber-otter-42",
        "ID: er_8",
        "Status: [running]",
        "Progress: 9 / 10 samples",
        "Duration: 1m 2s",
        "Rows: 5 of 50 rows, the first",
        "Scored: 8 of 10 planned",
        "Failed: 1: 1 agent",
        "Pass Rate: 50.0 % (30.0 – 70.0 %) (reward >= 1.0, scored samples only)",
        "Tokens Used: 12,345",
        "Submitted: 2026-10-02T07:00:00Z",
        "Submitted By: Mara",
        "Started: 2026-10-02T07:00:10Z",
        "Completed: –",
        "Dataset: maze-walks",
        "Model: osmosis/tiny",
        "Rollout: maze",
    ]
    assert "Config: limit=5, n=2, seed=7, zeta=1" in plain
    assert "Commit: 4be1c0f" in plain
    assert "Secrets: OTHER (workspace), SEARCH_KEY (personal, overrides workspace)" in plain
    assert "Environment Variables: LOG_LEVEL=INFO" in plain
    assert (
        "Pass rate (reward >= 1.0, scored samples only)\t50.0 %\t30.0 – 70.0 %\t8 samples of 5 rows"
    ) in plain
    assert "Scored\t8 of 10 planned" in plain
    assert "Unscored\t1: 1 exception" in plain
    assert "Stop with: osmosis eval stop amber-otter-42" in plain
    assert not store.seen

    rich = maze.osmosis("eval", "info", "amber-otter-42")
    saved = maze.workspace.evals_dir / "amber-otter-42" / "metrics.json"
    assert saved.read_bytes() == METRICS_FILE
    assert str(saved) in rich.out
    assert (maze.workspace.state_dir / ".gitignore").exists()


def test_a_run_is_shown_by_the_values_of_a_column(
    maze: Maze, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dataset = tmp_path / "walks.jsonl"
    dataset.write_text("".join(f'{{"user_prompt": "{n}", "size": "{n % 2}"}}\n' for n in range(5)))
    fetched = CachedDataset(dataset, "d" * 64, "cache")
    monkeypatch.setattr("osmosis_ai.services.datasets.fetch_dataset", lambda *_: fetched)
    offering = {"headers": {"X-Osmosis-Capabilities": "eval-samples"}}
    maze.get("/eval-runs/amber-otter-42").respond(
        json={**run("finished"), "dataset_sha256": "d" * 64}, **offering
    )
    maze.get("/eval-runs/er_8/metrics").respond(json=METRICS, **offering)
    samples = [
        {"row": row, "attempt": 0, "status": "success", "source_row_index": row, "reward": float(row > 1)}
        for row in range(5)
    ]
    maze.get("/eval-runs/er_8/samples").respond(json={"samples": samples}, **offering)
    data = maze.osmosis("eval", "info", "amber-otter-42", "--slice", "size", "--json").json["data"]
    assert [(each["value"], each["rows"], each["pass_rate"]["value"]) for each in data["slices"]] == [
        ("0", 3, pytest.approx(2 / 3)),
        ("1", 2, 0.5),
    ]
    shown = maze.osmosis("eval", "info", "amber-otter-42", "--slice", "size", "--plain").out
    assert "By size:\n\tRows\tSamples\tPass rate" in shown and "\n1\t2\t2\t50.0 %" in shown


def test_a_hosted_run_can_not_be_sliced(maze: Maze) -> None:
    maze.get("/eval-runs/amber-otter-42").respond(json=run("finished"))
    maze.get("/eval-runs/er_8/metrics").respond(json=METRICS)
    refused = maze.osmosis("eval", "info", "amber-otter-42", "--slice", "size", "--json")
    assert refused.status == 1 and "does not tell the attempts" in refused.error["message"]


def test_numbers_of_a_newer_release_are_shown_as_far_as_they_are_known_here(maze: Maze) -> None:
    newer = json.loads(json.dumps(ESTIMATES))
    newer["spread"] = newer["counts"]["paused"] = newer["pass_rate"]["posterior"] = 1
    newer["limited_by"] = {"most": "the_moon", "the_moon": 1.0}
    maze.get("/eval-runs/x").respond(json=DETAIL)
    maze.get("/eval-runs/er_8/metrics").respond(json={**METRICS, "estimates": newer})
    plain = maze.osmosis("eval", "info", "x", "--plain").out
    assert "Pass Rate: 50.0 % (30.0 – 70.0 %) (reward >= 1.0, scored samples only)" in plain
    assert "Unscored\t1: 1 exception" in plain and "Held back by" not in plain


def test_a_grader_that_raised_is_not_called_an_agent_beside_the_boundary_where_it_failed(maze: Maze) -> None:
    raised = json.loads(json.dumps(ESTIMATES))
    raised["counts"] |= {"unscored": {"agent_error": 4, "no_reward": 1}, "failed_by_boundary": {"grader": 4}}
    maze.get("/eval-runs/x").respond(json=DETAIL)
    maze.get("/eval-runs/er_8/metrics").respond(json={**METRICS, "estimates": raised})
    plain = maze.osmosis("eval", "info", "x", "--plain").out
    assert "Unscored\t5: 4 exception, 1 no_reward\nFailed, by boundary\t4: 4 grader\n" in plain


def test_a_hosted_run_without_intervals_shows_what_there_is(maze: Maze) -> None:
    maze.get("/eval-runs/x").respond(json=run("failed", error="The model was rejected: no such model."))
    maze.get("/eval-runs/er_8/metrics").respond(json={**METRICS, "estimates": {"of": "another version"}})
    plain = maze.osmosis("eval", "info", "x", "--plain").out
    assert "Error: The model was rejected: no such model." in plain
    assert "Scored: 8 of 10 planned" in plain and "Failed: 1\n" in plain
    assert "Pass Rate: 50.0 % (reward >= 1.0, scored samples only)" in plain
    assert "Samples: 8 graded, 4 passed, 1 failed, 1 skipped" in plain
    assert "Reward: mean 0.500 · std 0.500 · min 0.000 · median 0.500 · max 1.000" in plain
    assert "pass@2: 60.0 %" in plain
    assert "See logs with: osmosis eval logs amber-otter-42" in plain


@pytest.mark.parametrize(
    "detail",
    [
        {"eval_run": {"id": "er_1"}},
        {**dict.fromkeys(DETAIL), "eval_run": {**dict.fromkeys(OWN), "id": "er_1"}},
    ],
)
def test_what_a_platform_leaves_out_breaks_nothing(maze: Maze, detail: dict[str, Any]) -> None:
    maze.get("/eval-runs/x").respond(json=detail)
    maze.get("/eval-runs/er_1/metrics").respond(json={})
    maze.get("/eval-runs/er_1/samples/manifest").respond(json={"files": []})
    data = maze.osmosis("eval", "info", "x", "--json").json["data"]
    assert (data["summary"], data["model"], data["eval_run"]["id"]) == ({}, None, "er_1")
    out = maze.osmosis("eval", "info", "x", "--plain").out
    assert out.startswith("Name: (unnamed)\nStatus: –\n") and "under way" not in out
    assert "keeps no metrics.json" in maze.osmosis("eval", "info", "x").err


def test_a_pending_run_has_no_metrics_and_none_are_asked_for(maze: Maze) -> None:
    maze.get("/eval-runs/x").respond(json=run("pending"))
    data = maze.osmosis("eval", "info", "x", "--json").json["data"]
    assert (data["metrics"], data["metrics_available"]) == (None, False)
    assert "Progress: Waiting to start..." in maze.osmosis("eval", "info", "x", "--plain").out


def test_a_run_that_no_worker_can_take_says_why_it_waits(maze: Maze) -> None:
    why = "no known worker of the pool 'gpu' has the label `a100`."
    maze.get("/eval-runs/x").respond(json={**run("pending"), "waits": why})
    assert f"Waits: {why}" in maze.osmosis("eval", "info", "x", "--plain").out
    assert maze.osmosis("eval", "info", "x", "--json").json["data"]["waits"] == why


def test_why_a_run_is_not_begun_is_said_once_and_what_held_it_back_still(maze: Maze) -> None:
    why = "required, and not possible, so no run is executed: no user namespaces"
    waiting = {**run("pending"), "isolation": why, "waits": f"isolation: {why}"}
    maze.get("/eval-runs/x").side_effect = replies(waiting, {**run("pending"), "isolation": "bubblewrap"})
    plain = maze.osmosis("eval", "info", "x", "--plain").out
    assert plain.count(why) == 1 and f"Waits: isolation: {why}\n" in plain
    assert "Isolation: bubblewrap\n" in maze.osmosis("eval", "info", "x", "--plain").out


def test_a_run_that_was_put_aside_says_what_it_waits_for(maze: Maze) -> None:
    why = "its worker has let it go: it waits for another one of the pool 'gpu'."
    maze.get("/eval-runs/x").respond(json={**run("running"), "waits": why})
    maze.get("/eval-runs/er_8/metrics").respond(404, json={"error": "none yet"})
    plain = maze.osmosis("eval", "info", "x", "--plain").out
    assert "Status: [running]" in plain and f"Waits: {why}" in plain
    row = {"id": "er_8", "name": "x", "status": "running"}
    listed = maze.get("/eval-runs")
    listed.respond(json={"eval_runs": [row], "total_count": 1})
    assert "waits" not in maze.osmosis("eval", "list", "--json").json["items"][0]
    listed.respond(json={"eval_runs": [{**row, "waits": why}], "total_count": 1})
    assert maze.osmosis("eval", "list", "--json").json["items"][0]["waits"] == why
    assert why in maze.osmosis("eval", "list", "--plain").out


def test_metrics_that_cannot_be_had_or_saved_are_a_warning(maze: Maze, store: BlobServer) -> None:
    maze.get("/eval-runs/x").respond(json=DETAIL)
    metrics = maze.get("/eval-runs/er_8/metrics").respond(500, json={"error": "broken"})
    data = maze.osmosis("eval", "info", "x", "--json").json["data"]
    assert (data["metrics_available"], data["metrics_error"]) == (False, "broken")
    metrics.respond(json=METRICS)
    maze.get("/eval-runs/er_8/samples/manifest").respond(404, json={"error": "no route"})
    outcome = maze.osmosis("eval", "info", "x", "-o", "here", "--json")
    assert outcome.status == 0
    assert "The metrics could not be saved" in outcome.json["data"]["save_warning"]


def test_a_repeated_call_says_nothing_on_stdout_where_structlog_is_installed(
    maze: Maze, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Printing:
        def warning(self, event: str, **_: Any) -> None:
            print(event)

    structlog = ModuleType("structlog")
    monkeypatch.setattr(structlog, "get_logger", lambda *_: Printing(), raising=False)
    monkeypatch.setitem(sys.modules, "structlog", structlog)
    stamina.instrumentation.set_on_retry_hooks(None)
    maze.get("/eval-runs").side_effect = [httpx.Response(503), *replies({"eval_runs": [], "total_count": 0})]
    outcome = maze.osmosis("eval", "list", "--json")
    assert (outcome.status, outcome.json["items"]) == (0, [])


@pytest.mark.parametrize("name", ["n" * 255, "é" * 255], ids=["ascii", "wide"])
@pytest.mark.parametrize("place", ["", "platform:"])
@pytest.mark.parametrize("command", ["info", "show", "logs"])
def test_a_run_of_the_platform_whose_name_no_file_can_have_is_asked_of_it(
    maze: Maze, command: str, place: str, name: str
) -> None:
    write_run(maze.workspace.evals_dir / "good", [[1.0]])
    below = "/logs" if command == "logs" else ""
    asked = maze.get(f"/eval-runs/{quote(name)}{below}").respond(
        404, json={"error": "it was deleted just now"}
    )
    maze.get("/eval-runs").respond(json={"eval_runs": [], "total_count": 0})
    outcome = maze.osmosis("eval", command, place + name)
    assert outcome.status == 1 and asked.called
    assert "Traceback" not in outcome.err and "no run can be called" not in outcome.err
    assert ("neither on this machine nor on the platform" in outcome.err) is (place == "")


def test_of_a_level_that_the_newest_lines_do_not_have_one_is_told_how_to_go_on(maze: Maze) -> None:
    levels = ("INFO", None, "NOTICE", "odd")
    quiet = {"logs": [{"level": level, "message": f"m-{level}"} for level in levels], "next_cursor": "c"}
    maze.get("/eval-runs/b/logs").respond(json=quiet)
    out = " ".join(maze.osmosis("eval", "logs", "b", "--level", "warning").out.split())
    assert "Older lines: osmosis eval logs b --level warning --cursor c" in out and "Nothing here" not in out


@pytest.mark.parametrize(
    ("level", "least"), [("FATAL", "error"), ("err", "error"), ("warn", "warning"), ("notice", "info")]
)
def test_a_level_by_another_word_counts_as_what_it_means(maze: Maze, level: str, least: str) -> None:
    maze.get("/eval-runs/b/logs").respond(json={"logs": [{"level": level, "message": "the disk is full"}]})
    page = maze.osmosis("eval", "logs", "b", "--level", least, "--json").json
    assert [item["level"] for item in page["items"]] == [level]


def test_a_log_of_a_platform_without_a_line_of_the_level_says_so(maze: Maze) -> None:
    lines = [{"level": "info", "message": f"line {place}"} for place in range(3)]
    maze.get("/eval-runs/b/logs").respond(json={"logs": lines, "next_cursor": None})
    told = maze.osmosis("eval", "logs", "b", "--level", "warning").out.strip()
    assert told == "No line of level warning or above: 3 lines looked through."


def test_a_list_of_runs_does_not_wrap_in_a_terminal_of_120_columns(
    maze: Maze, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    maze.get("/eval-runs").respond(json={"eval_runs": [ROW], "total_count": 1})
    lines = maze.osmosis("eval", "list").out.splitlines()
    assert len(lines) == 5 and "50.0 % pass, 8 of 10 scored, 1 failed" in lines[3]


def test_latencies_say_over_how_many_and_which_attempts_they_are(maze: Maze) -> None:
    directory = write_run(maze.workspace.evals_dir / "good", [[1.0], [0.0]])
    lines = [record(0, model_latency_ms=57.0), record(1)]
    (directory / "events.jsonl").write_bytes(journal_of(lines))
    shown = maze.osmosis("eval", "info", "good", "--plain").out
    assert "over 2 attempts that ended" in shown and "over 1 attempt that called the model" in shown
