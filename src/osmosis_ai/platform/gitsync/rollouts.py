"""Which rollouts a commit has: every directory directly under ``rollouts/`` that holds a file."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osmosis_ai.platform.gitsync.git import Git
from osmosis_ai.platform.gitsync.tree import REGULAR, ObjectReader, TreeEntry, list_tree, read_objects

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_PYPROJECT_BYTES = 1024 * 1024
_LONGEST_NAME = 255
_LONGEST_DESCRIPTION = 1000


@dataclass(frozen=True)
class RolloutDirectory:
    """A rollout: its directory's name, and what its ``pyproject.toml`` says it is."""

    name: str
    description: str | None


def find_rollouts(git: Git, mirror: Path, sha: str) -> list[RolloutDirectory]:
    """Return the rollouts of a commit, by name."""
    projects: dict[str, TreeEntry | None] = {}
    for entry in list_tree(git, mirror, sha, "rollouts/"):
        _, name, *inside = entry.path.split("/", 2)
        if not inside or not _is_name(name):
            continue
        projects.setdefault(name, None)
        if inside == ["pyproject.toml"] and entry.mode in REGULAR and entry.size <= MAX_PYPROJECT_BYTES:
            projects[name] = entry
    with read_objects(git, mirror) as reader:
        return [RolloutDirectory(name, _description(reader, projects[name])) for name in sorted(projects)]


def _is_name(name: str) -> bool:
    """Directories of tools and names that no config could spell are no rollouts."""
    return not name.startswith((".", "__")) and name.isprintable() and len(name) <= _LONGEST_NAME


def _description(reader: ObjectReader, project: TreeEntry | None) -> str | None:
    if project is None:
        return None
    try:
        document: dict[str, Any] = tomllib.loads(reader.read(project).decode("utf-8"))
        text = document["project"]["description"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return text.strip()[:_LONGEST_DESCRIPTION] or None if isinstance(text, str) else None
