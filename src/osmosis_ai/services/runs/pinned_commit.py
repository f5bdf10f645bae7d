"""Check as far as possible that the platform can fetch a pinned commit."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Literal
from urllib.parse import quote, urlsplit

from osmosis_ai.api.git_identity import GitIdentity
from osmosis_ai.errors import OsmosisError
from osmosis_ai.process_environment import github_environment
from osmosis_ai.workspace.git import run_git

Answer = Literal["present", "absent", "unknown"]
GITHUB_TIMEOUT_S = 20.0


def check_pinned_commit(root: Path, commit_sha: str, git: GitIdentity) -> str | None:
    """Look for a commit in this clone and, if the origin is on GitHub, there."""
    local = run_git(["cat-file", "-e", f"{commit_sha}^{{commit}}"], cwd=root).returncode == 0
    answer = _ask_github(git.identity, commit_sha) if _is_on_github(git) else "unknown"
    if answer == "present":
        return None
    if answer == "absent":
        details = {"commit_sha": commit_sha, "identity": git.identity, "exists_locally": local}
        if local:
            raise OsmosisError(
                f"Commit {commit_sha} is in this clone but not pushed to {git.identity}.",
                details=details,
                hint="push it: git push",
            )
        raise OsmosisError(
            f"Commit {commit_sha} is neither in this clone nor in {git.identity}.",
            details=details,
            hint="write the SHA of a pushed commit into `commit_sha`; `git log` lists them",
        )
    if not local:
        return f"commit {commit_sha} is not in this clone; whether {git.identity} has it is left to the platform."
    known = run_git(["branch", "--remotes", "--contains", commit_sha], cwd=root)
    if known.returncode == 0 and known.stdout.strip():
        return None
    return f"commit {commit_sha} is not on any remote branch known to this clone; it may not be pushed yet."


def _is_on_github(git: GitIdentity) -> bool:
    try:
        return (urlsplit(git.display_url).hostname or "").rstrip(".") == "github.com"
    except ValueError:
        return False


def _ask_github(identity: str, commit_sha: str) -> Answer:
    """Query GitHub with the GitHub CLI, which has the user's login; the result is unknown without it."""
    gh = shutil.which("gh")
    if gh is None:
        return "unknown"
    path = f"repos/{quote(identity)}/commits/{quote(commit_sha, safe='')}"
    try:
        done = subprocess.run(
            [gh, "api", "--silent", path],
            env={**github_environment(os.environ), "GH_PROMPT_DISABLED": "1", "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=GITHUB_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    if done.returncode == 0:
        return "present"
    # GitHub returns 404 for repositories that this login cannot see, too, but 422 only for missing commits.
    return "absent" if "HTTP 422" in done.stderr else "unknown"
