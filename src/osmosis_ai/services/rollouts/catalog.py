"""Rollouts: written in the workspace directory, listed as the platform has read them from the repository."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.workspace.layout import WorkspaceDirectory, find_workspace
from osmosis_ai.workspace.placement import PlacedRollout
from osmosis_ai.workspace.scaffold import init_example, init_rollout

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.wire.rollouts import Rollout, RolloutList
    from osmosis_ai.services.listing import Listing

_KEYS = ("id", "name", "is_active", "repo_full_name", "last_synced_commit_sha", "created_at")


@dataclass(frozen=True)
class InitializedRollout:
    """A new rollout and the workspace it was written to."""

    workspace: WorkspaceDirectory
    written: PlacedRollout

    def resource(self) -> dict[str, Any]:
        """Return what was written as scripts see it; paths are relative to the workspace directory."""
        return {
            "name": self.written.name,
            "workspace_directory": str(self.workspace.root),
            "rollout_dir": self.written.rollout_dir,
            "configs": {"eval": self.written.eval_config, "training": self.written.training_config},
            "files": list(self.written.files),
            "gitignore": {"added": list(self.written.ignored)},
        }


def initialize_rollout(
    name: str | None, *, example: bool = False, force: bool = False, start: Path | None = None
) -> InitializedRollout:
    """Write a rollout's skeleton and configs into the workspace that ``start`` is in.

    Args:
        name: the rollout's name; None, where an example is wanted, for the example's own.
        example: write an agent that works, with its data, instead of a skeleton.
        force: replace what has that name.
        start: a directory of the workspace; the current one when None.

    Raises:
        WorkspaceRequiredError: outside a Git work tree.
        ConflictError: when something has that name already.
        OsmosisError: when the name is not allowed, or the workspace lacks a directory.
    """
    workspace = find_workspace(start)
    if example:
        return InitializedRollout(workspace, init_example(workspace, name, force=force))
    if name is None:
        raise OsmosisError("A new rollout needs a name.")
    return InitializedRollout(workspace, init_rollout(workspace, name, force=force))


@dataclass(frozen=True)
class RolloutListing:
    """The rollouts of a repository, as the platform has read them.

    Attributes:
        listing: the rollouts, and where they stand in the whole.
        sync_error: why they may be out of date; None when they are not.
    """

    listing: Listing[Rollout]
    sync_error: str | None


def list_rollouts(
    client: PlatformClient, *, branch: str | None, limit: int, everything: bool
) -> RolloutListing:
    """Return the rollouts of the default branch or of ``branch``; the rest as in ``fetch_listing``."""
    from osmosis_ai.services.listing import fetch_listing

    problems: list[str] = []

    def fetch(size: int, offset: int) -> RolloutList:
        page = client.rollouts.list(branch=branch, limit=size, offset=offset)
        problems.extend([page.sync_error] if page.sync_error else [])
        return page

    listing = fetch_listing(fetch, lambda page: page.rollouts, limit=limit, everything=everything)
    return RolloutListing(listing, problems[-1] if problems else None)


def rollout_item(rollout: Rollout) -> dict[str, Any]:
    """Return a rollout as scripts see it."""
    known = rollout.model_dump(mode="json", include=set(_KEYS))
    return {key: known[key] for key in _KEYS}
