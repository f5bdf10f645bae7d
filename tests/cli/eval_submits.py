"""A workspace from which an evaluation can be submitted."""

from __future__ import annotations

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


def commit(maze: Maze) -> str:
    git(maze.workspace.root, "add", "--all")
    git(maze.workspace.root, "commit", "--quiet", "--allow-empty", "--message", "work")
    return git(maze.workspace.root, "rev-parse", "HEAD")


def store_secrets(maze: Maze, *stored: tuple[str, str]) -> None:
    secrets = [
        {"id": f"s{number}", "name": name, "scope": scope} for number, (name, scope) in enumerate(stored)
    ]
    maze.get("/environment-secrets").respond(json={"environment_secrets": secrets, "next_offset": None})


def write_entrypoint(maze: Maze, text: str) -> None:
    (maze.workspace.rollouts_dir / "multiply" / "main.py").write_text(text)
