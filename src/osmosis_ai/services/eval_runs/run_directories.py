"""Run directories of a workspace on this machine, including those archived by `--fresh`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_ai.errors import OsmosisError, WorkspaceRequiredError
from osmosis_ai.evaluation.spec import is_archive

if TYPE_CHECKING:
    from osmosis_ai.workspace.layout import WorkspaceDirectory


def workspace_of_runs(start: Path | None) -> WorkspaceDirectory:
    """Return the workspace, or the current directory if it contains runs of a classic evaluation.

    Raises:
        WorkspaceRequiredError: neither applies.
    """
    from osmosis_ai.workspace.layout import WorkspaceDirectory, find_workspace

    try:
        return find_workspace(start, require_scaffold=False)
    except WorkspaceRequiredError:
        here = WorkspaceDirectory(start or Path.cwd())
        if not here.evals_dir.is_dir():
            raise
        return here


def newest_runs(root: Path) -> list[Path]:
    """Return the workspace's run directories, newest first, without archived ones."""
    return [directory for directory in _dated(root) if not is_archive(directory.name)]


def archived_names(root: Path) -> list[str]:
    """Return the names of archived runs, newest first."""
    return [directory.name for directory in _dated(root) if is_archive(directory.name)]


def unreadable_names(root: Path) -> list[str]:
    """Return the names of directories without read permission, which may or may not be runs."""
    try:
        folders = [path for path in root.iterdir() if path.is_dir()]
    except OSError:
        return []
    return sorted(path.name for path in folders if not os.access(path, os.R_OK | os.X_OK))


def _dated(root: Path) -> list[Path]:
    dated = []
    for path in root.glob("*/manifest.json"):
        try:
            dated.append((path.stat().st_mtime_ns, path.parent))
        except OSError:
            continue  # being removed
    return [directory for _, directory in sorted(dated, reverse=True)]


def readable(directory: Path) -> Path:
    """Return a run's directory after checking that its files are regular files."""
    from osmosis_ai.viewer.local_runs import irregular_file

    name = irregular_file(directory)
    if name is None:
        return directory
    raise OsmosisError(
        f"the run `{directory.name}` cannot be read: `{directory / name}` is not a regular file.",
        hint="runs create only regular files there; move it or the run away",
    )


def evaluation(directory: Path) -> Path:
    """Return the directory of an evaluation.

    Raises:
        OsmosisError: it contains a training run.
    """
    from shlex import quote

    from osmosis_ai.viewer.local_runs import kind_of

    if kind_of(directory) != "training":
        return directory
    named = quote(str(directory))
    raise OsmosisError(
        f"{directory} is a training directory, not an evaluation.",
        hint=f"osmosis train info {named}, osmosis train show {named}",
    )
