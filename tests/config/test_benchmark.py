"""What is wrong with a benchmark config, all of it at once, and never a value that may be a key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from osmosis_ai.config.benchmark import benchmark_issues, referenced_secrets

PROVIDER = {"type": "provider", "model": "vendor/x", "api_key_secret": "OPENAI_API_KEY"}
ENDPOINT = {
    "type": "endpoint",
    "base_url": "https://models.fern.example/v1",
    "model": "policy",
    "api_key_secret": "FERN_KEY",
    "extra_headers": {"X-Team": "maze"},
}
HOSTED = {"type": "hosted", "base_model": "fern/base-32b", "lora_model_name": "walker"}
FULL: dict[str, Any] = {
    "experiment": {"benchmark": "acme/toy@3"},
    "tasks": {"categories": ["files"], "task_names": ["ping-it"], "task_set": "parity"},
    "agents": [
        {"harness": "terminus-2", "model": PROVIDER, "env": {"DEBUG": "1"}},
        {"harness": "cursor-cli", "harness_api_key_secret": "CURSOR_API_KEY", "model": ENDPOINT},
        {"model": HOSTED},
    ],
    "execution": {
        "attempts_per_task": 2,
        "max_concurrent_attempts": 8,
        "timeout_multiplier": 1.5,
        "max_retries": 0,
        "pass_threshold": 0.5,
        "judge_model": "openai/gpt-5-mini",
        "judge_api_key_secret": "JUDGE_KEY",
    },
    "verifier": {"required": ["GRADER_KEY"]},
    "env": {"LOG_LEVEL": "INFO"},
    "secrets": {"required": ["OPENAI_API_KEY", "EXTRA_KEY"]},
}


def said(document: Mapping[str, Any]) -> list[str]:
    return [issue.bullet().removeprefix("  - ") for issue in benchmark_issues(document)]


def with_agent(**agent: Any) -> dict[str, Any]:
    return {"experiment": {"benchmark": "toy"}, "agents": [agent]}


def test_a_full_config_and_a_minimal_one_have_nothing_wrong() -> None:
    assert said(FULL) == []
    assert said(with_agent(model=PROVIDER)) == []


def test_every_secret_that_a_run_needs_is_looked_for_once() -> None:
    assert referenced_secrets(FULL) == (
        *("OPENAI_API_KEY", "FERN_KEY", "CURSOR_API_KEY"),
        *("JUDGE_KEY", "GRADER_KEY", "EXTRA_KEY"),
    )


@pytest.mark.parametrize(
    ("changes", "issue"),
    [
        ({"agents": None}, "agents: Missing [[agents]]: at least one agent has to run"),
        ({"agents": []}, "agents: must be 1 to 8 agents, got 0"),
        ({"agents": [{"model": PROVIDER}] * 9}, "agents: must be 1 to 8 agents, got 9"),
        ({"agents": {"model": PROVIDER}}, "agents: must be an array of tables: [[agents]]"),
        ({"agents": ["x"]}, "agents: must be an array of tables: [[agents]]"),
        ({"experiment": None}, "experiment: Missing [experiment] section"),
        ({"experiment": {}}, "experiment.benchmark: Missing 'benchmark' in [experiment] section"),
        ({"experiment": {"benchmark": " "}}, "experiment.benchmark: must not be blank"),
        ({"tasks": {"task_set": "full"}}, 'tasks.task_set: must be one of parity, got "full"'),
        ({"tasks": {"categories": ["a", " "]}}, "tasks.categories: must not be blank"),
        ({"tasks": {"task_names": [3]}}, "tasks.task_names: must be a string, got 3"),
        ({"tasks": {"task_name": ["a"]}}, "tasks.task_name: Unrecognized key (did you mean 'task_names'?)"),
        ({"execution": {"max_retries": -1}}, "execution.max_retries: must be at least 0, got -1"),
        (
            {"execution": {"attempts_per_task": True}},
            "execution.attempts_per_task: must be an integer, got true",
        ),
        ({"advanced": {"a": 1}}, "advanced: Unrecognized section"),
        (
            {"evaluation": {"n": 1}},
            "evaluation: Unrecognized section; it belongs to configs in configs/eval/",
        ),
        ({"verifier": {"required": ["A", "A"]}}, "verifier.required: 'A' is listed 2 times"),
        ({"env": {"OPENAI_API_KEY": "x"}, "secrets": None}, "env.OPENAI_API_KEY: has the name of a secret"),
        (
            {"secrets": {"required": [f"K{number}" for number in range(17)]}},
            "secrets.required: must have at most 16 names, got 17",
        ),
        (
            {"verifier": {"required": [f"K{number}" for number in range(17)]}},
            "verifier.required: List should have at most 16 items",
        ),
    ],
)
def test_what_is_wrong_with_a_section_is_said_where_it_stands(changes: dict[str, Any], issue: str) -> None:
    document = {key: value for key, value in {**FULL, **changes}.items() if value is not None}
    assert any(line.startswith(issue) for line in said(document)), said(document)


@pytest.mark.parametrize(
    ("agent", "issue"),
    [
        ({}, "agents[0].model: is missing"),
        ({"model": "vendor/x"}, "agents[0].model: must be a table"),
        ({"model": {"model": "x"}}, "agents[0].model.type: must be one of provider, endpoint, hosted"),
        ({"model": {"type": "remote"}}, "agents[0].model.type: must be one of provider, endpoint, hosted"),
        ({"model": {"type": "hosted", "base_model": "b"}}, "agents[0].model.lora_model_name: is missing"),
        ({"model": {**PROVIDER, "modell": "x"}}, "agents[0].model.modell: Unrecognized key"),
        ({"model": {**PROVIDER, "model": 3}}, "agents[0].model.model: must be a string, got 3"),
        ({"model": PROVIDER, "harnes": "x"}, "agents[0].harnes: Unrecognized key (did you mean 'harness'?)"),
        (
            {"model": {**ENDPOINT, "extra_headers": {"authorization": "Bearer sk-canary"}}},
            "agents[0].model.extra_headers: must not hold an Authorization header",
        ),
        (
            {"model": {**ENDPOINT, "extra_headers": {"X": 3}}},
            "agents[0].model.extra_headers.X: must be a string",
        ),
        (
            {"model": {**PROVIDER, "api_key_secret": "DAYTONA_API_KEY"}},
            "agents[0].model.api_key_secret: must not be DAYTONA_API_KEY, which belongs to the platform",
        ),
        (
            {"model": PROVIDER, "harness": "cursor-cli"},
            'agents[0].harness_api_key_secret: must be "CURSOR_API_KEY" for the harness cursor-cli',
        ),
        (
            {"model": PROVIDER, "harness_api_key_secret": "CURSOR_API_KEY"},
            "agents[0].harness_api_key_secret: belongs to the harness cursor-cli alone",
        ),
        (
            {"model": PROVIDER, "env": {"OPENAI_API_KEY": "x"}},
            "agents[0].env.OPENAI_API_KEY: has the name of a secret that agents[0] gets",
        ),
        (
            {"model": PROVIDER, "harness": "mini-swe-agent", "env": {"MSWEA_API_KEY": "x"}},
            "agents[0].env.MSWEA_API_KEY: has the name of a secret",
        ),
        (
            {"model": PROVIDER, "env": {"lower": "x"}},
            "agents[0].env.lower: the name of a variable must match",
        ),
        ({"model": PROVIDER, "env": {"_OSMOSIS_X": "x"}}, "agents[0].env._OSMOSIS_X: names that start with"),
        ({"model": PROVIDER, "env": {"A": 1}}, "agents[0].env.A: must be a string, got 1"),
        ({"model": PROVIDER, "env": "x"}, "agents[0].env: must be a table"),
    ],
)
def test_what_is_wrong_with_an_agent_is_said_where_it_stands(agent: dict[str, Any], issue: str) -> None:
    lines = said(with_agent(**agent))
    assert any(line.startswith(issue) for line in lines), lines
    assert "canary" not in "".join(lines)


def test_a_name_that_is_a_secret_for_one_agent_may_be_a_variable_of_another() -> None:
    document = with_agent(model=PROVIDER)
    document["agents"].append({"model": HOSTED, "env": {"OPENAI_API_KEY": "x"}})
    document["agents"].append({"harness": "mini-swe-agent", "model": HOSTED, "env": {"MSWEA_API_KEY": "x"}})
    assert said(document) == []


def test_a_key_that_was_pasted_where_a_name_belongs_is_not_repeated() -> None:
    pasted = "sk-canary-51fe09c2"
    document = with_agent(
        model={**PROVIDER, "api_key_secret": pasted}, harness="cursor-cli", harness_api_key_secret=pasted
    )
    document["execution"] = {"judge_api_key_secret": pasted}
    document["verifier"] = {"required": [pasted]}
    lines = said(document)
    assert len(lines) >= 4 and all("canary" not in line for line in lines)


def test_several_mistakes_are_one_report() -> None:
    document = {
        "experiment": {"benchmark": 3},
        "agents": [{"model": {"type": "provider"}}],
        "bogus": {"a": 1},
        "secrets": {"required": ["lower_case"]},
    }
    keys = {issue.key for issue in benchmark_issues(document)}
    assert keys == {
        *("experiment.benchmark", "bogus", "secrets.required"),
        *("agents[0].model.model", "agents[0].model.api_key_secret"),
    }
