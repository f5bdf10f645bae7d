"""`osmosis benchmark submit`: what is sent, what is asked, and what is refused before anything is sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.eval_submits import store_secrets
from tests.cli.maze import Maze, sent

CONFIG = "configs/benchmark/toy.toml"
CANARY = "sk-canary-51fe09c2"
TEXT = """\
[experiment]
benchmark = "acme/toy@3"

[tasks]
categories = ["files", "nets"]

[[agents]]
harness = "terminus-2"
[agents.model]
type = "provider"
model = "vendor/x"
api_key_secret = "OPENAI_API_KEY"

[[agents]]
env = { DEBUG = "1" }
[agents.model]
type = "endpoint"
base_url = "https://models.fern.example/v1"
model = "policy"
api_key_secret = "FERN_KEY"
extra_headers = { X-Team = "sk-canary-header" }

[execution]
attempts_per_task = 2

[verifier]
required = ["GRADER_KEY"]

[env]
LOG_LEVEL = "INFO"

[secrets]
required = ["OPENAI_API_KEY"]
"""
SUBMITTED: dict[str, Any] = {
    "id": "br_8",
    "name": "amber-otter-42",
    "status": "pending",
    "created_at": "2026-10-02T07:00:00Z",
    "workflow_id": "wf_1",
    "task_count": 50,
    "platform_url": "https://p/br_8",
}
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
    configure(maze, TEXT)
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
        *("Status: pending", "Benchmark: acme/toy@3", "Tasks: 50", "View: https://p/br_8"),
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
    assert all(word in rich.err for word in ("Benchmark Run", "Agents (2)", "Secrets (3)", "terminus-2"))
    assert "sk-canary-header" not in rich.out + rich.err
    assert not ready.post("/benchmark-runs").called


@pytest.mark.parametrize(("tasks", "warned"), [("", True), ('[tasks]\ntask_set = "parity"\n', False)])
def test_hle_without_its_parity_tasks_is_advised_against(ready: Maze, tasks: str, warned: bool) -> None:
    _, _, rest = TEXT.partition("[[agents]]")
    configure(ready, f'[experiment]\nbenchmark = "hle"\n{tasks}[[agents]]{rest}')
    outcome = submit(ready, "--yes", "--json")
    assert outcome.status == 0
    assert ('"code":"HLE_PARITY_RECOMMENDED"' in outcome.err.replace(" ", "")) == warned


def test_a_config_with_mistakes_is_reported_whole_before_the_platform_hears_of_it(ready: Maze) -> None:
    configure(ready, TEXT.replace('type = "provider"', 'type = "remote"').replace("[env]", "[envy]"))
    calls = len(ready.router.calls)
    outcome = submit(ready, "--yes", "--json")
    assert (outcome.status, outcome.error["code"]) == (1, "VALIDATION")
    assert outcome.error["message"].startswith(f"Invalid benchmark config: {CONFIG}\n")
    assert {issue["key"] for issue in outcome.error["details"]["issues"]} == {"envy", "agents[0].model.type"}
    assert len(ready.router.calls) == calls


def test_a_config_elsewhere_is_refused(ready: Maze) -> None:
    (ready.workspace.eval_configs_dir / "toy.toml").write_text(TEXT)
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
