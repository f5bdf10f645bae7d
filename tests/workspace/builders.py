"""Workspaces and configs for tests."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from osmosis_ai.config.issues import InvalidConfigError, Issue
from osmosis_ai.workspace.config_files import EvalConfig, load_eval_config
from osmosis_ai.workspace.layout import REQUIRED_DIRECTORIES, WorkspaceDirectory

MINIMAL_EVAL = """\
[experiment]
rollout = "multiply"
entrypoint = "main.py"
model_path = "openai/gpt-5-mini"
dataset = "multiply"

[secrets]
required = []
"""
MINIMAL_TRAINING = MINIMAL_EVAL.partition("\n[secrets]")[0]


def git(root: Path, *arguments: str) -> str:
    """Run Git without any configuration."""
    environment = {
        **os.environ,
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "Ada",
        "GIT_AUTHOR_EMAIL": "ada@example.org",
        "GIT_COMMITTER_NAME": "Ada",
        "GIT_COMMITTER_EMAIL": "ada@example.org",
    }
    done = subprocess.run(
        ["git", "-C", str(root), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return done.stdout.strip()


def make_repository(root: Path) -> Path:
    """Create an empty Git work tree from a copy, which is faster than `git init`."""
    for name, content in _empty_repository().items():
        path = root / ".git" / name
        if content is None:
            path.mkdir(parents=True)
        else:
            path.write_bytes(content)
    return root.resolve()


@cache
def _empty_repository() -> dict[str, bytes | None]:
    """Return the files of `git init`; a directory is None and comes before its content."""
    with TemporaryDirectory() as directory:
        git(Path(directory), "init", "--quiet", "--initial-branch=main", "--template=")
        made = Path(directory) / ".git"
        return {
            str(path.relative_to(made)): None if path.is_dir() else path.read_bytes()
            for path in [made, *sorted(made.rglob("*"))]
        }


def make_workspace(root: Path) -> WorkspaceDirectory:
    """Create a Git work tree with the four directories and a rollout named multiply."""
    root = make_repository(root)
    for name in REQUIRED_DIRECTORIES:
        (root / name).mkdir(parents=True)
    (root / "rollouts" / "multiply").mkdir()
    (root / "rollouts" / "multiply" / "main.py").write_text("")
    return WorkspaceDirectory(root)


def write_config(
    workspace: WorkspaceDirectory, text: str | bytes, *, kind: str = "eval", name: str = "a.toml"
) -> Path:
    path = workspace.root / "configs" / kind / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def load_eval(workspace: WorkspaceDirectory, text: str | bytes) -> EvalConfig:
    """Read an evaluation config of this text."""
    return load_eval_config(write_config(workspace, text), workspace)


def issues_of(workspace: WorkspaceDirectory, text: str) -> list[Issue]:
    """Return the issues of an evaluation config of this text."""
    with pytest.raises(InvalidConfigError) as caught:
        load_eval(workspace, text)
    return list(caught.value.issues)
