"""What a platform says of benchmarks and their runs, written by hand from the contract."""

from __future__ import annotations

from typing import Any

TASK_SETS = [
    {"name": "parity", "task_count": 40, "recommended": True, "description": "as published"},
    {"name": "full", "task_count": 50},
]
SHARED: dict[str, Any] = {
    "id": "bm_1",
    "name": "Toy Tasks",
    "description": "Small things\nto do.",
    "source_type": "harbor_registry",
    "source_ref": "acme/toy@3",
    "source_url": "https://example.com/toy",
    "task_count": 50,
    "category_count": 2,
    "task_sets": TASK_SETS,
    "sync_status": "ready",
    "synced_task_count": 50,
    "sync_error": None,
    "platform_url": "https://osmosis.fern.example/fern-lab/benchmarks/bm_1",
}
LISTED: dict[str, Any] = {
    **SHARED,
    "run_count": 3,
    "running_count": 1,
    "last_run_at": "2026-10-02T07:00:00Z",
    "last_run_status": "finished",
    "last_run_name": "amber-otter-42",
    "creator_name": "Mara",
}
MINIMAL = {"id": "bm_2", "name": "Bare"}
DESCRIBED: dict[str, Any] = {
    **SHARED,
    "runner_family": "harbor",
    "supports_harness": True,
    "requires_harness": False,
    "default_harness": "terminus-2",
    "requires_judge_model": True,
    "requires_judge_api_key": True,
    "judge_model_default": "openai/gpt-5-mini",
    "pass_threshold": 0.5,
    "categories": [{"name": "files", "task_count": 30}, {"name": "nets", "task_count": 20}],
    "tasks": [
        {"name": "rename-it", "category": "files", "difficulty": "easy"},
        {"name": "ping-it", "category": None, "difficulty": None},
    ],
    "unavailable_tasks": {"reason": "no machine", "tasks": [{"name": "lift-it"}]},
}
ENTRY: dict[str, Any] = {
    "rank": 1,
    "tied": True,
    "task_set": "parity",
    "harness": "terminus-2",
    "model": "vendor/x",
    "pass_at_1": {"value": 0.41, "ci_low": 0.3, "ci_high": 0.5, "n": 40, "method": "wilson"},
    "pass_at_k": [{"k": 1, "value": 0.41}, {"k": 4, "value": 0.625}],
    "cost_per_task": 0.12,
    "mean_duration_seconds": 61.5,
    "tokens_per_task": 12345.6,
    "run": {"id": "br_1", "name": "amber-otter-42", "platform_url": "https://p"},
}
RUN: dict[str, Any] = {
    "id": "br_8",
    "name": "amber-otter-42",
    "status": "running",
    "benchmark_id": "bm_1",
    "benchmark_name": "Toy Tasks",
    "agent_count": 2,
    "best_pass_at_1": 0.41,
    "ingested_results": 30,
    "expected_results": 80,
    "creator_name": "Mara",
    "creator_email": "mara@fern.example",
    "created_at": "2026-10-02T07:00:00Z",
    "started_at": "2026-10-02T07:00:10Z",
    "completed_at": None,
    "platform_url": "https://osmosis.fern.example/fern-lab/benchmarks/runs/br_8",
}
CONFIGURATION: dict[str, Any] = {
    "benchmark_id": "bm_1",
    "benchmark_name": "Toy Tasks",
    "source_type": "harbor_registry",
    "source_ref": "acme/toy@3",
    "resolved_version": "3",
    "resolved_digest": "sha256:0f3a",
    "task_filters": {"categories": ["files", "nets"]},
    "config": {"attempts_per_task": 2, "nested": {"a": 1}},
    "resolved_secret_scopes": {"OPENAI_API_KEY": "user_override", "OTHER": "workspace"},
}
AGENT: dict[str, Any] = {
    "id": "ba_1",
    "agent_index": 0,
    "harness": "terminus-2",
    "model_display_name": "vendor/x",
    "status": "running",
    "environment_variables": {},
    "aggregates": {"reported_cost_usd": 1.5, "mean_duration_seconds": 61.5, "tokens_per_task": 12345},
}
RUN_DETAIL: dict[str, Any] = {
    "benchmark_run": RUN,
    "configuration": CONFIGURATION,
    "agents": [AGENT, {"id": "ba_2", "agent_index": 1, "model_ref": "vendor/y"}],
    "progress": {"ingested": 30, "expected": 80},
    "totals": {
        "passed": 12,
        "failed": 17,
        "errored": 1,
        "cancelled": 0,
        "total_input_tokens": 1234567,
        "total_output_tokens": 8910,
        "total_cost_usd": 3.25,
    },
    "agent_metrics": [
        {
            "benchmark_run_agent_id": "ba_1",
            "rank": 1,
            "n_tasks": 40,
            "pass_at_1": {"value": 0.41, "ci_low": 0.3, "ci_high": 0.5},
            "pass_at_k": [{"k": 2, "value": 0.5}],
        }
    ],
    "is_internal_user": True,
}
CONFIG_TEXT = """\
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
