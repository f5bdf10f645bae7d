"""Templates: rollouts that somebody else wrote, copied into the workspace directory to begin with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osmosis_ai.workspace.layout import find_workspace
from osmosis_ai.workspace.placement import PlacedRollout, place
from osmosis_ai.workspace.rollout_templates import (
    RolloutTemplate,
    find_template,
    template_names,
    templates_root,
)


@dataclass(frozen=True)
class AppliedTemplate:
    """A template that is now in a workspace.

    Attributes:
        written: what was written.
        configs: its configs, relative to the workspace's root.
    """

    written: PlacedRollout
    configs: tuple[str, ...]

    def resource(self) -> dict[str, Any]:
        """Return what was written as scripts see it; paths are relative to the workspace directory."""
        return {
            "name": self.written.name,
            "destinations": list(self.written.destinations),
            "files": list(self.written.files),
            "gitignore": {"added": list(self.written.ignored)},
        }


def list_templates() -> list[RolloutTemplate]:
    """Return all templates, by name.

    Raises:
        OsmosisError: where the environment names a place for them, and there are none.
    """
    root = templates_root()
    return [RolloutTemplate(root, name) for name in template_names()]


def apply_template(name: str, *, force: bool = False, start: Path | None = None) -> AppliedTemplate:
    """Copy a template into the workspace that ``start`` is in; directories that it lacks are made.

    Args:
        name: the template's name.
        force: replace a rollout, configs and data of those names.
        start: a directory of the work tree; the current one when None.

    Raises:
        WorkspaceRequiredError: outside a Git work tree.
        NotFoundError: there is no such template.
        ConflictError: something of it exists already; what is there word for word is none.
    """
    workspace = find_workspace(start, require_scaffold=False)
    template = find_template(name)
    return AppliedTemplate(
        place(workspace, template.read(), force=force, keep_same=True), template.config_paths
    )
