"""Rollouts in the workspace directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osmosis_ai.workspace.layout import Workspace, find_workspace
from osmosis_ai.workspace.scaffold import InitResult, init_rollout


@dataclass(frozen=True)
class InitializedRollout:
    """A new rollout and the workspace it was written to."""

    workspace: Workspace
    written: InitResult

    def resource(self) -> dict[str, Any]:
        """Return what was written as scripts see it; paths are relative to the workspace directory."""
        return {
            "name": self.written.name,
            "workspace_directory": str(self.workspace.root),
            "rollout_dir": self.written.rollout_dir,
            "configs": {"eval": self.written.eval_config, "training": self.written.training_config},
            "files": list(self.written.files),
        }


def initialize_rollout(name: str, *, force: bool = False, start: Path | None = None) -> InitializedRollout:
    """Write a rollout's skeleton and configs into the workspace that ``start`` is in.

    Args:
        name: the rollout's name.
        force: replace what has that name.
        start: a directory of the workspace; the current one when None.

    Raises:
        WorkspaceRequiredError: outside a Git work tree.
        ConflictError: when something has that name already.
        OsmosisError: when the name is not allowed, or the workspace lacks a directory.
    """
    workspace = find_workspace(start)
    return InitializedRollout(workspace, init_rollout(workspace, name, force=force))
