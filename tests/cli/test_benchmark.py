"""`osmosis benchmark` against replies written by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tomli_w

from tests.api.blob_server import BlobServer, serve
from tests.cli.benchmark_replies import (
    AGENT,
    CONFIG_TEXT,
    CONFIGURATION,
    DESCRIBED,
    ENTRY,
    LISTED,
    MINIMAL,
    NULLS,
    RUN,
    RUN_DETAIL,
    SUBMITTED,
    TASK_SETS,
)
from tests.cli.eval_submits import store_secrets
from tests.cli.maze import Maze, replies, sent

try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib

PROGRESS = {"completed": 30, "total": 80, "unit": "results"}
TIMES = {"created_at": "2026-10-02T07:00:00.000Z", "started_at": "2026-10-02T07:00:10.000Z"}
SETS = [
    TASK_SETS[0],
    {"name": "full", "task_count": 50, "recommended": False, "description": None},
]


# The catalog


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
        "Default harness: terminus-2",
        "1\tvendor/x\tterminus-2\tparity\t41.0 % (30.0 – 50.0 %)\t0.12",
        "amber-otter-42\t[running]\tToy Tasks\t2\t41.0 %\t30 / 80\t2026-10-02T07:00:00Z\tMara",
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
        "Status: running",
        "0\tvendor/x\tterminus-2\trunning\t41.0 % (30.0 – 50.0 %)\t1",
        "Passed: 12",
    ):
        assert line in plain.splitlines(), line


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


def test_a_page_of_a_log_names_the_cursor_of_older_lines(maze: Maze) -> None:
    maze.get("/benchmark-runs/r/logs").respond(json={"logs": [LINE], "next_cursor": "c2"})
    envelope = maze.osmosis("benchmark", "runs", "logs", "r", "--limit", "1", "--json").json
    assert (envelope["items"], envelope["next_cursor"], envelope["has_more"]) == ([LINE], "c2", True)
    older = maze.osmosis("benchmark", "runs", "logs", "r").out
    assert "Older lines: osmosis benchmark runs logs r --cursor c2" in older


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


# Downloads

FILES = {
    "summary.csv": b"agent,pass_at_1\n",
    "results.csv": b"task,passed\n",
    "artifacts/res_1/logs/agent.txt": b"hello\n",
    "logs.txt": b"line\n",
}


@pytest.fixture
def store() -> Iterator[BlobServer]:
    with serve() as store:
        store.blobs.update(FILES)
        yield store


def offer(maze: Maze, store: BlobServer, *paths: str, status: str = "running") -> None:
    def sign(request: httpx.Request) -> httpx.Response:
        items = json.loads(request.content)["items"]
        return httpx.Response(
            200, json={"items": [{**item, "url": store.signed(item["path"])} for item in items]}
        )

    listed = [{"path": path, "size": len(FILES.get(path, b""))} for path in paths]
    maze.get("/benchmark-runs/amber-otter-42").respond(json={"benchmark_run": {**RUN, "status": status}})
    maze.get("/benchmark-runs/br_8/outputs/manifest").respond(json={"files": listed, "totals": {"files": 2}})
    maze.post("/benchmark-runs/br_8/outputs/download-urls").mock(side_effect=sign)


def download(maze: Maze, *arguments: str) -> Any:
    return maze.osmosis("benchmark", "runs", "download", "amber-otter-42", *arguments)


def test_summary_and_results_are_the_default(maze: Maze, store: BlobServer) -> None:
    offer(maze, store, "summary.csv", "results.csv")
    outcome = download(maze, "--json")
    assert (outcome.status, outcome.err) == (0, "")
    types = maze.get("/benchmark-runs/br_8/outputs/manifest").calls.last.request.url.params
    assert dict(types) == {"types": "summary,results"}
    directory = maze.workspace.root / ".osmosis" / "benchmarks" / "amber-otter-42"
    total = len(FILES["summary.csv"]) + len(FILES["results.csv"])
    assert (outcome.json["operation"], outcome.json["status"]) == ("benchmark.download", "success")
    assert outcome.json["resource"] == {
        "benchmark_run": {"id": "br_8", "name": "amber-otter-42"},
        "status": "running",
        "selected_types": ["summary", "results"],
        "files_downloaded": 2,
        "files_skipped": 0,
        "files_failed": [],
        "bytes_downloaded": total,
        "total_files": 2,
        "total_bytes": total,
        "breakdown": {
            "summary": {"files": 1, "bytes": len(FILES["summary.csv"])},
            "results": {"files": 1, "bytes": len(FILES["results.csv"])},
        },
        "manifest_totals": {"files": 2},
        "output_path": str(directory),
        **maze.resource,
    }
    assert (directory / "results.csv").read_bytes() == FILES["results.csv"]
    assert "2 were there already" in download(maze, "--plain").out


def test_what_is_no_file_of_a_benchmark_run_is_not_written(maze: Maze, store: BlobServer) -> None:
    bad = ("metrics.json", "artifacts/loose.txt", "artifacts/res_1/../../../x", "/etc/x", "summary.csv")
    offer(maze, store, *FILES, *bad, status="finished")
    outcome = download(maze, "--type", "all", "--json")
    assert (outcome.status, outcome.json["status"]) == (1, "partial")
    assert {failed["path"] for failed in outcome.json["resource"]["files_failed"]} == set(bad)
    assert outcome.json["resource"]["files_downloaded"] == len(FILES)


@pytest.mark.parametrize("status", ["pending", "queued"])
def test_a_run_that_has_not_begun_has_nothing_to_download(maze: Maze, store: BlobServer, status: str) -> None:
    offer(maze, store, status=status)
    error = download(maze, "--json").error
    assert (error["code"], error["hint"]) == (
        "CONFLICT",
        "follow it with: osmosis benchmark runs info amber-otter-42",
    )


@pytest.mark.parametrize("types", ["metrics", "summary,all", ""])
def test_types_of_other_runs_are_refused_before_any_call(maze: Maze, types: str) -> None:
    error = download(maze, "--type", types, "--json").error
    assert error["code"] == "VALIDATION" and not maze.router.calls


def test_a_manifest_that_is_gone_is_told_as_such(maze: Maze, store: BlobServer) -> None:
    offer(maze, store)
    maze.get("/benchmark-runs/br_8/outputs/manifest").respond(404, json={"error": "x"})
    assert "the run was deleted, or the platform is too old" in download(maze, "--json").error["message"]


# Submits

CONFIG = "configs/benchmark/toy.toml"
CANARY = "sk-canary-51fe09c2"
AGENTS: list[dict[str, Any]] = [
    {
        "harness": "terminus-2",
        "model": {"type": "provider", "model": "vendor/x", "api_key_secret": "OPENAI_API_KEY"},
    },
    {
        "env": {"DEBUG": "1"},
        "model": {
            "type": "endpoint",
            "base_url": "https://models.fern.example/v1",
            "model": "policy",
            "api_key_secret": "FERN_KEY",
            "extra_headers": {"X-Team": "sk-canary-header"},
        },
    },
]


@pytest.fixture
def ready(maze: Maze) -> Maze:
    configure(maze, CONFIG_TEXT)
    store_secrets(maze, *((name, "workspace") for name in ("OPENAI_API_KEY", "FERN_KEY", "GRADER_KEY")))
    maze.post("/benchmark-runs").respond(json=SUBMITTED)
    maze.get("/verify").respond(json={"user": {"id": "u1", "email": "mara@fern.example"}})
    return maze


def configure(maze: Maze, text: str) -> Path:
    path = maze.workspace.root / CONFIG
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def submit(maze: Maze, *arguments: str) -> Any:
    return maze.osmosis("benchmark", "submit", CONFIG, *arguments)


def test_what_is_written_is_what_is_sent(ready: Maze) -> None:
    outcome = submit(ready, "--yes", "--json")
    assert (outcome.status, outcome.err) == (0, "")
    assert sent(ready.post("/benchmark-runs")) == {
        "experiment_config": {"benchmark": "acme/toy@3"},
        "tasks_config": {"categories": ["files", "nets"]},
        "agents": [{**AGENTS[0], "env": {}}, AGENTS[1]],
        "execution_config": {"attempts_per_task": 2, "verifier_secrets": ["GRADER_KEY"]},
        "env_config": {"LOG_LEVEL": "INFO"},
        "secrets": {"required": ["OPENAI_API_KEY"], "provided": {}},
    }
    assert outcome.json == {
        "schema_version": 1,
        "status": "success",
        "operation": "benchmark.submit",
        "message": "Benchmark run submitted: amber-otter-42",
        "resource": {
            **{key: value for key, value in SUBMITTED.items() if key != "created_at"},
            "created_at": "2026-10-02T07:00:00.000Z",
            "benchmark_name": "acme/toy@3",
            **ready.resource,
            "config": {
                "experiment": {"benchmark": "acme/toy@3"},
                "tasks": {"categories": ["files", "nets"]},
                "agents": [
                    AGENTS[0],
                    {**AGENTS[1], "model": {**AGENTS[1]["model"], "extra_headers": ["X-Team"]}},
                ],
                "execution": {"attempts_per_task": 2},
            },
        },
        "next_steps_structured": [
            {"action": "benchmark_info", "name": "amber-otter-42"},
            {"action": "benchmark_list"},
            {"action": "open_url", "url": "https://p/br_8"},
        ],
    }
    plain = submit(ready, "-y", "--plain").out.splitlines()
    assert plain == [
        "Benchmark run submitted: amber-otter-42",
        *("Status: pending", "Benchmark: acme/toy@3", "View: https://p/br_8"),
    ]


def test_a_minimal_config_sends_agents_with_their_empty_variables_and_nothing_else(ready: Maze) -> None:
    agent = '[[agents]]\nmodel = { type = "hosted", base_model = "b", lora_model_name = "walker" }\n'
    configure(ready, f'[experiment]\nbenchmark = "toy"\n[tasks]\n[execution]\n[env]\n{agent}')
    ready.post("/benchmark-runs").respond(
        json={"id": "br_8", "name": "n", "status": "pending", "created_at": "2026-10-02T07:00:00Z"}
    )
    outcome = submit(ready, "--yes", "--json").json
    assert sent(ready.post("/benchmark-runs")) == {
        "experiment_config": {"benchmark": "toy"},
        "agents": [
            {"model": {"type": "hosted", "base_model": "b", "lora_model_name": "walker"}, "env": {}},
        ],
    }
    assert (outcome["resource"]["workflow_id"], outcome["resource"]["task_count"]) == (None, None)


def test_values_of_a_secrets_file_travel_for_the_names_the_config_lists_and_are_shown_nowhere(
    ready: Maze, tmp_path: Path
) -> None:
    values = tmp_path / "secrets.env"
    values.write_text(f"OPENAI_API_KEY={CANARY}\nFERN_KEY=other\n")
    ready.post("/benchmark-runs").respond(400, json={"error": f"no such key {CANARY}"})
    outcome = submit(ready, "--yes", "--json", "--secrets-file", str(values))
    assert sent(ready.post("/benchmark-runs"))["secrets"] == {
        "required": ["OPENAI_API_KEY"],
        "provided": {"OPENAI_API_KEY": CANARY},
    }
    assert "[REDACTED]" in outcome.error["message"] and CANARY not in outcome.err
    assert "the secrets file also has FERN_KEY, which the config does not list; not sent." in outcome.err


def test_a_secret_that_is_nowhere_is_told_before_anything_is_sent(ready: Maze) -> None:
    store_secrets(ready, ("OPENAI_API_KEY", "user"))
    error = submit(ready, "--yes", "--json").error
    assert (error["code"], error["details"]["missing"]) == (
        "INTERACTIVE_REQUIRED",
        ["FERN_KEY", "GRADER_KEY"],
    )
    assert error["hint"].endswith("list FERN_KEY, GRADER_KEY in [secrets].required, too")
    assert not ready.post("/benchmark-runs").called


def test_without_yes_a_script_sees_what_it_would_agree_to(ready: Maze) -> None:
    error = submit(ready, "--json").error
    assert (error["code"], error["details"]["prompt"]) == (
        "INTERACTIVE_REQUIRED",
        "Submit this benchmark run?",
    )
    assert error["details"]["summary"] == {
        "Benchmark": "acme/toy@3",
        "Tasks": "2 categories",
        "Agents": "2",
        "Attempts per task": "2",
        "Max concurrent attempts": "4",
        "agents[0]": "vendor/x (provider)",
        "agents[1]": "policy (endpoint)",
        "env.LOG_LEVEL": "INFO",
        "secret.OPENAI_API_KEY": "Workspace",
        "secret.FERN_KEY": "Workspace",
        "secret.GRADER_KEY": "Workspace",
    }
    rich = submit(ready)
    assert all(
        word in rich.err for word in ("Benchmark Run", "Agents (2)", "Secrets (3)", "vendor/x (provider)")
    )
    assert "sk-canary-header" not in rich.out + rich.err
    assert not ready.post("/benchmark-runs").called


@pytest.mark.parametrize(("tasks", "warned"), [("", True), ('[tasks]\ntask_set = "parity"\n', False)])
def test_hle_without_its_parity_tasks_is_advised_against(ready: Maze, tasks: str, warned: bool) -> None:
    _, _, rest = CONFIG_TEXT.partition("[[agents]]")
    configure(ready, f'[experiment]\nbenchmark = "hle"\n{tasks}[[agents]]{rest}')
    outcome = submit(ready, "--yes", "--json")
    assert outcome.status == 0
    assert ('"code":"HLE_PARITY_RECOMMENDED"' in outcome.err.replace(" ", "")) == warned


def test_a_config_with_mistakes_is_reported_whole_before_the_platform_hears_of_it(ready: Maze) -> None:
    configure(ready, CONFIG_TEXT.replace('type = "provider"', 'type = "remote"').replace("[env]", "[envy]"))
    calls = len(ready.router.calls)
    outcome = submit(ready, "--yes", "--json")
    assert (outcome.status, outcome.error["code"]) == (1, "VALIDATION")
    assert outcome.error["message"].startswith(f"Invalid benchmark config: {CONFIG}\n")
    assert {issue["key"] for issue in outcome.error["details"]["issues"]} == {"envy", "agents[0].model.type"}
    assert len(ready.router.calls) == calls


def test_a_config_elsewhere_is_refused(ready: Maze) -> None:
    (ready.workspace.eval_configs_dir / "toy.toml").write_text(CONFIG_TEXT)
    error = ready.osmosis("benchmark", "submit", "configs/eval/toy.toml", "--json").error
    assert "A benchmark config must be inside configs/benchmark/" in error["message"]


def test_a_platform_without_benchmarks_says_so_before_it_is_asked_for_secrets(ready: Maze) -> None:
    ready.get("/verify").respond(
        json={"user": {"id": "u1", "email": "m@fern.example"}}, headers={"X-Osmosis-Capabilities": ""}
    )
    error = submit(ready, "--yes", "--json").error
    assert (error["code"], error["details"]["platform_code"]) == ("PLATFORM_ERROR", "NOT_OFFERED")
    assert error["message"].startswith("This platform does not support benchmark runs: ")
    assert not ready.get("/environment-secrets").called and not ready.post("/benchmark-runs").called


def test_a_submit_without_an_answer_is_not_repeated_and_says_where_to_look(ready: Maze) -> None:
    route = ready.post("/benchmark-runs").mock(side_effect=httpx.ReadTimeout("slow"))
    error = submit(ready, "--yes", "--json").error
    assert route.call_count == 1
    assert "look with `osmosis benchmark runs list` before you submit again" in error["hint"]


def test_a_refusal_of_the_platform_is_told_with_its_issues(ready: Maze) -> None:
    ready.post("/benchmark-runs").respond(
        400,
        json={
            "error": "The config was rejected",
            "issues": [{"key": "execution.max_retries", "message": "too many"}],
        },
    )
    outcome = submit(ready, "--yes", "--json")
    assert json.loads(outcome.err.splitlines()[-1])["command"] == "benchmark submit"
    assert "execution.max_retries: too many" in outcome.error["message"]


# The config

PROVIDER = {"type": "provider", "model": "vendor/x", "api_key_secret": "OPENAI_API_KEY"}
ENDPOINT = {
    "type": "endpoint",
    "base_url": "https://models.fern.example/v1",
    "model": "policy",
    "api_key_secret": "FERN_KEY",
}
HOSTED = {"type": "hosted", "base_model": "fern/base-32b", "lora_model_name": "walker"}
MANY = [f"K{number}" for number in range(17)]


def problems(maze: Maze, **changes: Any) -> dict[str, str]:
    """Return the issues of a minimal config with these changes, by key."""
    document = {"experiment": {"benchmark": "toy"}, "agents": [{"model": PROVIDER}], **changes}
    configure(maze, tomli_w.dumps({name: value for name, value in document.items() if value is not None}))
    outcome = submit(maze, "--json")
    assert (outcome.status, outcome.error["code"]) == (1, "VALIDATION"), outcome.err
    assert outcome.error["message"].startswith(f"Invalid benchmark config: {CONFIG}\n")
    assert "canary" not in outcome.err and not maze.post("/benchmark-runs").called
    return {issue["key"]: issue["message"] for issue in outcome.error["details"]["issues"]}


@pytest.mark.parametrize(
    ("changes", "key", "said"),
    [
        ({"agents": None}, "agents", "Missing [[agents]]"),
        ({"agents": [{"model": PROVIDER}] * 9}, "agents", "at most 8 items"),
        ({"agents": {"model": PROVIDER}}, "agents", "must be a valid list"),
        ({"experiment": None}, "experiment", "Missing [experiment] section"),
        ({"experiment": {}}, "experiment.benchmark", "is missing"),
        ({"experiment": {"benchmark": " "}}, "experiment.benchmark", "must not be blank"),
        ({"tasks": {"task_set": "full"}}, "tasks.task_set", "must be 'parity'"),
        ({"tasks": {"categories": ["a", " "]}}, "tasks.categories[1]", "must not be blank"),
        ({"tasks": {"task_names": [3]}}, "tasks.task_names[0]", "must be a valid string"),
        ({"tasks": {"task_name": ["a"]}}, "tasks.task_name", "Unrecognized key"),
        ({"execution": {"max_retries": -1}}, "execution.max_retries", "greater than or equal to 0"),
        ({"execution": {"attempts_per_task": True}}, "execution.attempts_per_task", "valid integer"),
        ({"advanced": {"a": 1}}, "advanced", "Unrecognized key"),
        ({"env": {"OPENAI_API_KEY": "x"}}, "agents", "agents[0] has a variable and a secret named OPENAI"),
        ({"env": {"A_KEY": "x"}, "secrets": {"required": ["A_KEY"]}}, "agents", "A_KEY is in both [env]"),
        ({"secrets": {"required": MANY}}, "secrets.required", "at most 16 items"),
        ({"verifier": {"required": MANY}}, "verifier.required", "at most 16 items"),
    ],
)
def test_a_mistake_in_a_section_is_reported_with_its_key(
    ready: Maze, changes: dict[str, Any], key: str, said: str
) -> None:
    found = problems(ready, **changes)
    assert said in found[key]


@pytest.mark.parametrize(
    ("agent", "key", "said"),
    [
        ({}, ".model", "is missing"),
        ({"model": {"model": "x"}}, ".model.type", "must be one of provider, endpoint, hosted"),
        ({"model": {"type": "remote"}}, ".model.type", "must be one of provider, endpoint, hosted"),
        ({"model": {"type": "hosted", "base_model": "b"}}, ".model.lora_model_name", "is missing"),
        ({"model": {**PROVIDER, "modell": "x"}}, ".model.modell", "Unrecognized key"),
        ({"model": {**PROVIDER, "model": 3}}, ".model.model", "must be a valid string"),
        ({"model": PROVIDER, "harnes": "x"}, ".harnes", "Unrecognized key"),
        (
            {"model": {**ENDPOINT, "extra_headers": {"authorization": "Bearer sk-canary"}}},
            ".model.extra_headers",
            "must not contain an Authorization header",
        ),
        (
            {"model": {**PROVIDER, "api_key_secret": "DAYTONA_API_KEY"}},
            ".model.api_key_secret",
            "must not be DAYTONA_API_KEY",
        ),
        ({"model": PROVIDER, "harness": "cursor-cli"}, ".harness_api_key_secret", 'must be "CURSOR_API_KEY"'),
        (
            {"model": PROVIDER, "harness_api_key_secret": "CURSOR_API_KEY"},
            ".harness_api_key_secret",
            "unset",
        ),
        ({"model": PROVIDER, "env": {"OPENAI_API_KEY": "x"}}, "", "a secret named OPENAI_API_KEY"),
        (
            {"model": PROVIDER, "harness": "mini-swe-agent", "env": {"MSWEA_API_KEY": "x"}},
            "",
            "a secret named MSWEA_API_KEY",
        ),
        ({"model": PROVIDER, "env": {"lower": "x"}}, ".env", "must match"),
        ({"model": PROVIDER, "env": {"_OSMOSIS_X": "x"}}, ".env", "are reserved"),
        ({"model": PROVIDER, "env": {"A": 1}}, ".env.A", "must be a valid string"),
        ({"model": {**PROVIDER, "api_key_secret": CANARY}}, ".model.api_key_secret", "name of a secret"),
    ],
)
def test_a_mistake_in_an_agent_is_reported_with_its_key(
    ready: Maze, agent: dict[str, Any], key: str, said: str
) -> None:
    found = problems(ready, agents=[agent])
    assert said in found[f"agents[0]{key}" if key else "agents"]


def test_all_mistakes_are_one_report_without_pasted_keys(ready: Maze) -> None:
    agent = {"harness_api_key_secret": CANARY, "model": {"type": "provider"}}
    found = problems(
        ready,
        experiment={"benchmark": 3},
        agents=[agent],
        execution={"judge_api_key_secret": CANARY},
        verifier={"required": [CANARY]},
        bogus={"a": 1},
    )
    assert set(found) == {
        *("experiment.benchmark", "execution.judge_api_key_secret", "verifier.required[0]", "bogus"),
        *("agents[0].harness_api_key_secret", "agents[0].model.model", "agents[0].model.api_key_secret"),
    }


def test_an_unknown_key_gets_a_line_and_a_suggestion(ready: Maze) -> None:
    configure(ready, CONFIG_TEXT.replace("categories", "categorys"))
    (issue,) = submit(ready, "--json").error["details"]["issues"]
    assert (issue["key"], issue["line"], issue["suggestion"]) == ("tasks.categorys", 5, "categories")


def test_a_secret_of_one_agent_may_be_a_variable_of_another(ready: Maze) -> None:
    agents = [
        {"model": PROVIDER},
        {"model": HOSTED, "env": {"OPENAI_API_KEY": "x"}},
        {"harness": "mini-swe-agent", "model": HOSTED, "env": {"MSWEA_API_KEY": "x"}},
    ]
    configure(ready, tomli_w.dumps({"experiment": {"benchmark": "toy"}, "agents": agents}))
    assert submit(ready, "--yes", "--json").status == 0


def test_the_config_of_the_docs_is_valid_and_needs_each_of_its_secrets(ready: Maze) -> None:
    page = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    configure(ready, text)
    missing = submit(ready, "--yes", "--json").error["details"]["missing"]
    assert missing == ["ENDPOINT_KEY", "CURSOR_API_KEY", "JUDGE_KEY"]
    assert set(tomllib.loads(text)) == {
        *("experiment", "tasks", "agents", "execution", "verifier", "env", "secrets")
    }
