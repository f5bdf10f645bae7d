"""Read the state of a work tree with the `git` binary, and keep keys out of it with `.gitignore`.

Git never prompts, runs no program that the repository's configuration names (file monitors, hooks), and fetches nothing
that a partial clone lacks. It receives only the variables it needs: not the keys in the user's shell, nor the variables
with which Git hooks redirect their children. So Git always reads the directory that is passed in.

Every command reads the state: starting the binary takes 2 ms, importing GitPython 147 ms. GitPython also lacks
`safe.directory` (another user's repository), `url.<base>.insteadOf`, index version 4 and SHA-256. It is used only for
writing (:mod:`osmosis_ai.workspace.rollout_templates`).
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from osmosis_ai.errors import OsmosisError, WorkspaceRequiredError
from osmosis_ai.files import write_atomic
from osmosis_ai.process_environment import git_environment

_SAFE_OPTIONS = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
_QUIET_VARIABLES = {
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}


@dataclass(frozen=True)
class GitState:
    """The state of a work tree."""

    head: str | None
    branch: str | None
    dirty: bool
    has_upstream: bool
    ahead: int


def run_git(
    arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None, timeout_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run one Git command in ``cwd`` and return its result, even if it failed."""
    try:
        return subprocess.run(
            ["git", *_SAFE_OPTIONS, "-C", str(cwd), *arguments],
            env={**git_environment(os.environ), **_QUIET_VARIABLES, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        raise WorkspaceRequiredError(
            "Git is not installed: no `git` was found on PATH.", hint="install Git and run the command again"
        ) from None
    except subprocess.TimeoutExpired:
        raise OsmosisError(f"`git {arguments[0]}` did not finish within {timeout_s:g} s in {cwd}.") from None


def worktree_root(directory: Path) -> Path | None:
    """Return the root of the work tree that contains ``directory``, or None outside of one."""
    found = run_git(["rev-parse", "--show-toplevel"], cwd=directory)
    if found.returncode == 0 and found.stdout.strip():
        return Path(found.stdout.rstrip("\n"))
    if "dubious ownership" in found.stderr:
        raise WorkspaceRequiredError(
            f"Git refuses the repository around {directory}: another user owns it.",
            hint=f"if you trust it: git config --global --add safe.directory {directory}",
        )
    return None


def checkout_root(directory: Path) -> Path | None:
    """Return the root of the checkout that contains ``directory``, without starting Git."""
    return next((place for place in (directory, *directory.parents) if os.path.lexists(place / ".git")), None)


def is_tracked(root: Path, name: str) -> bool:
    """Tell whether the repository tracks a file at ``name``, relative to its work tree and in any case."""
    found = run_git(["ls-files", "--cached", "-z", "--", f":(icase,literal){name}"], cwd=root)
    if found.returncode != 0:
        raise OsmosisError(f"Git cannot read {root}: {found.stderr.strip()}")
    return bool(found.stdout)


def tracked_env_files(root: Path) -> tuple[str, ...]:
    """Return all tracked files named `.env` in the repository; empty if Git fails."""
    found = run_git(["ls-files", "--cached", "-z", "--", ":(icase,glob)**/.env"], cwd=root)
    return tuple(name for name in found.stdout.split("\0") if name)


def read_git_state(root: Path, *, ignored: str = "") -> GitState:
    """Return the commit, the branch, and uncommitted and unpushed changes."""
    paths = [".", ":(exclude).osmosis", *([f":(exclude){ignored}"] if ignored else [])]
    found = run_git(
        ["status", "--porcelain=v2", "--branch", "--untracked-files=normal", "--", *paths], cwd=root
    )
    if found.returncode != 0:
        raise OsmosisError(f"Git cannot read {root}: {found.stderr.strip()}")
    lines = found.stdout.splitlines()
    headers = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch."))
    head, branch, ahead = headers.get("branch.oid"), headers.get("branch.head"), headers.get("branch.ab")
    return GitState(
        head=None if head == "(initial)" else head,
        branch=None if branch == "(detached)" else branch,
        dirty=any(line and not line.startswith("#") for line in lines),
        has_upstream=ahead is not None,
        ahead=int(ahead.split()[0]) if ahead else 0,
    )


def read_origin(root: Path) -> str | None:
    """Return the URL of the remote `origin` as Git reports it, including credentials, or None."""
    found = run_git(["remote", "get-url", "origin"], cwd=root)
    return found.stdout.strip() or None if found.returncode == 0 else None


def without_credentials(url: str) -> str:
    """Return ``url`` without the password, and without a user except that of SSH."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(not a URL)"
    if not parts.netloc:
        return url
    user, _, host = parts.netloc.rpartition("@")
    name = user.partition(":")[0]
    shown = f"{name}@{host}" if name and parts.scheme == "ssh" else host
    return urlunsplit(parts._replace(netloc=shown))


_SPELLINGS = {".env": (".env", ".env*", "*.env"), ".osmosis/": (".osmosis/", ".osmosis")}


def missing_patterns(root: Path) -> tuple[str, ...]:
    """Return the patterns that the `.gitignore` of ``root`` lacks; none if it is a link or not a file."""
    path = root / ".gitignore"
    if path.is_symlink() or (path.exists() and not path.is_file()):
        return ()
    text = path.read_bytes().decode("utf-8", "replace") if path.exists() else ""
    missing = dict.fromkeys(_SPELLINGS, True)
    for line in text.splitlines():
        spelling = line.rstrip().removeprefix("!").removeprefix("**").removeprefix("/")
        for pattern, spellings in _SPELLINGS.items():
            if spelling in spellings:
                missing[pattern] = line.startswith("!")
    return tuple(pattern for pattern in missing if missing[pattern])


def add_patterns(root: Path, patterns: tuple[str, ...]) -> None:
    """Append ``patterns`` to the `.gitignore` of ``root``, which is created if missing."""
    if not patterns:
        return
    path = root / ".gitignore"
    content, mode = b"", 0o644
    if path.exists():
        content, mode = path.read_bytes(), stat.S_IMODE(path.stat().st_mode)
    ending = b"\r\n" if b"\r\n" in content else b"\n"
    if content and not content.endswith(b"\n"):
        content += ending
    added = b"".join(pattern.encode() + ending for pattern in patterns)
    write_atomic(path, content + added, mode=mode, durable=False)
