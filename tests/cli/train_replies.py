"""A training config, and what a platform says of a run, written by hand from the contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.cli.maze import Maze

CONFIG = "configs/training/maze.toml"
TEXT = """\
[experiment]
rollout = "multiply"
entrypoint = "main.py"
model_path = "fern/base-32b"
dataset = "maze-walks"

[training]
lr = 1e-6
rollout_batch_size = 16

[sampling]
rollout_temperature = 1.0

[checkpoints]
eval_interval = 5

[advanced]
lora_rank = 32

[secrets]
required = []
"""
OWN: dict[str, Any] = {
    "id": "tr_8f0c1d2e3a4b",
    "name": "copper finch/9",
    "status": "running",
    "created_at": "2026-10-02T07:00:00Z",
    "started_at": "2026-10-02T07:03:10Z",
    "completed_at": None,
    "creator_name": "Mara",
    "creator_email": "mara@fern.example",
    "platform_url": "https://osmosis.fern.example/fern-lab/training/tr_8",
    "current_step": 12,
    "total_steps": 80,
    "reward": 0.31,
}
ROW: dict[str, Any] = {
    **OWN,
    "model": {"id": "bm_1", "model_name": "fern/base-32b"},
    "dataset": {"id": "ds_31", "file_name": "maze-walks"},
    "rollout": {"id": "ro_2", "name": "maze"},
}
MINIMAL = {"id": "tr_1", "name": None, "status": "queued", "created_at": "2026-10-02T07:00:00Z"}
DETAIL: dict[str, Any] = {
    "training_run": {**OWN, "examples_processed_count": 3072, "notes": "second try"},
    "model": {"id": "bm_1", "name": "fern/base-32b"},
    "dataset": {"id": "ds_31", "name": "maze-walks"},
    "rollout": {"id": "ro_2", "name": "maze"},
    "entrypoint": "main.py",
    "branch": None,
    "commit_sha": "4be1c0ffee4be1c0ffee",
    "config": {"training": {"lr": 1e-06, "total_epochs": None}, "sampling": {"rollout_top_p": 1.0}, "odd": 3},
    "env_config": {"LOG_LEVEL": "INFO"},
    "resolved_secret_scopes": {"SEARCH_KEY": "user_override"},
    "is_internal_user": True,
}
METRICS: dict[str, Any] = {
    "status": "running",
    "training_run_id": "tr_8f0c1d2e3a4b",
    "overview": {
        "duration_ms": 61500,
        "examples_processed_count": 3100,
        "latest_step": 12,
        "total_steps": 80,
        "metric_summaries": [
            {
                "key": "rollout/raw_reward",
                "title": "Training reward",
                "initial": 0.1,
                "latest": 0.31,
                "delta": 0.21,
                "min": 0.05,
                "max": 0.4,
            },
            {"key": "train/loss", "title": "Loss", "initial": 0.00002, "latest": None},
        ],
    },
    "metrics": [
        {
            "metric_key": "rollout/raw_reward",
            "title": "Training reward",
            "data_points": [
                {"step": 1, "value": 0.1, "timestamp": 1790924590000},
                {"step": 2, "value": 0.31, "timestamp": 1790924600250},
            ],
        },
        {
            "metric_key": "train/loss",
            "title": "Loss",
            "data_points": [{"step": 1, "value": None, "timestamp": 10**18}],
        },
    ],
}
VALIDATED: dict[str, Mapping[int, float]] = {
    "eval/validation/pass_rate": {0: 0.2, 10: 0.35, 20: 0.6, 30: 0.55, 40: 0.5},
    "eval/validation/reward": {0: 0.2, 10: 0.35, 20: 0.6, 30: 0.55, 40: 0.5},
    "eval/validation/reward_low": {0: 0.11, 10: 0.24, 20: 0.48, 30: 0.43, 40: 0.38},
    "eval/validation/reward_high": {0: 0.33, 10: 0.48, 20: 0.71, 30: 0.66, 40: 0.62},
    "eval/validation/scored": dict.fromkeys(range(0, 41, 10), 64),
    "eval/validation/samples": dict.fromkeys(range(0, 41, 10), 64),
    "rollout/raw_reward": {step: 0.2 + step / 100 for step in range(10, 41, 10)},
    "rollout/staleness": {10: 1.0, 20: 1.5, 30: 1.5, 40: 1.6},
    "rollout/dropped_stale": dict.fromkeys(range(10, 41, 10), 0.04),
    "rollout/replaced": {10: 0, 20: 1, 30: 2, 40: 7},
    "speed/sampling_tokens_per_s": dict.fromkeys(range(10, 41, 10), 4321.5),
    "time/step_s": dict.fromkeys(range(10, 41, 10), 12.5),
    "time/sampling_s": dict.fromkeys(range(10, 41, 10), 8.0),
    "time/learning_s": dict.fromkeys(range(10, 41, 10), 3.5),
    "time/validation_s": dict.fromkeys(range(10, 41, 10), 10.0),
}
"""A run of 40 steps that validates every ten: the best is not the last."""
VALIDATED_METRICS: dict[str, Any] = {
    "overview": {"duration_ms": 520000, "latest_step": 40, "total_steps": 40},
    "metrics": [
        {
            "metric_key": key,
            "title": key,
            "data_points": [
                {"step": step, "value": value, "timestamp": 1790924590000 + step}
                for step, value in values.items()
            ],
        }
        for key, values in VALIDATED.items()
    ],
    "marks": [
        {"step": 31, "kind": "warning", "text": "62% of the groups have equal rewards and are left out"},
        {"step": 20, "kind": "restart", "text": "resumed after step 20"},
    ],
}
CHECKPOINTS: dict[str, Any] = {
    "training_run_name": "copper finch/9",
    "training_run_id": "tr_8f0c1d2e3a4b",
    "checkpoints": [
        {
            "id": "ck_1234567890",
            "checkpoint_name": f"copper-step-{step}",
            "checkpoint_step": step,
            "status": "uploaded",
            "created_at": "2026-10-02T08:00:00Z",
        }
        for step in (20, 40)
    ],
}


def offer(maze: Maze, status: str = "running", **more: Any) -> None:
    """Let the platform have the run in a status, with its metrics and checkpoints."""
    own = {**DETAIL["training_run"], "status": status, **more}
    for name in ("copper", OWN["id"]):
        maze.get(f"/training-runs/{name}").respond(json={**DETAIL, "training_run": own})
    maze.get(f"/training-runs/{OWN['id']}/metrics").respond(json=METRICS)
    maze.get(f"/training-runs/{OWN['id']}/checkpoints").respond(json=CHECKPOINTS)


def offer_validated(maze: Maze) -> None:
    """Have a finished training run with validations, whose best checkpoint is not the last."""
    config = {"training": {"lr": 1e-4, "total_epochs": 1}, "advanced": {"lora_rank": 32, "max_steps": 40}}
    own = {
        **OWN,
        "completed_at": "2026-10-02T07:11:10Z",
        "name": "kestrel",
        "status": "finished",
        "current_step": 40,
        "total_steps": 40,
    }
    detail = {**DETAIL, "training_run": own, "config": config, "is_internal_user": False}
    maze.get("/training-runs/kestrel").respond(json=detail)
    maze.get(f"/training-runs/{OWN['id']}/metrics").respond(json=VALIDATED_METRICS)
    maze.get(f"/training-runs/{OWN['id']}/checkpoints").respond(json=CHECKPOINTS)
