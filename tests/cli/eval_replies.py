"""What a platform says of an evaluation run, written by hand from the contract."""

from __future__ import annotations

from typing import Any

from tests.cli.maze import Maze

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
EXECUTION = {"pool": "gpu", "labels": ["a100", "west"], "workers": 4, "max_cost": 5.0, "max_tokens": 200_000}
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
        "unscored": {"exception": 1},
        "failed_by_boundary": {"agent": 1},
        "infrastructure_failures": 0,
        "skipped": 1,
        "pending": 0,
    },
    "tokens": {
        "prompt": 10000,
        "completion": 2345,
        "total": 12345,
        "per_sample": 1371.6,
        "known_samples": 9,
        "unreported_samples": 0,
    },
    "cost_usd": {"total": None, "known_samples": 0, "recorded_samples": 9},
    "latency": {"rollout_ms": None, "model_ms": None, "elsewhere_ms": None, "model_call_mean_ms": None},
}
METRICS_FILE = b'{"eval_run": {}, "summary": {}}\n'


def run(status: str, **more: Any) -> dict[str, Any]:
    """A detail with another status."""
    return {**DETAIL, "eval_run": {**OWN, "status": status, **more}}


def offer_run(
    maze: Maze,
    metrics: dict[str, Any] = METRICS,
    *,
    status: str = "finished",
    own: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
    **results: Any,
) -> None:
    """Let the platform have the run ``amber-otter-42`` with these metrics and results."""
    detail = {
        **run(status, **(own or {})),
        "config": {**CONFIG, **(config or {})},
        "results": {**RESULTS, **results},
    }
    maze.get("/eval-runs/amber-otter-42").respond(json=detail, headers=headers)
    maze.get("/eval-runs/er_8/metrics").respond(json=metrics, headers=headers)
