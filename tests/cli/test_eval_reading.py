"""`osmosis eval list`, `info` and `rollout list` against replies written by hand."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import stamina

from osmosis_ai.evaluation.headline import Headline
from osmosis_ai.evaluation.local_results import read_local_results
from osmosis_ai.services.datasets.cached import CachedDataset
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
from tests.cli.test_train_here import trained_here
from tests.evaluation.builders import record
from tests.evaluation.recorded_runs import write_run
from tests.workspace.builders import git


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
    monkeypatch.setattr("osmosis_ai.services.datasets.cached.fetch_dataset", lambda *_: fetched)
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


@pytest.mark.parametrize("missing", ["login", "origin"])
def test_without_an_origin_or_a_login_the_runs_of_this_machine_are_listed(
    maze: Maze, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    write_run(maze.workspace.evals_dir / "good", [[1.0], [0.0]])
    if missing == "login":
        monkeypatch.setenv("OSMOSIS_PLATFORM_URL", "https://elsewhere.example")
    else:
        git(maze.workspace.root, "remote", "remove", "origin")
    listed = maze.osmosis("eval", "list", "--json")
    assert listed.status == 0
    assert listed.json["items"] == []
    (run,) = listed.json["local_runs"]
    assert (run["name"], run["status"], run["avg_reward"]) == ("good", "finished", 0.5)
    assert run["headline"]["scored"] == 2
    shown = maze.osmosis("eval", "list")
    assert "good" in shown.out
    assert "Only the runs of this machine" in shown.err


def test_without_a_run_of_this_machine_a_list_says_why_no_platform_was_asked_and_what_makes_the_first(
    maze: Maze, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSMOSIS_PLATFORM_URL", "https://elsewhere.example")
    outcome = maze.osmosis("eval", "list", "--json")
    assert (outcome.status, outcome.error["code"]) == (1, "AUTH_REQUIRED")
    assert "osmosis template list" in outcome.error["hint"]
    (maze.workspace.root / "configs" / "eval" / "a b.toml").write_text("")
    (maze.workspace.root / "configs" / "eval" / "a b.decide.toml").write_text("")
    assert "osmosis eval run configs/eval/'a b.toml'" in maze.osmosis("eval", "list").err


@pytest.mark.parametrize("reply", [None, 500, 503, 404])
def test_where_the_platform_can_not_be_read_what_is_here_is_listed_and_the_error_told(
    maze: Maze, reply: int | None
) -> None:
    write_run(maze.workspace.evals_dir / "good", [[1.0], [0.0]])
    route = maze.get("/eval-runs")
    if reply is None:
        route.mock(side_effect=httpx.ConnectError("no route to host"))
    else:
        route.respond(reply, json={"error": "it is gone"})
    for mode in ((), ("--plain",)):
        outcome = maze.osmosis("eval", "list", *mode)
        assert outcome.status == 1 and "good" in outcome.out and "Error: " in outcome.err
    error = maze.osmosis("eval", "list", "--json").error
    (run,) = error["details"]["local_runs"]
    assert (run["name"], error["details"]["local_total_count"]) == ("good", 1)


def test_a_list_of_all_and_of_some_is_refused_though_nobody_is_logged_in(
    maze: Maze, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(maze.workspace.evals_dir / "good", [[1.0]])
    monkeypatch.setenv("OSMOSIS_PLATFORM_URL", "https://elsewhere.example")
    outcome = maze.osmosis("eval", "list", "--all", "--limit", "2")
    assert (outcome.status, outcome.out) == (1, "") and "mutually exclusive" in outcome.err


def test_a_run_that_was_put_aside_is_in_no_list_but_named_and_read_by_its_name(maze: Maze) -> None:
    archives = [f"good.archive-2026010{day}T000000Z" for day in range(1, 6)]
    for name in ("good", *archives):
        write_run(maze.workspace.evals_dir / name, [[1.0]])
    maze.get("/eval-runs").respond(json={"eval_runs": [], "total_count": 0})
    listed = maze.osmosis("eval", "list", "--json").json
    assert [run["name"] for run in listed["local_runs"]] == ["good"]
    assert sorted(listed["local_archived"]) == archives
    assert re.search(
        r"5 runs were put aside by --fresh: good\.archive-\w+, .* and 2 more",
        maze.osmosis("eval", "list").out,
    )
    for command in ("info", "show", "logs"):
        assert maze.osmosis("eval", command, archives[0], "--json").status == 0
    assert (
        maze.osmosis("eval", "info", "good.archive-20260103", "--json").json["data"]["local_run"]["name"]
        == archives[2]
    )


def test_runs_of_this_machine_stand_beside_those_of_the_platform(maze: Maze) -> None:
    write_run(maze.workspace.evals_dir / "good", [[1.0]])
    maze.get("/eval-runs").respond(json={"eval_runs": [ROW], "total_count": 1})
    listed = maze.osmosis("eval", "list", "--json").json
    assert [item["name"] for item in listed["items"]] == [ROW["name"]]
    assert [item["name"] for item in listed["local_runs"]] == ["good"]
    # Whoever cuts columns out of it gets what they always got.
    assert "good" not in maze.osmosis("eval", "list", "--plain").out


def test_a_copy_of_a_run_has_the_name_of_its_own_directory(maze: Maze, tmp_path: Path) -> None:
    evals = maze.workspace.evals_dir
    shutil.copytree(write_run(evals / "good", [[1.0, 0.0]]), evals / "copy")
    assert json.loads((evals / "copy" / "manifest.json").read_text())["run_name"] == "good"
    maze.get("/eval-runs").respond(json={"eval_runs": [], "total_count": 0})
    listed = maze.osmosis("eval", "list", "--json").json["local_runs"]
    assert sorted(each["name"] for each in listed) == ["copy", "good"]
    for named in ("copy", str(evals / "copy")):
        info = maze.osmosis("eval", "info", named, "--json").json["data"]
        assert info["local_run"]["name"] == "copy"
        assert maze.osmosis("eval", "show", named, "--json").json["data"]["run"] == "copy"
        gated = maze.osmosis("eval", "gate", named, "--min", "pass_rate=0", "--json").json
        assert gated["resource"]["run"]["name"] == "copy"
        assert maze.osmosis("eval", "watch", named, "--json").json["resource"]["run_name"] == "copy"
        export = ("eval", "export", named, "-o", str(tmp_path / "out.jsonl"), "--overwrite", "--json")
        assert maze.osmosis(*export).json["resource"]["run"] == "copy"
        assert json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])["run"] == "copy"


def test_a_run_of_this_machine_is_shown_with_the_numbers_of_its_journal_and_needs_no_platform(
    maze: Maze,
) -> None:
    directory = write_run(maze.workspace.evals_dir / "good", [[1.0, 0.0], [0.0, "agent"], [1.0, ""]])
    metrics = read_local_results(directory).metrics
    found = maze.osmosis("eval", "info", "goo", "--json")
    data = found.json["data"]
    assert found.status == 0
    assert data["metrics"] == metrics.to_json()
    assert data["headline"]["words"] == Headline.of(metrics.estimates).words
    assert data["local_run"]["status"] == "incomplete"
    assert data["local_run"]["output_path"] == str(directory)
    shown = maze.osmosis("eval", "info", "@last").out
    assert "40.0 %" in shown or "50.0 %" in shown
    assert "osmosis view" in shown


def test_a_run_is_asked_of_the_platform_when_this_machine_has_none_or_it_is_named_so(maze: Maze) -> None:
    write_run(maze.workspace.evals_dir / "good", [[1.0]])
    asked = maze.get("/eval-runs/good").respond(404, json={"error": "there is none"})
    assert maze.osmosis("eval", "info", "good").status == 0
    assert not asked.called
    assert maze.osmosis("eval", "info", "platform:good").status == 1
    assert asked.called
    maze.get("/eval-runs/nosuch").respond(404, json={"error": "there is none"})
    assert "neither on this machine nor on the platform" in maze.osmosis("eval", "info", "nosuch").err


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


@pytest.mark.parametrize("command", ["info", "show", "logs", "watch", "export"])
def test_of_a_misspelt_run_both_the_platform_s_and_this_machine_s_are_suggested(
    maze: Maze, command: str
) -> None:
    write_run(maze.workspace.evals_dir / "cobalt-fern", [[1.0]])
    said = {"error": "there is no such run; did you mean cobalt-island-21?", "suggestion": "cobalt-island-21"}
    maze.get("/eval-runs/cobalt-iland-21").respond(404, json=said)
    maze.get("/eval-runs/cobalt-iland-21/logs").respond(404, json=said)
    maze.get("/eval-runs").respond(json={"eval_runs": [{"id": "er_1", "name": "cobalt-island-21"}]})
    error = maze.osmosis("eval", command, "cobalt-iland-21", "--json").error
    assert "neither on this machine nor on the platform" in error["message"]
    assert error["hint"] == (
        "did you mean cobalt-island-21?; `osmosis eval list` lists the platform's; of the runs of this machine, "
        "did you mean cobalt-fern? the latest are: cobalt-fern"
    )


def test_a_run_of_this_machine_that_can_not_be_read_is_listed_and_says_why(maze: Maze) -> None:
    directory = write_run(maze.workspace.evals_dir / "good", [[1.0]])
    (directory / "events.jsonl").write_bytes(b"no record\n")
    maze.get("/eval-runs").respond(json={"eval_runs": [], "total_count": 0})
    assert "damaged at line 1" in maze.osmosis("eval", "list", "--json").json["local_runs"][0]["error"]
    data = maze.osmosis("eval", "info", "good", "--json").json["data"]
    assert [problem for problem in data["problems"] if "damaged at line 1" in problem]
    assert data["metrics"] == {"estimates": None}


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


def test_the_log_of_a_run_of_this_machine_is_shown_by_level_and_followed_to_its_end(maze: Maze) -> None:
    directory = write_run(maze.workspace.evals_dir / "good", [[1.0]])
    lines = [f"2026-10-02T07:00:{second:02}.000Z INFO [result] success {{}}" for second in range(50)]
    lines[3] = "2026-10-02T07:00:03.000Z WARNING [run] a server is late {}"
    lines[44] = "2026-10-02T07:00:44.000Z ERROR [run] a disk is full {}"
    (directory / "logs.txt").write_text("\n".join(lines) + "\n")
    page = maze.osmosis("eval", "logs", "good", "--level", "warning", "--limit", "5", "--json").json
    assert [item["message"] for item in page["items"]] == ["a server is late", "a disk is full"]
    followed = maze.osmosis("eval", "logs", "good", "--follow", "--level", "error", "--limit", "5", "--plain")
    assert followed.out.splitlines() == ["2026-10-02T07:00:44Z\tERROR\trun\ta disk is full"]
    newest = maze.osmosis("eval", "logs", "good", "--limit", "2", "--json").json
    older = maze.osmosis("eval", "logs", "good", "--cursor", newest["next_cursor"], "--json").json
    assert len(older["items"]) == 48
    assert maze.osmosis("eval", "logs", "good", "--cursor", "x").status == 1
    assert maze.osmosis("eval", "logs", "good", "--follow", "--cursor", "x").status == 1


@pytest.mark.parametrize("kind", ["eval", "train"])
def test_a_log_without_a_line_of_the_level_says_so_and_how_many_lines_it_has(maze: Maze, kind: str) -> None:
    logged = [f"2026-10-02T07:00:{second:02}.000Z INFO [step] all is well {{}}\n" for second in range(12)]
    if kind == "eval":
        place = write_run(maze.workspace.evals_dir / "good", [[1.0]])
    else:
        place = trained_here(maze.workspace.root / "walks")
    (place / "logs.txt").write_text("".join(logged))
    told = "No line of level error or above: 12 lines looked through."
    asked = (kind, "logs", str(place), "--level", "error", "--limit", "5")
    assert maze.osmosis(*asked).out.strip() == told
    followed = maze.osmosis(*asked, "--follow")
    assert (followed.out, followed.err.strip()) == ("", told)
    assert maze.osmosis(kind, "logs", str(place), "--level", "info", "--follow").err == ""
    (place / "logs.txt").write_text("")
    assert maze.osmosis(*asked).out.strip() == "Nothing here yet."


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


@pytest.mark.parametrize("file", ["manifest.json", "events.jsonl", "metrics.json", "logs.txt"])
@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_a_run_whose_file_is_none_is_refused_by_its_path_and_nothing_waits_for_it(
    maze: Maze, file: str, kind: str
) -> None:
    write_run(maze.workspace.evals_dir / "good", [[1.0]])
    path = write_run(maze.workspace.evals_dir / "odd", [[1.0]]) / file
    path.unlink(missing_ok=True)
    {"pipe": os.mkfifo, "folder": Path.mkdir, "link": lambda path: path.symlink_to("/dev/zero")}[kind](path)
    for command in ("info", "show", "logs", "watch", "export", "compare good"):
        outcome = maze.osmosis("eval", *command.split(), "odd")
        assert outcome.status == 1
        assert f"the run `odd` can not be read: `{path}` is no regular file" in outcome.err, command
    maze.get("/eval-runs").respond(json={"eval_runs": [], "total_count": 0})
    assert [run["name"] for run in maze.osmosis("eval", "list", "--json").json["local_runs"]] == ["good"]


def test_what_is_not_seen_in_the_names_of_a_run_is_shown_as_marks(maze: Maze) -> None:
    directory = write_run(maze.workspace.evals_dir / "good", [[1.0]])
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest["inputs"]["rollout"] = {"name": "\u202egood\u200b\x1b[31m\x9b"}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    maze.get("/eval-runs").respond(json={"eval_runs": [], "total_count": 0})
    maze.patch.setenv("COLUMNS", "200")
    for command in (("list",), ("info", "good", "--plain"), ("info", "good")):
        shown = maze.osmosis("eval", *command).out
        assert "‹U+202E›good‹U+200B›\\x1b[31m\\x9b" in shown


def test_conversations_of_a_damaged_run_are_shown_with_what_is_wrong_with_it(maze: Maze) -> None:
    directory = write_run(maze.workspace.evals_dir / "good", [[1.0], [0.0]])
    with (directory / "events.jsonl").open("ab") as journal:
        journal.write(b"\0\xff\n")
    shown = maze.osmosis("eval", "show", "good", "--plain")
    assert shown.status == 0 and "is damaged at line" in shown.out and "row 1, attempt 0:" in shown.out
    assert "is damaged at line" in maze.osmosis("eval", "show", "good", "--row", "7").err
    assert "is damaged at line" in maze.osmosis("eval", "show", "good", "--json").json["data"]["problems"][0]


def test_a_run_whose_journal_may_not_be_read_is_refused_and_written_into_no_report(
    maze: Maze, monkeypatch: pytest.MonkeyPatch
) -> None:
    from osmosis_ai.viewer.local import run_index

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    write_run(maze.workspace.evals_dir / "good", [[1.0], [0.0]])
    monkeypatch.setattr(run_index, "parsed_lines", refused)
    report = maze.workspace.root / "a.html"
    for words in (["eval", "show", "good"], ["view", "good", "--report", str(report)]):
        outcome = maze.osmosis(*words)
        assert (outcome.status, outcome.out) == (1, "")
        assert "can not be read (Permission denied)" in " ".join(outcome.err.split())
    assert not report.exists()


def test_a_directory_that_may_not_be_read_is_said_to_be_left_out_of_the_list(
    maze: Maze, monkeypatch: pytest.MonkeyPatch
) -> None:
    (maze.workspace.evals_dir / "closed").mkdir(parents=True)
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "closed" and allowed(path, mode))
    maze.get("/eval-runs").respond(json={"eval_runs": [], "total_count": 0})
    assert maze.osmosis("eval", "list", "--json").json["local_unreadable"] == ["closed"]
    assert "you may not read them: closed" in maze.osmosis("eval", "list").err


def test_latencies_say_over_how_many_and_which_attempts_they_are(maze: Maze) -> None:
    directory = write_run(maze.workspace.evals_dir / "good", [[1.0], [0.0]])
    lines = [record(0, model_latency_ms=57.0), record(1)]
    (directory / "events.jsonl").write_bytes(b"".join(line.to_line() for line in lines))
    shown = maze.osmosis("eval", "info", "good", "--plain").out
    assert "over 2 attempts that ended" in shown and "over 1 attempt that called the model" in shown
