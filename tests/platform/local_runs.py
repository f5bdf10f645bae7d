"""Evaluations that ran elsewhere, as the public wire has them: written by hand, none of our models in between."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient
from httpx import Response

_OF_THE_INDEX = ("trajectory_filename", "resumed")
IMPORTS = "/api/cli/eval-runs/imports"
RUN_ID = "9f0c" * 8
MANIFEST = hashlib.sha256(b"the manifest").hexdigest()


def rollout_id(row: int, run: int = 0) -> str:
    return f"{row:016x}{run:016x}"


def trajectory(row: int, run: int = 0) -> dict[str, Any]:
    """The conversation of an attempt, in the Agent Trajectory Interchange Format."""
    return {
        "schema_version": "ATIF-v1.7",
        "session_id": rollout_id(row, run),
        "agent": {"name": "maze-walker", "version": "2"},
        "steps": [
            {"step_id": 1, "source": "user", "message": f"walk maze {row}"},
            {"step_id": 2, "source": "agent", "message": "north"},
        ],
        "extra": {
            "osmosis": {
                "rollout_id": rollout_id(row, run),
                "request_extra_fields": {"row_index": row, "run_index": run},
            }
        },
    }


@dataclass
class LocalRun:
    """Three rows, two attempts on each; what a test changes is sent changed."""

    rows: str = "0-1,5"
    rewards: dict[tuple[int, int], float | None] = field(
        default_factory=lambda: {(0, 0): 1.0, (0, 1): 0.0, (1, 0): 1, (1, 1): 1.0, (2, 0): None, (2, 1): 0.5}
    )
    name: str = "maze-20261102"
    n: int = 2
    files: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.files:
            self.files = self.written()

    def index(self) -> list[dict[str, Any]]:
        entries = []
        for (row, run), reward in self.rewards.items():
            entry: dict[str, Any] = {
                "row_index": row,
                "run_index": run,
                "rollout_id": rollout_id(row, run),
                "status": "success" if reward is not None else "failed",
                "duration_ms": 1200 + row,
                "tokens": 10,
            }
            if reward is not None:
                entry |= {"reward": reward, "trajectory_filename": "trajectory.json"}
            else:
                entry |= {"error_type": "callback_timeout", "resumed": True}
            entries.append(entry)
        return entries

    def written(self) -> dict[str, bytes]:
        progress = {"total_runs": len(self.rewards), "sampled_rows": 3, "total_dataset_rows": 40}
        files = {
            "index.jsonl": b"".join(json.dumps(entry).encode() + b"\n" for entry in self.index()),
            "progress.json": json.dumps(progress).encode(),
        }
        for (row, run), reward in self.rewards.items():
            if reward is not None:
                path = f"rollout_trials/{rollout_id(row, run)}/trajectory.json"
                files[path] = json.dumps(trajectory(row, run)).encode()
        files[f"rollout_trials/{rollout_id(1)}/artifacts/maps/path.txt"] = b"N N E"
        files[f"rollout_trials/{rollout_id(1)}/artifacts/empty"] = b""
        return files

    def start(self, **changes: Any) -> dict[str, Any]:
        """The body that announces the run; ``changes`` replace its keys."""
        body = {
            "schema_version": 1,
            "local_run_id": RUN_ID,
            "manifest_digest": MANIFEST,
            "run": {
                "name": self.name,
                "started_at": "2026-11-02T08:00:00.000Z",
                "completed_at": "2026-11-02T08:10:00Z",
                "experiment_config": {
                    "rollout": {"name": "maze", "source_digest": "ab" * 32},
                    "entrypoint": "main.py",
                    "model_path": "openai/gpt-5-mini",
                    "dataset": {"name": "mazes", "sha256": "cd" * 32, "selected_source_rows": self.rows},
                },
                "evaluation_config": {"n": self.n, "pass_threshold": 1.0},
            },
            "schema_versions": {"rollout_protocol": "0.3", "dataset_normalization": 1, "state_schema": 1},
            "provenance": {"sdk_version": "0.3.11", "git_head": "1a2b3c4" + "0" * 33, "git_dirty": True},
            "files": [
                {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                for path, data in sorted(self.files.items())
            ],
        }
        return {**body, **changes}

    def write(self, root: Path) -> Path:
        """Write the run's directory as the public runner leaves it."""
        directory = root / self.name
        for path, data in self.files.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_bytes(data)
        journal = [{key: it[key] for key in it if key not in _OF_THE_INDEX} for it in self.index()]
        (directory / "events.jsonl").write_text("".join(json.dumps(record) + "\n" for record in journal))
        (directory / "logs.txt").write_text("a log is not uploaded")
        (directory / "metrics.json").write_text(json.dumps(self.metrics()))
        (directory / "manifest.json").write_text(json.dumps(self.manifest()))
        return directory

    def manifest(self) -> dict[str, Any]:
        return {
            "schema_version": 1,
            "local_run_id": RUN_ID,
            "run_name": self.name,
            "created_at": "2026-11-02T08:00:00.000Z",
            "inputs": {
                "model_path": "openai/gpt-5-mini",
                "dataset": {"sha256": "cd" * 32, "selected_source_rows": self.rows},
                "n": self.n,
                "rollout": {"name": "maze", "entrypoint": "main.py", "source_digest": "ab" * 32},
                "env": {"REGION": "north"},
                "secret_names": ["OPENAI_API_KEY"],
                "timeouts": {"agent_timeout_sec": None, "grader_timeout_sec": None},
                "versions": {"rollout_protocol": "0.3", "dataset_normalization": 1, "state_schema": 1},
            },
            "provenance": {
                "sdk_version": "0.3.11",
                "git_head": "1a2b3c4" + "0" * 33,
                "git_dirty": True,
                "config_branch": "main",
                "advanced": {"x": 1},
            },
        }

    def metrics(self) -> dict[str, Any]:
        return {
            "eval_run": {
                "id": RUN_ID,
                "status": "finished",
                "name": self.name,
                "dataset_name": "mazes",
                "model_name": "openai/gpt-5-mini",
                "rollout_name": "maze",
                "duration_ms": 600_000,
                "started_at": "2026-11-02T08:00:00.000Z",
                "completed_at": "2026-11-02T08:10:00Z",
            },
            "summary": {"total_samples": 6, "pass_threshold": 1.0},
        }

    def send(self, api: TestClient, session: str, *paths: str) -> None:
        """Send these files, all by default, each as it is now."""
        asked = list(paths or self.files)
        reply = api.post(f"{IMPORTS}/{session}/uploads", json={"paths": asked}).json()
        for file in reply["files"]:
            upload = file["upload"]
            assert upload["method"] == "simple"
            put = api.put(
                upload["presigned_url"],
                content=self.files[file["path"]],
                headers={**upload["upload_headers"], "Authorization": ""},
            )
            assert put.status_code == 200, put.text
            done = api.post(f"{IMPORTS}/{session}/uploads/complete", json={"path": file["path"]})
            assert done.status_code == 200, done.text

    def upload(self, api: TestClient, **changes: Any) -> Response:
        """Do the whole of it; returns the reply of the end."""
        started = api.post(IMPORTS, json=self.start(**changes))
        assert started.status_code == 200, started.text
        session = started.json()["session_id"]
        self.send(api, session)
        return api.post(f"{IMPORTS}/{session}/finalize", json={})


def started(api: TestClient, run: LocalRun, **changes: Any) -> dict[str, Any]:
    """Return what a platform says of an upload that has begun."""
    reply = api.post(IMPORTS, json=run.start(**changes))
    assert reply.status_code == 200, reply.text
    return dict(reply.json())
