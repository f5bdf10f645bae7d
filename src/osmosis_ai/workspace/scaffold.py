"""Create a new rollout with its configs: a skeleton, or the example under a new name."""

from __future__ import annotations

import re
from importlib.resources import files

from osmosis_ai.errors import OsmosisError
from osmosis_ai.workspace.layout import WorkspaceDirectory
from osmosis_ai.workspace.placement import PlacedRollout, RolloutFiles, place
from osmosis_ai.workspace.rollout_templates import EXAMPLE, ROLLOUT_NAME, RolloutTemplate, own_root

_RESERVED_NAMES = ("default",)
_ROLLOUT = "{{rollout}}"
_KEYS = re.compile(r"\{\{keys:([a-z]+)\}\}")


def init_rollout(workspace: WorkspaceDirectory, name: str, *, force: bool = False) -> PlacedRollout:
    """Write the skeleton of a rollout with an eval and a training config."""
    _check_name(name)
    templates = {
        f"rollouts/{name}/main.py": "main.py.txt",
        f"rollouts/{name}/pyproject.toml": "pyproject.toml",
        f"rollouts/{name}/README.md": "README.md",
        f"configs/eval/{name}.toml": "eval.toml",
        f"configs/training/{name}.toml": "training.toml",
    }
    contents = {path: _render(template, name).encode() for path, template in templates.items()}
    return place(workspace, RolloutFiles(name, contents), force=force)


def init_example(
    workspace: WorkspaceDirectory, name: str | None = None, *, force: bool = False
) -> PlacedRollout:
    """Write the first template with its data, optionally under a new name."""
    example = RolloutTemplate(own_root(), EXAMPLE).read()
    if name is not None:
        _check_name(name)
        example = example.renamed(name)
    return place(workspace, example, force=force)


def _check_name(name: str) -> None:
    if not ROLLOUT_NAME.fullmatch(name):
        likely = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        raise OsmosisError(
            f"'{name}' is not a name for a rollout: it must match ^{ROLLOUT_NAME.pattern}$ "
            "(lower-case letters, digits and hyphens, a letter first).",
            hint=f"try `{likely}`" if ROLLOUT_NAME.fullmatch(likely) else None,
        )
    if name in _RESERVED_NAMES:
        raise OsmosisError(f"'{name}' is a reserved name; choose another for the rollout.")


def _render(template: str, name: str) -> str:
    # A text template, because no TOML library writes the comments that explain each key.
    from osmosis_ai.config.reference import commented_keys

    text = (files("osmosis_ai.workspace") / "templates" / "rollout" / template).read_text(encoding="utf-8")
    return _KEYS.sub(lambda section: commented_keys(section[1]), text.replace(_ROLLOUT, name))
