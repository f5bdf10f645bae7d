"""`osmosis benchmark` against replies written by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from tests.api.blob_server import BlobServer
from tests.cli.benchmark_replies import CONFIG_TEXT, DESCRIBED, RUN, RUN_DETAIL, SUBMITTED
from tests.cli.eval_downloads import offer_files
from tests.cli.eval_submits import store_secrets
from tests.cli.maze import Maze, sent

try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib


def test_stop_by_name(maze: Maze) -> None:
    maze.get("/benchmark-runs/amber-otter-42").respond(json=RUN_DETAIL)
    stop = maze.post("/benchmark-runs/br_8/stop").respond(json={})
    command = ("benchmark", "runs", "stop", "amber-otter-42", "--json")
    refused = maze.osmosis(*command).error
    assert refused["code"] == "INTERACTIVE_REQUIRED" and not stop.called
    assert refused["details"]["prompt"] == 'Stop benchmark run "amber-otter-42"?'
    assert maze.osmosis(*command, "--yes").status == 0
    assert sent(stop) == {}


def test_progress_and_counts(maze: Maze) -> None:
    runs = [{**RUN, "ingested_results": 90}, {**RUN, "expected_results": 0, "ingested_results": None}]
    maze.get("/benchmark-runs").respond(json={"benchmark_runs": runs, "total_count": 7, "next_offset": 2})
    listed = maze.osmosis("benchmark", "runs", "list", "--json").json["items"]
    assert [(run["progress"]["completed"], run["progress"]["total"]) for run in listed] == [(90, 90), (0, 0)]
    maze.get("/benchmarks/toy").respond(json={"benchmark": DESCRIBED})
    assert maze.osmosis("benchmark", "info", "toy", "--json").data["runs_total_count"] == 7


FILES = {
    "summary.csv": b"agent,pass_at_1\n",
    "results.csv": b"task,passed\n",
    "artifacts/res_1/logs/agent.txt": b"hello\n",
    "logs.txt": b"line\n",
}


def test_download_rejects_unknown_paths(maze: Maze, store: BlobServer) -> None:
    bad = ("metrics.json", "artifacts/loose.txt", "artifacts/res_1/../../../x", "/etc/x", "summary.csv")
    store.blobs.update(FILES)
    listed = [{"path": path, "size": len(FILES.get(path, b""))} for path in (*FILES, *bad)]
    offer_files(maze, store, "/benchmark-runs/br_8/outputs", listed)
    maze.get("/benchmark-runs/amber-otter-42").respond(json={"benchmark_run": {**RUN, "status": "finished"}})
    download = ("benchmark", "runs", "download", "amber-otter-42", "--type", "all", "--json")
    outcome = maze.osmosis(*download)
    assert (outcome.status, outcome.json["status"]) == (1, "partial")
    assert {failed["path"] for failed in outcome.resource["files_failed"]} == set(bad)
    assert outcome.resource["files_downloaded"] == len(FILES)


CONFIG = "configs/benchmark/toy.toml"
CANARY = "sk-canary-51fe09c2"
PROVIDER = {"type": "provider", "model": "vendor/x", "api_key_secret": "OPENAI_API_KEY"}
ENDPOINT = {
    "type": "endpoint",
    "base_url": "https://models.fern.example/v1",
    "model": "policy",
    "api_key_secret": "FERN_KEY",
}


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


def test_submit_request(ready: Maze) -> None:
    outcome = submit(ready, "--yes", "--json")
    assert (outcome.status, outcome.err) == (0, "")
    assert sent(ready.post("/benchmark-runs")) == {
        "experiment_config": {"benchmark": "acme/toy@3"},
        "tasks_config": {"categories": ["files", "nets"]},
        "agents": [
            {"harness": "terminus-2", "model": PROVIDER, "env": {}},
            {"env": {"DEBUG": "1"}, "model": {**ENDPOINT, "extra_headers": {"X-Team": "sk-canary-header"}}},
        ],
        "execution_config": {"attempts_per_task": 2, "verifier_secrets": ["GRADER_KEY"]},
        "env_config": {"LOG_LEVEL": "INFO"},
        "secrets": {"required": ["OPENAI_API_KEY"], "provided": {}},
    }
    assert "sk-canary-header" not in outcome.out


def test_submit_secrets_file(ready: Maze, tmp_path: Path) -> None:
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


def test_platform_without_benchmarks(ready: Maze) -> None:
    without = {"X-Osmosis-Capabilities": ""}
    ready.get("/verify").respond(json={"user": {"id": "u1", "email": "m@fern.example"}}, headers=without)
    error = submit(ready, "--yes", "--json").error
    assert (error["code"], error["details"]["platform_code"]) == ("PLATFORM_ERROR", "NOT_OFFERED")
    assert not ready.get("/environment-secrets").called and not ready.post("/benchmark-runs").called

    ready.get("/benchmarks").respond(json={"benchmarks": []}, headers=without)
    listed = ready.osmosis("benchmark", "list", "--json")
    assert (listed.status, listed.json["items"]) == (0, [])
    warning = json.loads(listed.err)["warning"]
    assert warning["code"] == "NOT_OFFERED"
    for message in (error["message"], warning["message"]):
        assert message.startswith("This platform does not support benchmark runs: ")


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
    ("changes", "key", "message"),
    [
        ({"agents": None}, "agents", "Missing [[agents]]"),
        ({"agents": [{"model": PROVIDER}] * 9}, "agents", "at most 8 items"),
        ({"experiment": {}}, "experiment.benchmark", "is missing"),
        ({"tasks": {"task_set": "full"}}, "tasks.task_set", "must be 'parity'"),
        ({"tasks": {"categories": ["a", " "]}}, "tasks.categories[1]", "must not be blank"),
        ({"tasks": {"task_name": ["a"]}}, "tasks.task_name", "Unrecognized key"),
        ({"execution": {"max_retries": -1}}, "execution.max_retries", "must be at least 0"),
        ({"execution": {"attempts_per_task": True}}, "execution.attempts_per_task", "must be an integer"),
        ({"env": {"OPENAI_API_KEY": "x"}}, "agents", "agents[0] has a variable and a secret named OPENAI"),
        ({"env": {"A_KEY": "x"}, "secrets": {"required": ["A_KEY"]}}, "agents", "A_KEY is in both [env]"),
        ({"secrets": {"required": [f"K{n}" for n in range(17)]}}, "secrets.required", "at most 16 items"),
    ],
)
def test_invalid_section(ready: Maze, changes: dict[str, Any], key: str, message: str) -> None:
    assert message in problems(ready, **changes)[key]


@pytest.mark.parametrize(
    ("agent", "key", "message"),
    [
        ({}, ".model", "is missing"),
        ({"model": {"model": "x"}}, ".model.type", "must be one of provider, endpoint, hosted"),
        ({"model": {"type": "hosted", "base_model": "b"}}, ".model.lora_model_name", "is missing"),
        ({"model": {**PROVIDER, "modell": "x"}}, ".model.modell", "Unrecognized key"),
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
        ({"model": {**PROVIDER, "api_key_secret": CANARY}}, ".model.api_key_secret", "name of a secret"),
        ({"model": PROVIDER, "harness": "cursor-cli"}, ".harness_api_key_secret", 'must be "CURSOR_API_KEY"'),
        ({"model": PROVIDER, "env": {"OPENAI_API_KEY": "x"}}, "", "a secret named OPENAI_API_KEY"),
        ({"model": PROVIDER, "env": {"lower": "x"}}, ".env", "must match"),
        ({"model": PROVIDER, "env": {"_OSMOSIS_X": "x"}}, ".env", "are reserved"),
    ],
)
def test_invalid_agent(ready: Maze, agent: dict[str, Any], key: str, message: str) -> None:
    assert message in problems(ready, agents=[agent])[f"agents[0]{key}" if key else "agents"]


def test_all_mistakes_in_one_report(ready: Maze) -> None:
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


def test_documented_config(ready: Maze) -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "benchmarks.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    configure(ready, text)
    missing = submit(ready, "--yes", "--json").error["details"]["missing"]
    assert missing == ["ENDPOINT_KEY", "CURSOR_API_KEY", "JUDGE_KEY"]
    assert set(tomllib.loads(text)) == {
        *("experiment", "tasks", "agents", "execution", "verifier", "env", "secrets")
    }
