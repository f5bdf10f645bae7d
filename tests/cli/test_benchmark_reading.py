"""`osmosis benchmark list`, `info`, `runs list`, `info`, `logs`, `stop` against replies written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.benchmark_replies import (
    AGENT,
    CONFIGURATION,
    DESCRIBED,
    ENTRY,
    LISTED,
    MINIMAL,
    NULLS,
    RUN,
    RUN_DETAIL,
    SHARED,
    TASK_SETS,
)
from tests.cli.maze import Maze, replies, sent

PROGRESS = {"completed": 30, "total": 80, "unit": "results"}
TIMES = {"created_at": "2026-10-02T07:00:00.000Z", "started_at": "2026-10-02T07:00:10.000Z"}
SETS = [
    TASK_SETS[0],
    {"name": "full", "task_count": 50, "recommended": False, "description": None},
]


# The catalogue


def test_scripts_get_every_key_of_every_benchmark(maze: Maze) -> None:
    maze.get("/benchmarks").respond(
        json={
            "benchmarks": [LISTED, MINIMAL, NULLS],
            "total_count": 3,
            "has_more": False,
            "next_offset": None,
        }
    )
    envelope = maze.osmosis("benchmark", "list", "--json").json
    full, minimal, nulls = envelope["items"]
    assert full == {
        **LISTED,
        "key": "acme/toy@3",
        "task_sets": SETS,
        "last_run_at": "2026-10-02T07:00:00.000Z",
    }
    assert minimal == {
        **dict.fromkeys(full),
        "id": "bm_2",
        "name": "Bare",
        "task_count": 0,
        "category_count": 0,
        "task_sets": [],
        "sync_status": "ready",
    }
    assert nulls == minimal
    assert {key: envelope[key] for key in ("total_count", *maze.resource)} == {
        "total_count": 3,
        **maze.resource,
    }


def test_a_benchmark_is_a_line_for_logs_and_a_row_for_people(maze: Maze) -> None:
    syncing = [{**MINIMAL, "sync_status": word} for word in ("pending", "syncing", "failed")]
    maze.get("/benchmarks").respond(json={"benchmarks": [LISTED, MINIMAL, *syncing]})
    assert maze.osmosis("benchmark", "list", "--plain").out == (
        "Toy Tasks\tacme/toy@3\t2026-10-02T07:00:00Z\t50\n"
        "Bare\t–\t–\t0\nBare\t–\tQueued\t0\nBare\t–\tSyncing\t0\nBare\t–\tFailed\t0\n"
    )
    rich = maze.osmosis("benchmark", "list").out
    assert all(word in rich for word in ("Name", "Key", "Last Run", "Tasks", "acme/toy@3"))


@pytest.mark.parametrize(
    ("words", "path", "key"),
    [
        ("benchmark list", "/benchmarks", "benchmarks"),
        ("benchmark runs list", "/benchmark-runs", "benchmark_runs"),
        ("dev server list", "/dev-rollout-server", "dev_rollout_servers"),
    ],
)
def test_an_empty_list_says_where_the_platform_has_nothing_of_the_kind(
    maze: Maze, words: str, path: str, key: str
) -> None:
    maze.get(path).respond(json={key: []}, headers={"X-Osmosis-Capabilities": "quickstart"})
    assert "does not support" in maze.osmosis(*words.split()).out
    assert maze.osmosis(*words.split(), "--json").json["items"] == []
    maze.get(path).respond(json={key: []})
    assert "does not support" not in maze.osmosis(*words.split()).out


def test_all_benchmarks_come_page_after_page_and_a_list_without_end_is_told(maze: Maze) -> None:
    first = {"benchmarks": [LISTED], "next_offset": 50}
    maze.get("/benchmarks").mock(side_effect=replies(first, {"benchmarks": [MINIMAL]}, first, first))
    assert len(maze.osmosis("benchmark", "list", "--all", "--json").json["items"]) == 2
    error = maze.osmosis("benchmark", "list", "--all", "--json").error
    assert error["code"] == "PLATFORM_ERROR" and "does not end" in error["message"]
    error = maze.osmosis("benchmark", "list", "--all", "--limit", "3", "--json").error
    assert error["message"] == "--all and --limit are mutually exclusive."


def describe(maze: Maze, benchmark: dict[str, Any], leaderboard: Any, *runs: dict[str, Any]) -> None:
    maze.get("/benchmarks/acme%2Ftoy%403").respond(json={"benchmark": benchmark, "leaderboard": leaderboard})
    maze.get("/benchmark-runs").respond(
        json={"benchmark_runs": runs, "total_count": 7, "has_more": True, "next_offset": 1}
    )


def test_a_benchmark_is_described_with_its_leaderboard_and_its_runs(maze: Maze) -> None:
    describe(maze, DESCRIBED, [ENTRY], RUN)
    data = maze.osmosis("benchmark", "info", "acme/toy@3", "--limit", "1", "--json").json["data"]
    params = maze.get("/benchmark-runs").calls.last.request.url.params
    assert dict(params) == {"limit": "1", "offset": "0", "benchmark": "bm_1"}
    assert data == {
        "benchmark": {**DESCRIBED, "key": "acme/toy@3", "task_sets": SETS},
        "leaderboard": [ENTRY],
        "runs": [{**RUN, **TIMES, "progress": PROGRESS}],
        "runs_total_count": 7,
        "runs_has_more": True,
        "runs_next_offset": 1,
        **maze.resource,
    }
    plain = maze.osmosis("benchmark", "info", "acme/toy@3", "--plain").out
    for line in (
        "Key: acme/toy@3",
        "Description: Small things to do.",
        "Tasks: 50 in 2 categories",
        "Task set parity: 40 tasks, recommended: as published",
        "Harness: terminus-2",
        "Judge: openai/gpt-5-mini, with a key of yours",
        "Unavailable: 1 tasks: no machine",
        "=1\tvendor/x\tterminus-2\tparity\t41.0 % (30.0 – 50.0 %)\tpass@4 62.5 %\t$0.12\t1m 2s\t12,346",
        "amber-otter-42\t[running]\t2\t41.0 %\t30 / 80\t2026-10-02T07:00:00Z\tMara",
        f"View: {SHARED['platform_url']}",
    ):
        assert line in plain.splitlines(), line
    rich = maze.osmosis("benchmark", "info", "acme/toy@3").out
    assert all(word in rich for word in ("Leaderboard", "Categories", "rename-it", "Runs", "Showing 1 of 7"))


HOSTILE = [
    {
        "rank": [],
        "model": {"a": 1},
        "pass_at_1": "half",
        "pass_at_k": [{"k": None}, 3],
        "cost_per_task": 1e999,
    },
    {"pass_at_1": {"value": True}, "pass_at_k": {}, "tokens_per_task": 10**400, "model": "\x1b[31mred"},
    "no object",
]


@pytest.mark.parametrize("leaderboard", [None, [], HOSTILE])
def test_a_minimal_benchmark_and_a_leaderboard_of_nonsense_are_shown_as_far_as_they_go(
    maze: Maze, leaderboard: Any
) -> None:
    import json

    body = json.dumps({"benchmark": MINIMAL, "leaderboard": leaderboard})
    maze.get("/benchmarks/toy").respond(content=body, headers={"Content-Type": "application/json"})
    maze.get("/benchmark-runs").respond(json={"benchmark_runs": []})
    for mode in ("--json", "--plain", None):
        outcome = maze.osmosis("benchmark", "info", "toy", *([mode] if mode else []))
        assert (outcome.status, outcome.err.count("Error")) == (0, 0)
        assert "\x1b[31m" not in outcome.out


def test_an_unknown_benchmark_gets_the_keys_that_were_perhaps_meant(maze: Maze) -> None:
    maze.get("/benchmarks").respond(json={"benchmarks": [LISTED]})
    maze.get("/benchmarks/acme%2Ftoy").respond(404, json={"error": "No such benchmark.", "code": "NOT_FOUND"})
    error = maze.osmosis("benchmark", "info", "acme/toy", "--json").error
    assert (error["code"], error["hint"]) == ("NOT_FOUND", "did you mean acme/toy@3?")


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ({"html": "<html><body>Sign in</body></html>"}, "Invalid JSON response from platform"),
        ({"json": {"items": []}}, "`benchmarks`: field required"),
        ({"json": {"benchmarks": {"a": 1}}}, "`benchmarks`: input should be a valid list"),
        ({"json": {"benchmarks": [{"name": "x"}]}}, "`benchmarks.0.id`: field required"),
        ({"json": []}, "Invalid JSON response from platform"),
    ],
)
def test_what_is_no_catalogue_is_one_clear_line(maze: Maze, reply: dict[str, Any], said: str) -> None:
    maze.get("/benchmarks").respond(**reply)
    outcome = maze.osmosis("benchmark", "list", "--json")
    assert outcome.status == 1 and outcome.error["code"] == "PLATFORM_ERROR"
    assert said in outcome.error["message"]


# Runs


def test_scripts_get_every_key_of_every_run_with_its_progress(maze: Maze) -> None:
    bare = {"id": "br_1", "benchmark_run_name": "old-name", "benchmark": {"id": "bm_1", "name": "Toy Tasks"}}
    maze.get("/benchmark-runs").respond(json={"benchmark_runs": [RUN, bare, {**dict.fromkeys(RUN), **bare}]})
    full, minimal, nulls = maze.osmosis("benchmark", "runs", "list", "--json").json["items"]
    assert full == {**RUN, **TIMES, "progress": PROGRESS}
    keys = [key for key in RUN if key != "platform_url"]
    named = {"id": "br_1", "name": "old-name", "benchmark_id": "bm_1", "benchmark_name": "Toy Tasks"}
    assert minimal == {**dict.fromkeys(keys), **named, "status": ""}
    assert nulls == minimal
    assert maze.osmosis("benchmark", "runs", "list", "--plain").out.splitlines()[0] == (
        "amber-otter-42\t[running]\tToy Tasks\t2\t41.0 %\t30 / 80\t2026-10-02T07:00:00Z\tMara"
    )


def test_a_run_is_described_agent_by_agent(maze: Maze) -> None:
    maze.get("/benchmark-runs/amber-otter-42").respond(json=RUN_DETAIL)
    data = maze.osmosis("benchmark", "runs", "info", "amber-otter-42", "--json").json["data"]
    assert data == {
        "benchmark_run": {**RUN, **TIMES},
        "configuration": CONFIGURATION,
        "agents": RUN_DETAIL["agents"],
        "progress": {"ingested": 30, "expected": 80},
        "totals": RUN_DETAIL["totals"],
        "agent_metrics": RUN_DETAIL["agent_metrics"],
        **maze.resource,
    }
    plain = maze.osmosis("benchmark", "runs", "info", "amber-otter-42", "--plain").out
    for line in (
        "ID: br_8",
        "Status: [running]",
        "Progress: 30 / 80 results",
        "Tasks: categories=files|nets",
        "Config: attempts_per_task=2",
        "Secrets: OPENAI_API_KEY (personal, overrides workspace), OTHER (workspace)",
        "0\tvendor/x\tterminus-2\t[running]\t1\t41.0 % (30.0 – 50.0 %)\tpass@2 50.0 %\t$1.50\t1m 2s\t12,345",
        "Input Tokens\t1,234,567",
        "Cost\t$3.25",
        "Stop with: osmosis benchmark runs stop amber-otter-42",
    ):
        assert line in plain.splitlines(), line
    assert "Totals" in maze.osmosis("benchmark", "runs", "info", "amber-otter-42").out


@pytest.mark.parametrize(
    "detail",
    [
        {"benchmark_run": {"id": "br_8"}},
        {**dict.fromkeys(RUN_DETAIL), "benchmark_run": {**dict.fromkeys(RUN), "id": "br_8"}},
        {"benchmark_run": {"id": "br_8"}, "agents": [dict.fromkeys(AGENT), {"id": [1], "aggregates": 3}, 7]},
    ],
)
def test_a_run_of_which_little_is_known_is_shown(maze: Maze, detail: dict[str, Any]) -> None:
    maze.get("/benchmark-runs/br_8").respond(json=detail)
    for mode in ("--json", "--plain", None):
        outcome = maze.osmosis("benchmark", "runs", "info", "br_8", *([mode] if mode else []))
        assert (outcome.status, outcome.err.count("Error")) == (0, 0), outcome.err


LINE = {
    "timestamp": "2026-10-02T07:00:00Z",
    "level": "info",
    "step": "run",
    "message": "task 1",
    "details": None,
}


def test_a_page_of_a_log_and_a_log_that_is_followed_to_its_end(maze: Maze) -> None:
    maze.get("/benchmark-runs/r/logs").respond(json={"logs": [LINE], "next_cursor": "c2"})
    envelope = maze.osmosis("benchmark", "runs", "logs", "r", "--limit", "1", "--json").json
    assert (envelope["items"], envelope["next_cursor"], envelope["has_more"]) == ([LINE], "c2", True)
    older = maze.osmosis("benchmark", "runs", "logs", "r").out
    assert "Older lines: osmosis benchmark runs logs r --cursor c2" in older

    maze.get("/benchmark-runs/r").respond(json=RUN_DETAIL)
    ended = {**RUN_DETAIL, "benchmark_run": {**RUN, "status": "failed"}}
    maze.get("/benchmark-runs/br_8").mock(side_effect=replies(RUN_DETAIL, ended))
    further = {**LINE, "message": "task 2"}
    maze.get("/benchmark-runs/br_8/logs").mock(
        side_effect=replies({"logs": [LINE]}, {"logs": [LINE, further]})
    )
    followed = maze.osmosis("benchmark", "runs", "logs", "r", "--follow", "--plain")
    assert [line.rpartition("\t")[2] for line in followed.out.splitlines()] == ["task 1", "task 2"]
    clash = maze.osmosis("benchmark", "runs", "logs", "r", "-f", "--cursor", "c", "--json").error
    assert clash["message"] == "--follow and --cursor are mutually exclusive."


def test_what_is_stopped_is_the_run_that_the_name_stands_for(maze: Maze) -> None:
    maze.get("/benchmark-runs/amber-otter-42").respond(json=RUN_DETAIL)
    stop = maze.post("/benchmark-runs/br_8/stop").respond(json={})
    refused = maze.osmosis("benchmark", "runs", "stop", "amber-otter-42", "--json").error
    assert (refused["code"], refused["details"]["prompt"]) == (
        "INTERACTIVE_REQUIRED",
        'Stop benchmark run "amber-otter-42"?',
    )
    assert not stop.called
    envelope = maze.osmosis("benchmark", "runs", "stop", "amber-otter-42", "--yes", "--json").json
    assert sent(stop) == {}
    assert envelope == {
        "schema_version": 1,
        "status": "success",
        "operation": "benchmark.stop",
        "message": 'Benchmark run "amber-otter-42" stopped.',
        "resource": {"id": "br_8", "name": "amber-otter-42", "status": "stopped", **maze.resource},
    }


def test_a_run_that_has_ended_is_left_as_it_is(maze: Maze) -> None:
    ended = {"benchmark_run": {**RUN, "status": "finished"}}
    maze.get("/benchmark-runs/br_8").respond(json=ended)
    outcome = maze.osmosis("benchmark", "runs", "stop", "br_8", "-y", "--json").json
    assert (outcome["status"], outcome["resource"]["status"]) == ("noop", "finished")


def test_the_shell_completes_keys_and_names(maze: Maze) -> None:
    from osmosis_ai.cli.completion import candidates

    maze.get("/benchmarks").respond(json={"benchmarks": [LISTED, MINIMAL]})
    maze.get("/benchmark-runs").respond(json={"benchmark_runs": [RUN]})
    assert [found.word for found in candidates(["benchmark", "info"], "ac")] == ["acme/toy@3"]
    assert [found.word for found in candidates(["benchmark", "runs", "stop"], "")] == ["amber-otter-42"]
