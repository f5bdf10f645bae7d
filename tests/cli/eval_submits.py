"""A workspace from which an evaluation can be submitted, and the submit."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.cli.maze import Maze
from tests.workspace.builders import git

CONFIG = "configs/eval/maze.toml"
TEXT = """\
[experiment]
rollout = "multiply"
entrypoint = "main.py"
model_path = "openai/gpt-5-mini"
dataset = "maze-walks"

[evaluation]
limit = 10

[env]
LOG_LEVEL = "INFO"

[secrets]
required = ["OPENAI_API_KEY", "SEARCH_KEY"]
"""
SUBMITTED: dict[str, Any] = {
    "id": "er_8",
    "name": "amber-otter-42",
    "status": "pending",
    "created_at": "2026-10-02T07:00:00Z",
}
CANARY = "sk-canary-51fe09c2"


def make_ready(maze: Maze, monkeypatch: pytest.MonkeyPatch) -> Maze:
    """Commit a config, and let the platform have its secrets and its dataset and take the run."""
    # No `gh` of this machine is asked.
    monkeypatch.setenv("PATH", os.pathsep.join(("/usr/local/bin", "/usr/bin", "/bin")))
    configure(maze, TEXT)
    commit(maze)
    store_secrets(maze, ("OPENAI_API_KEY", "workspace"), ("SEARCH_KEY", "workspace"), ("SEARCH_KEY", "user"))
    maze.post("/eval-runs").respond(json=SUBMITTED)
    # As the hosted service, which cannot be asked beforehand.
    maze.post("/eval-runs/check").respond(404, html="<h1>404</h1>")
    maze.get("/datasets/maze-walks").respond(
        json={"id": "ds_31", "file_name": "maze-walks", "status": "uploaded"}
    )
    return maze


def configure(maze: Maze, text: str) -> None:
    (maze.workspace.root / CONFIG).write_text(text)


def commit(maze: Maze) -> str:
    git(maze.workspace.root, "add", "--all")
    git(maze.workspace.root, "commit", "--quiet", "--allow-empty", "--message", "work")
    return git(maze.workspace.root, "rev-parse", "HEAD")


def store_secrets(maze: Maze, *stored: tuple[str, str]) -> None:
    secrets = [
        {"id": f"s{number}", "name": name, "scope": scope} for number, (name, scope) in enumerate(stored)
    ]
    maze.get("/environment-secrets").respond(json={"environment_secrets": secrets, "next_offset": None})


def submit(maze: Maze, *arguments: str) -> Any:
    return maze.osmosis("eval", "submit", CONFIG, *arguments)


def write_entrypoint(maze: Maze, text: str) -> None:
    (maze.workspace.rollouts_dir / "multiply" / "main.py").write_text(text)


def pin(maze: Maze, sha: str) -> None:
    configure(maze, TEXT.replace("[evaluation]", f'commit_sha = "{sha}"\n\n[evaluation]', 1))
