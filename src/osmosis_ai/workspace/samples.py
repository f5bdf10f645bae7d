"""The sample workspace: the first template in its own repository, from a checkout or an installed wheel.

The copy does not depend on the user's Git configuration and does not change it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.workspace.doctor import AGENT_GUIDES, guide_text
from osmosis_ai.workspace.git import run_git
from osmosis_ai.workspace.layout import REQUIRED_DIRECTORIES, WorkspaceDirectory
from osmosis_ai.workspace.placement import place
from osmosis_ai.workspace.rollout_templates import EXAMPLE, RolloutTemplate, own_root

_GITIGNORE = "__pycache__/\n.venv/\n.env\n.osmosis/\n"
_NO_USER_CONFIG = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "0",
    "GIT_CONFIG_PARAMETERS": "",
}


def copy_sample_workspace(target: Path) -> WorkspaceDirectory:
    """Create a sample workspace at ``target``: a Git repository with one commit on `main`."""
    sample = RolloutTemplate(own_root(), EXAMPLE).read()
    if target.exists() and any(target.iterdir()):
        raise ConflictError(f"{target} is not empty.")
    root = target.absolute()
    for name in REQUIRED_DIRECTORIES:
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / ".gitignore").write_text(_GITIGNORE, encoding="utf-8")
    place(WorkspaceDirectory(root), sample, force=False)
    for name in AGENT_GUIDES:
        (root / name).write_text(guide_text(name), encoding="utf-8")
    _first_commit(root)
    return WorkspaceDirectory(root.resolve())


def _first_commit(root: Path) -> None:
    """Commit the files in ``root`` with GitPython, which applies no configuration, ignore file or hook here."""
    git = _import_git()
    # `git init` runs as a binary: GitPython would pass on the variables of a Git hook that this runs in.
    done = run_git(["init", "--quiet", "--template="], cwd=root, env=_NO_USER_CONFIG)
    if done.returncode != 0:
        raise OsmosisError(f"Git could not set up {root}: {done.stderr.strip()}")
    files = sorted(path for path in root.rglob("*") if path.is_file() and ".git" not in path.parts)
    author = git.Actor("Osmosis", "osmosis@localhost")
    with git.Repo(root) as repository:
        own = repository.config_reader("repository")
        repository.config_reader = lambda *_: own
        repository.git.update_environment(**_NO_USER_CONFIG)
        repository.head.reference = git.Head(repository, "refs/heads/main")
        repository.index.add(files)
        repository.index.commit("The sample workspace", author=author, committer=author, skip_hooks=True)


def _import_git() -> Any:
    """Import GitPython. It asks Git for its version, which fails if the user's configuration is broken."""
    users = {name: os.environ.get(name) for name in _NO_USER_CONFIG}
    os.environ.update(_NO_USER_CONFIG)
    try:
        import git
    finally:
        for name, value in users.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    return git
