"""`osmosis eval list`, `info`, `logs`, `stop`, `watch` and `rollout list` against replies written by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.blob_server import BlobServer, serve
from tests.cli.maze import Maze, open_maze, replies, sent
from tests.logins import REFUSALS

RESULTS: dict[str, Any] = {
    "score": 0.5,
    "pass_rate": 0.5,
    "pass_threshold": 1.0,
    "graded": 8,
    "passed": 4,
    "failed": 1,
    "skipped": 1,
    "total_runs": 9,
    "sampled_rows": 5,
    "total_tokens": 12345,
    "total_dataset_rows": 50,
    "resumed_count": 2,
    "reward_stats": {
        "mean": 0.5,
        "std": 0.5,
        "min": 0.0,
        "median": 0.5,
        "max": 1.0,
        "pass_at_k": {"1": 0.4, "2": 0.6},
    },
}
OWN: dict[str, Any] = {
    "id": "er_8",
    "name": "amber-otter-42",
    "status": "running",
    "created_at": "2026-10-02T07:00:00Z",
    "started_at": "2026-10-02T07:00:10Z",
    "completed_at": None,
    "creator_name": "Mara",
    "creator_email": "mara@fern.example",
    "platform_url": "https://osmosis.fern.example/fern-lab/evals/er_8",
}
CONFIG = {"model_path": "osmosis/tiny", "n": 2, "limit": 5, "zeta": 1, "seed": 7}
ROW: dict[str, Any] = {
    **OWN,
    "model": {"id": None, "name": "osmosis/tiny"},
    "dataset": {"id": "ds_31", "name": "maze-walks"},
    "rollout": {"id": "ro_2", "name": "maze"},
    "results": RESULTS,
    "config": CONFIG,
}
MINIMAL = {"id": "er_1", "name": "b", "status": "pending", "created_at": "2026-10-02T07:00:00Z"}
NULLS = {**dict.fromkeys(ROW), **MINIMAL, "id": "er_2"}
DETAIL: dict[str, Any] = {
    "eval_run": OWN,
    "config": CONFIG,
    "results": RESULTS,
    "dataset": {"id": "ds_31", "name": "maze-walks"},
    "rollout": {"id": "ro_2", "name": "maze"},
    "entrypoint": "main.py",
    "branch": None,
    "commit_sha": "4be1c0ffee4be1c0ffee",
    "env_config": {"LOG_LEVEL": "INFO"},
    "resolved_secret_scopes": {"SEARCH_KEY": "user_override", "OTHER": "workspace"},
    "dataset_df_stats": {"rows": 50},
    "is_internal_user": True,
}
METRICS: dict[str, Any] = {
    "status": "running",
    "overview": {
        "duration_ms": 61500,
        "total_samples": 9,
        "completed_samples": 8,
        "graded": 8,
        "passed": 4,
        "failed": 1,
        "skipped": 1,
        "pass_rate": 0.5,
        "pass_threshold": 1.0,
        "tokens_used": 12345,
    },
    "reward_stats": {"mean": 0.5, "median": 0.5, "std": 0.5, "min": 0.0, "max": 1.0},
    "pass_at_k": [{"k": 1, "value": 0.4}, {"k": 2, "value": 0.6}],
    "eval_run_id": "er_8",
}
ESTIMATE = {
    "value": 0.5,
    "stderr": 0.1,
    "low": 0.3,
    "high": 0.7,
    "n": 8,
    "clusters": 5,
    "method": "student-t",
}
ESTIMATES: dict[str, Any] = {
    "pass_threshold": 1.0,
    "reward": ESTIMATE,
    "pass_rate": ESTIMATE,
    "pass_at_k": {"2": {**ESTIMATE, "value": 0.6}},
    "counts": {
        "planned": 10,
        "scored": 8,
        "unscored": {"agent_error": 1},
        "failed_by_boundary": {"agent": 1},
        "infrastructure_failures": 0,
        "skipped": 1,
        "pending": 0,
    },
    "tokens": {"prompt": 10000, "completion": 2345, "total": 12345, "per_sample": 1371.6, "known_samples": 9},
    "cost_usd": {"total": None, "known_samples": 0, "recorded_samples": 9},
    "latency": {"rollout_ms": None, "model_ms": None, "model_call_mean_ms": None},
}
METRICS_FILE = b'{"eval_run": {}, "summary": {}}\n'


@pytest.fixture
def store() -> Iterator[BlobServer]:
    with serve() as store:
        yield store


@pytest.fixture
def maze(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Maze]:
    with open_maze(tmp_path, monkeypatch, capsys) as maze:
        yield maze


def run(status: str, **more: Any) -> dict[str, Any]:
    """A detail with another status."""
    return {**DETAIL, "eval_run": {**OWN, "status": status, **more}}


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
    }
    assert (minimal["summary"], minimal["model"], "results" in minimal) == ({}, None, False)
    assert {**nulls, "id": "er_1"} == minimal


def test_a_run_is_a_line_for_logs_and_a_row_for_people(maze: Maze) -> None:
    maze.get("/eval-runs").respond(json={"eval_runs": [ROW, {**MINIMAL, "name": None}]})
    assert maze.osmosis("eval", "list", "--plain").out == (
        "amber-otter-42\t[running]\tmaze\t0.500\t2026-10-02 7:00 AM UTC\tMara\n"
        "(unnamed)\t[pending]\t–\t–\t2026-10-02 7:00 AM UTC\t–\n"
    )
    rich = maze.osmosis("eval", "list").out
    assert all(
        word in rich for word in ("Name", "Status", "Rollout", "Reward", "Submitted By", "amber-otter-42")
    )


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
    assert plain == "maze\tno\t4be1c0ff\t2026-10-02 7:00 AM UTC\n–\tyes\t–\t–\n"
    assert "branch" not in route.calls.last.request.url.params


# One run


def test_a_run_in_full_for_scripts(maze: Maze) -> None:
    maze.get("/eval-runs/amber-otter-42").respond(json=DETAIL)
    maze.get("/eval-runs/er_8/metrics").respond(json={**METRICS, "estimates": ESTIMATES})
    data = maze.osmosis("eval", "info", "amber-otter-42", "--json").json["data"]
    assert set(data) == {
        *("eval_run", "summary", "config", "results", "model", "dataset", "rollout", "entrypoint"),
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
    assert plain[:14] == [
        "Name: amber-otter-42",
        "ID: er_8",
        "Status: [running]",
        "Progress: 9 / 10 samples",
        "Duration: 1m 2s",
        "Pass Rate: 50.0 %",
        "Tokens Used: 12,345",
        "Submitted: 2026-10-02 7:00:00 AM UTC",
        "Submitted By: Mara",
        "Started: 2026-10-02 7:00:10 AM UTC",
        "Completed: –",
        "Dataset: maze-walks",
        "Model: osmosis/tiny",
        "Rollout: maze",
    ]
    assert "Config: limit=5, n=2, seed=7, zeta=1" in plain
    assert "Commit: 4be1c0f" in plain
    assert "Secrets: OTHER (workspace), SEARCH_KEY (personal, overrides workspace)" in plain
    assert "Environment Variables: LOG_LEVEL=INFO" in plain
    assert "Pass rate (reward ≥ 1)\t50.0 %\t30.0 – 70.0 %\t4 of 8 scored samples" in plain
    assert "Unscored\t1: 1 agent_error" in plain
    assert "Stop with: osmosis eval stop amber-otter-42" in plain
    assert not store.seen

    rich = maze.osmosis("eval", "info", "amber-otter-42")
    saved = maze.workspace.evals_dir / "amber-otter-42" / "metrics.json"
    assert saved.read_bytes() == METRICS_FILE
    assert str(saved) in rich.out
    assert (maze.workspace.state_dir / ".gitignore").exists()


def test_a_hosted_run_without_intervals_shows_what_there_is(maze: Maze) -> None:
    maze.get("/eval-runs/x").respond(json=run("failed", error="The model was rejected: no such model."))
    maze.get("/eval-runs/er_8/metrics").respond(json={**METRICS, "estimates": {"of": "another version"}})
    plain = maze.osmosis("eval", "info", "x", "--plain").out
    assert "Error: The model was rejected: no such model." in plain
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
    assert maze.osmosis("eval", "info", "x", "--plain").out.startswith("Name: (unnamed)\nStatus: []\n")
    assert "keeps no metrics.json" in maze.osmosis("eval", "info", "x").err


def test_a_pending_run_has_no_metrics_and_none_are_asked_for(maze: Maze) -> None:
    maze.get("/eval-runs/x").respond(json=run("pending"))
    data = maze.osmosis("eval", "info", "x", "--json").json["data"]
    assert (data["metrics"], data["metrics_available"]) == (None, False)
    assert "Progress: Waiting to start..." in maze.osmosis("eval", "info", "x", "--plain").out


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


# Logs


def line(number: int) -> dict[str, Any]:
    return {
        "timestamp": f"2026-10-02T07:00:{number:02}Z",
        "level": "info",
        "step": "run",
        "message": f"line {number}",
        "details": None,
    }


def test_following_gives_every_line_once_and_ends_with_the_run(maze: Maze) -> None:
    maze.get("/eval-runs/amber").side_effect = replies(run("running"))
    maze.get("/eval-runs/er_8").side_effect = replies(
        run("running"), run("running"), run("running"), run("finished")
    )
    lines = [line(number) for number in range(9)]
    logs = maze.get("/eval-runs/er_8/logs")
    logs.side_effect = replies(
        {"logs": lines[1:3], "next_cursor": "c"},
        {"logs": lines[1:3], "next_cursor": "c"},
        {"logs": lines[2:5], "next_cursor": "c"},
        # More came than fits on a page: the follower goes back until it knows where it is.
        {"logs": lines[7:9], "next_cursor": "c7"},
        {"logs": lines[4:7], "next_cursor": "c4"},
    )
    outcome = maze.osmosis("eval", "logs", "amber", "--follow", "--limit", "2", "--json")
    assert (outcome.status, outcome.err) == (0, "")
    assert [json.loads(text) for text in outcome.out.splitlines()] == lines[1:]
    assert logs.calls[0].request.url.params["limit"] == "2"
    assert logs.calls[-1].request.url.params["cursor"] == "c7"


def test_a_followed_log_is_plain_lines_for_logs_and_coloured_ones_for_people(maze: Maze) -> None:
    maze.router.get(url__regex=".*/eval-runs/[^/]+$").respond(json=run("finished"))
    maze.get("/eval-runs/er_8/logs").respond(json={"logs": [{**line(1), "message": "[bold]a\tb"}]})
    plain = maze.osmosis("eval", "logs", "amber", "--follow", "--plain").out
    assert plain == "2026-10-02 7:00:01 AM UTC\tinfo\trun\t[bold]a b\n"
    assert (
        maze.osmosis("eval", "logs", "amber", "-f").out == "2026-10-02 7:00:01 AM UTC  info  run  [bold]a b\n"
    )


def test_a_page_of_a_runs_log(maze: Maze) -> None:
    maze.get("/eval-runs/amber/logs").respond(json={"logs": [line(1)], "next_cursor": None})
    envelope = maze.osmosis("eval", "logs", "amber", "--json").json
    assert (envelope["items"], envelope["next_cursor"], envelope["has_more"]) == ([line(1)], None, False)
    assert (
        maze.osmosis("eval", "logs", "amber", "-f", "--cursor", "x", "--json").error["code"] == "VALIDATION"
    )


# Stop


def test_stopping_asks_first(maze: Maze) -> None:
    route = maze.post("/eval-runs/amber%2Fotter/stop").respond(json={"id": "er_8", "status": "stopping"})
    error = maze.osmosis("eval", "stop", "amber/otter", "--json").error
    assert error["details"]["prompt"] == 'Stop evaluation run "amber/otter"?'
    assert not route.called
    envelope = maze.osmosis("eval", "stop", "amber/otter", "--yes", "--json").json
    assert (envelope["operation"], envelope["status"]) == ("eval.stop", "success")
    assert envelope["message"] == 'Evaluation run "amber/otter" stopped.'
    assert envelope["resource"] == {"name": "amber/otter", **maze.resource}
    assert sent(route) == {}


@pytest.mark.parametrize(
    "reply", [httpx.Response(204), httpx.Response(200, json={}), httpx.Response(200, json={"status": None})]
)
def test_any_success_of_a_stop_is_one(maze: Maze, reply: httpx.Response) -> None:
    maze.post("/eval-runs/x/stop").mock(return_value=reply)
    assert maze.osmosis("eval", "stop", "x", "--yes", "--json").json["status"] == "success"


def test_stopping_a_run_that_has_ended_changes_nothing(maze: Maze) -> None:
    maze.post("/eval-runs/x/stop").respond(json={"id": "er_8", "status": "finished"})
    outcome = maze.osmosis("eval", "stop", "x", "--yes", "--json")
    assert (outcome.status, outcome.json["status"]) == (0, "noop")
    assert outcome.json["message"] == 'Evaluation run "x" had ended before: finished.'
    maze.post("/eval-runs/x/stop").respond(409, json={"error": "the run has finished"})
    assert maze.osmosis("eval", "stop", "x", "--yes", "--json").error["code"] == "CONFLICT"


# Watch


def progress(completed: int, **more: Any) -> dict[str, Any]:
    return {**run("running"), "results": {**RESULTS, "total_runs": completed}, **more}


def test_watching_a_run_of_the_platform_ends_with_its_numbers(maze: Maze) -> None:
    maze.get("/eval-runs/amber").side_effect = replies(run("pending"))
    maze.get("/eval-runs/er_8").side_effect = replies(
        progress(0), progress(5), run("finished", completed_at="2026-10-02T07:02:00Z"), run("finished")
    )
    maze.get("/eval-runs/er_8/metrics").respond(json={**METRICS, "estimates": ESTIMATES})
    maze.get("/eval-runs/amber").mock(side_effect=[*replies(run("pending")), *replies(run("finished")) * 9])
    outcome = maze.osmosis("eval", "watch", "amber", "--plain")
    assert outcome.status == 0, outcome.err
    assert "Waiting for the run to start" in outcome.err
    assert "amber-otter-42: 5/10 samples (50%)" in outcome.err
    assert outcome.out.startswith("Evaluation run finished: amber-otter-42\n")
    assert "4 of 8 scored samples" in outcome.out


@pytest.mark.parametrize("status", ["failed", "stopped"])
def test_a_run_that_does_not_finish_is_partial(maze: Maze, status: str) -> None:
    maze.router.get(url__regex=".*/eval-runs/[^/]+$").respond(
        json=run(status, error="The model was rejected.")
    )
    maze.get("/eval-runs/er_8/metrics").respond(json={})
    outcome = maze.osmosis("eval", "watch", "amber", "--json")
    assert (outcome.status, outcome.json["status"]) == (1, "partial")
    assert outcome.json["message"] == f"Evaluation run {status}: amber-otter-42. The model was rejected."
    assert (outcome.json["resource"]["status"], outcome.json["resource"]["id"]) == (status, "er_8")


def test_a_platform_that_is_away_for_a_while_is_waited_for(maze: Maze) -> None:
    away = httpx.Response(503, json={"error": "starting"})
    maze.router.get(url__regex=".*/eval-runs/[^/]+$").side_effect = [
        *replies(progress(1)),
        *[away] * 6,
        httpx.ConnectError("refused"),
        *[away] * 2,
        *replies(run("finished"), run("finished")),
    ]
    maze.get("/eval-runs/er_8/metrics").respond(json=METRICS)
    outcome = maze.osmosis("eval", "watch", "amber", "--plain")
    assert outcome.status == 0, outcome.err
    assert outcome.err.count("waiting for the platform to come back") == 1


def test_ctrl_c_stops_watching_and_says_that_the_run_goes_on(maze: Maze) -> None:
    def interrupt(_request: httpx.Request) -> httpx.Response:
        raise KeyboardInterrupt

    maze.get("/eval-runs/amber").mock(side_effect=interrupt)
    outcome = maze.osmosis("eval", "watch", "amber", "--plain")
    assert outcome.status == 130
    assert "The run goes on; follow it again with: osmosis eval watch amber" in outcome.err


def test_a_run_that_is_nowhere_is_named_as_such(maze: Maze, monkeypatch: pytest.MonkeyPatch) -> None:
    maze.get("/eval-runs/amber").respond(404, json={"error": "there is no run 'amber'"})
    error = maze.osmosis("eval", "watch", "amber", "--json").error
    assert (error["code"], "neither on this machine nor on the platform" in error["message"]) == (
        "NOT_FOUND",
        True,
    )
    monkeypatch.setenv("OSMOSIS_PLATFORM_URL", "https://nobody.is.logged.in.example")
    offline = maze.osmosis("eval", "watch", "amber", "--plain")
    assert "there is no run `amber` in" in offline.err and "once you are logged in" in offline.err


@pytest.mark.parametrize(
    "arguments", [("list",), ("info", "x"), ("logs", "x"), ("logs", "x", "-f"), ("download", "x")]
)
@pytest.mark.parametrize("reply, code", REFUSALS)
def test_a_platform_that_is_not_well_is_told_by_its_code(
    maze: Maze, arguments: tuple[str, ...], reply: dict[str, Any], code: str
) -> None:
    maze.router.get(url__regex=".*/api/cli/.*").respond(**reply)
    outcome = maze.osmosis("eval", *arguments, "--json")
    assert (outcome.status, outcome.error["code"]) == (1, code)
