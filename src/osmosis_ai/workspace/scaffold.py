"""A new rollout never surprises: what stands in its way is found before anything is touched."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.files import write_atomic
from osmosis_ai.workspace import gitignore
from osmosis_ai.workspace.layout import WorkspaceDirectory

_NAME = re.compile(r"[a-z][a-z0-9-]*")
_RESERVED_NAMES = ("default",)
_ROLLOUT = "{{rollout}}"
_KEYS = re.compile(r"\{\{keys:([a-z]+)\}\}")


@dataclass(frozen=True)
class InitResult:
    """What was written, as paths relative to the workspace's root.

    Args:
        name: the rollout's name.
        rollout_dir: its directory.
        eval_config: its eval config.
        training_config: its training config.
        files: every file that was written, sorted.
        ignored: the lines that were added to `.gitignore`, so that keys and results stay out of the repository.
    """

    name: str
    rollout_dir: str
    eval_config: str
    training_config: str
    files: tuple[str, ...]
    ignored: tuple[str, ...] = ()


def init_rollout(workspace: WorkspaceDirectory, name: str, *, force: bool = False) -> InitResult:
    """Write the skeleton of a rollout with an eval and a training config.

    Args:
        workspace: where to write it.
        name: lower-case letters, digits and hyphens; the directory under `rollouts/`.
        force: replace a rollout directory and config files of that name.

    Raises:
        OsmosisError: when the name is not allowed (VALIDATION).
        ConflictError: when a target exists and ``force`` is not set, or is a link or of another kind.
    """
    _check_name(name)
    rollout_dir, eval_config, training_config = (
        f"rollouts/{name}",
        f"configs/eval/{name}.toml",
        f"configs/training/{name}.toml",
    )
    targets = [rollout_dir, eval_config, training_config]
    _check_targets(workspace, targets, force=force)
    templates = {
        f"{rollout_dir}/main.py": "main.py.txt",
        f"{rollout_dir}/pyproject.toml": "pyproject.toml",
        f"{rollout_dir}/README.md": "README.md",
        eval_config: "eval.toml",
        training_config: "training.toml",
    }
    contents = {path: _render(template, name) for path, template in templates.items()}
    if (workspace.root / rollout_dir).exists():
        shutil.rmtree(workspace.root / rollout_dir)
    for path, content in contents.items():
        write_atomic(workspace.root / path, content, mode=0o644, durable=False)
    ignored = gitignore.missing_patterns(workspace.root) if gitignore.obstacle(workspace.root) is None else ()
    gitignore.add_patterns(workspace.root, ignored)
    return InitResult(name, rollout_dir, eval_config, training_config, tuple(sorted(contents)), ignored)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        likely = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        raise OsmosisError(
            f"'{name}' is not a name for a rollout: it must match ^{_NAME.pattern}$ "
            "(lower-case letters, digits and hyphens, a letter first).",
            hint=f"try `{likely}`" if _NAME.fullmatch(likely) else None,
        )
    if name in _RESERVED_NAMES:
        raise OsmosisError(f"'{name}' is a reserved name; choose another for the rollout.")


def _check_targets(workspace: WorkspaceDirectory, targets: list[str], *, force: bool) -> None:
    present = [path for path in targets if _exists(workspace.root / path)]
    if present and not force:
        raise ConflictError(
            "These exist already:\n" + "\n".join(f"  - {path}" for path in present),
            details={"conflicts": present},
            hint="choose another name, or replace them with `--force`",
        )
    irregular = [path for path in present if not _replaceable(workspace.root / path)]
    if irregular:
        raise ConflictError(
            "These are not replaced, because they are links or not of the expected kind:\n"
            + "\n".join(f"  - {path}" for path in irregular),
            details={"conflicts": irregular},
            hint="remove them by hand",
        )


def _exists(path: Path) -> bool:
    return path.is_symlink() or path.exists()


def _replaceable(path: Path) -> bool:
    return not path.is_symlink() and (path.is_file() if path.suffix == ".toml" else path.is_dir())


def _render(template: str, name: str) -> str:
    # A template, not a TOML writer: what every key is for stands beside it, and no library writes comments.
    from osmosis_ai.config.reference import commented_keys

    text = (files("osmosis_ai.workspace") / "templates" / "rollout" / template).read_text(encoding="utf-8")
    return _KEYS.sub(lambda section: commented_keys(section[1]), text.replace(_ROLLOUT, name))
