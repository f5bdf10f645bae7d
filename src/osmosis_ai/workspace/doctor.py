"""Check and fix a workspace directory. Only missing directories make it invalid; guides for coding agents are optional.

Keys must not get into the repository: missing lines of `.gitignore` are added, and a tracked `.env` is reported. A fix
only adds: existing files are unchanged except for lines at the end of `.gitignore`, links are never written through,
and obstacles are reported before the first write.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from osmosis_ai.errors import ConflictError
from osmosis_ai.files import write_atomic
from osmosis_ai.workspace.git import add_patterns, missing_patterns, tracked_env_files
from osmosis_ai.workspace.layout import REQUIRED_DIRECTORIES, find_workspace, missing_directories

AGENT_GUIDES = ("AGENTS.md", "CLAUDE.md", "configs/AGENTS.md")


@dataclass(frozen=True)
class DoctorReport:
    """The state of a workspace directory."""

    root: Path
    missing: tuple[str, ...]
    fixed: tuple[str, ...] = ()
    unignored: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    tracked_env_files: tuple[str, ...] = ()

    @property
    def missing_directories(self) -> tuple[str, ...]:
        """The missing directories, which make the workspace invalid."""
        return tuple(path for path in self.missing if path in REQUIRED_DIRECTORIES)

    @property
    def valid(self) -> bool:
        return not self.missing_directories


def check(path: Path | None = None) -> DoctorReport:
    """Check the workspace that contains ``path`` (default: the current directory)."""
    workspace = find_workspace(path, require_scaffold=False)
    root = workspace.root
    missing = (
        *missing_directories(workspace),
        *(name for name in AGENT_GUIDES if not (root / name).is_file()),
    )
    return DoctorReport(
        root, missing, unignored=missing_patterns(root), tracked_env_files=tracked_env_files(root)
    )


def fix(path: Path | None = None) -> DoctorReport:
    """Create what :func:`check` reports as missing, and return the new report."""
    before = check(path)
    obstacles = sorted({found for name in before.missing if (found := _obstacle(before.root, name))})
    if obstacles:
        raise ConflictError(
            "These stand in the way; move them and run `osmosis doctor --fix` again:\n"
            + "\n".join(f"  - {found}" for found in obstacles),
            details={"conflicts": obstacles},
        )
    for name in before.missing:
        is_guide = name in AGENT_GUIDES
        file, text = (name, guide_text(name)) if is_guide else (f"{name}/.gitkeep", "")
        write_atomic(before.root / file, text, mode=0o644, durable=False)
    add_patterns(before.root, before.unignored)
    return replace(before, missing=(), fixed=before.missing, unignored=(), ignored=before.unignored)


def guide_text(name: str) -> str:
    """Return the text of the guide for coding agents at ``name`` in a workspace."""
    text = (Path(__file__).parent / "templates" / "guides" / name).read_text(encoding="utf-8")
    if "{{keys}}" not in text:
        return text
    from osmosis_ai.config.checks import keys_by_section

    return text.replace("{{keys}}", keys_by_section())


def _obstacle(root: Path, name: str) -> str | None:
    """Return the first path between ``root`` and the missing ``name`` that is a link or not a directory."""
    return name if os.path.lexists(root / name) else obstacle_on_the_way(root, name)


def obstacle_on_the_way(root: Path, name: str) -> str | None:
    """Return the first path between ``root`` and ``name`` that is a link or not a directory, or None."""
    for parent in reversed(PurePosixPath(name).parents[:-1]):
        place = root / parent
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            return parent.as_posix()
    return None
