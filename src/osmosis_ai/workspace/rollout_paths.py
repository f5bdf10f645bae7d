"""Resolve the rollout and entrypoint of a config: a directory under `rollouts/` and a file inside it."""

from __future__ import annotations

from pathlib import Path

from osmosis_ai.config.issues import closest
from osmosis_ai.config.sections import entrypoint_problem, rollout_name_problem
from osmosis_ai.errors import OsmosisError
from osmosis_ai.workspace.layout import WorkspaceDirectory


class RolloutPathError(OsmosisError):
    """The rollout or entrypoint that a config names cannot be used."""

    def __init__(
        self, key: str, problem: str, *, suggestion: str | None = None, hint: str | None = None
    ) -> None:
        did_you_mean = f" (did you mean '{suggestion}'?)" if suggestion else ""
        super().__init__(problem + did_you_mean, details={"key": key}, hint=hint)
        self.key = key
        self.problem = problem
        self.suggestion = suggestion


def rollout_directory(workspace: WorkspaceDirectory, rollout: str) -> Path:
    key = "experiment.rollout"
    if problem := rollout_name_problem(rollout):
        raise RolloutPathError(key, problem)
    directory = workspace.rollouts_dir / rollout
    if not directory.is_dir():
        raise RolloutPathError(
            key,
            f"there is no directory rollouts/{rollout}/",
            suggestion=closest(rollout, _rollouts(workspace)),
            hint="`osmosis rollout init NAME` writes a new rollout",
        )
    if not directory.resolve().is_relative_to(workspace.rollouts_dir.resolve()):
        raise RolloutPathError(key, f"rollouts/{rollout} is a link that leads out of rollouts/")
    return directory


def entrypoint_file(workspace: WorkspaceDirectory, rollout: str, entrypoint: str) -> Path:
    """Return the entrypoint script of ``rollout``."""
    key = "experiment.entrypoint"
    directory = rollout_directory(workspace, rollout)
    if problem := entrypoint_problem(entrypoint):
        raise RolloutPathError(key, problem)
    path = directory / entrypoint
    if not path.resolve().is_relative_to(directory.resolve()):
        raise RolloutPathError(
            key, f"rollouts/{rollout}/{entrypoint} is a link that leads out of rollouts/{rollout}/"
        )
    if not path.is_file():
        scripts = [found.name for found in directory.glob("*.py")]
        raise RolloutPathError(
            key, f"there is no file rollouts/{rollout}/{entrypoint}", suggestion=closest(entrypoint, scripts)
        )
    return path


def _rollouts(workspace: WorkspaceDirectory) -> list[str]:
    if not workspace.rollouts_dir.is_dir():
        return []
    return [path.name for path in workspace.rollouts_dir.iterdir() if path.is_dir()]
